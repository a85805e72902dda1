"""How far two pictures are from each other to whoever looks at them, in levels of 255."""

from __future__ import annotations

import statistics
from typing import Final, NamedTuple

from PIL import Image, ImageChops, ImageStat

BLOCK: Final = 8  # pixels a side


class Distance(NamedTuple):
    """Of colours as they are seen: under full transparency there are none."""

    mean: float
    worst: float
    """Of the block that differs most, in the mean over its pixels."""


def distance(one: Image.Image, other: Image.Image) -> Distance:
    """Of two pictures of one size."""
    pairs = zip(_seen(one), _seen(other), strict=True)
    apart = [ImageChops.difference(*pair) for pair in pairs]
    if apart[3].getbbox() is None:
        del apart[3]  # as transparent as each other, which would only dilute the mean
    blocks = zip(*(band.reduce(BLOCK).tobytes() for band in apart), strict=True)
    return Distance(
        statistics.fmean(ImageStat.Stat(band).mean[0] for band in apart),
        max(statistics.fmean(block) for block in blocks),
    )


def _seen(picture: Image.Image) -> tuple[Image.Image, ...]:
    return picture.convert("RGBA").convert("RGBa").split()
