"""What the child does. The process that children are forked from loads this module beforehand.

A child has its argument and the files it was handed, and may do nothing but compute: whatever it
imports has to be imported up here.
"""

import os
from collections.abc import Mapping
from typing import Final

from PIL import Image

from imagefleet.imaging.codecs import open_image, reading

MAX_PIXELS: Final = 50_000_000
SIDE: Final = 128  # the colours of a picture show in its thumbnail as well


def find_colors(argument: Mapping[str, object], files: Mapping[str, int]) -> dict[str, object]:
    """The most frequent colours, each as #rrggbb with its share of the picture.

    What is wrong with the file is raised as InputRejected, which ends the job for good.
    """
    wanted = int(str(argument["colors"]))
    data = os.pread(files["source"], os.fstat(files["source"]).st_size, 0)
    with reading(MAX_PIXELS):
        picture = open_image(data)
        picture.draft("RGB", (SIDE, SIDE))
        small = picture.convert("RGB")
        small.thumbnail((SIDE, SIDE))
    few = small.quantize(wanted, dither=Image.Dither.NONE)
    palette = few.getpalette() or []
    counts = few.histogram()[:wanted]
    return {
        "colors": [
            {
                "color": "#" + bytes(palette[3 * place : 3 * place + 3]).hex(),
                "share": round(count / (small.width * small.height), 3),
            }
            for count, place in sorted(zip(counts, range(wanted), strict=True), reverse=True)
            if count
        ]
    }
