"""The files of the shipped recipe, by Pillow or by pyvips, with nothing around them.

The fewest calls that make the same variants: no judgement, no profile, no placeholder, no hash.
Told are the picture, how often, and the recipe in the library's own words; the answer is the
processor time of all rounds but the first two, which warm the process, and the bytes of each file.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Asked = dict[str, Any]


def by_pillow(asked: Asked, folder: Path) -> Callable[[], None]:
    from PIL import Image  # noqa: PLC0415 - only one of the two is there

    def make() -> None:
        picture: Image.Image = Image.open(asked["picture"])
        picture.draft("RGB", asked["sizes"][0]["size"])
        picture.load()
        for each in asked["sizes"]:
            picture = picture.resize(each["size"], Image.Resampling.LANCZOS, reducing_gap=2.0)
            shown = picture.crop(each["window"]) if each["window"] else picture
            for form, options in asked["encoders"]["bare Pillow"].items():
                shown.save(folder / f"{each['name']}.{form}", form, **options)

    return make


def by_pyvips(asked: Asked, folder: Path) -> Callable[[], None]:
    import pyvips  # type: ignore[import-not-found]  # noqa: PLC0415 - the peers' environment has it

    pyvips.cache_set_max(0)

    def make() -> None:
        # thumbnail() would decode it whole: it wants twice the size that is left to be resized.
        picture = pyvips.Image.jpegload(
            asked["picture"], access="sequential", shrink=asked["shrink"]
        )
        for each in asked["sizes"]:
            width, height = each["size"]
            picture = picture.thumbnail_image(width, height=height, size="force").copy_memory()
            shown = picture
            if each["window"]:
                left, top, right, bottom = each["window"]
                shown = picture.smartcrop(right - left, bottom - top, interesting="attention")
            for form, options in asked["encoders"]["pyvips"].items():
                shown.write_to_file(str(folder / f"{each['name']}.{form}"), keep="none", **options)

    return make


def main() -> None:
    asked: Asked = json.loads(sys.argv[1])
    folder = Path(asked["folder"])
    make = {"bare Pillow": by_pillow, "pyvips": by_pyvips}[asked["engine"]](asked, folder)
    make()
    make()
    before = time.process_time()
    for _ in range(asked["times"]):
        make()
    spent = time.process_time() - before
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    print(json.dumps({"cpu_seconds": spent, "bytes": sizes}))


if __name__ == "__main__":
    main()
