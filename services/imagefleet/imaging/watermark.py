"""Somebody's mark, laid over a variant."""

import base64
from collections.abc import Iterator
from functools import lru_cache

from PIL import Image, ImageChops

from imagefleet.errors import InputRejected, Misconfigured
from imagefleet.imaging.codecs import open_image, reading
from imagefleet.imaging.recipes import MOST_MARK_PIXELS, Watermark
from imagefleet.imaging.sizes import Size
from imagefleet.imaging.steps import resized
from imagefleet.imaging.unpacking import unpacked

_MARGIN = 0.02  # of the shorter side: between the edges and the mark, and between marks
_MARKS = 4  # that are kept decoded; the variants of a recipe seldom have two


def marked(picture: Image.Image, watermark: Watermark) -> Image.Image:
    """The picture with the mark over it; a grey one has colours afterwards if the mark has."""
    mark = _decoded(watermark.image)
    mark = resized(mark, _size(Size(*picture.size), Size(*mark.size), watermark.scale))
    mark.putalpha(mark.getchannel("A").point(lambda value: round(value * watermark.opacity)))
    mode = picture.mode if mark.mode == "LA" else picture.mode.replace("L", "RGB")
    mark, shown = mark.convert("RGBA"), picture.convert("RGBA")
    for place in _places(Size(*picture.size), Size(*mark.size), watermark):
        shown.alpha_composite(mark, place)
    return shown if shown.mode == mode else shown.convert(mode)


@lru_cache(_MARKS)
def _decoded(image: str) -> Image.Image:
    """The mark, as LA or RGBA. What cannot be read is the recipe's fault, not the picture's."""
    try:
        with reading(MOST_MARK_PIXELS):
            mark = unpacked(open_image(base64.b64decode(image, validate=True))).convert("RGBA")
    except InputRejected as fault:
        message = f"a watermark that cannot be read: {fault.detail}"
        raise Misconfigured(message) from fault
    mark.info.clear()
    grey = mark.convert("LA")
    coloured = ImageChops.difference(mark, grey.convert("RGBA")).convert("RGB").getbbox()
    return mark if coloured else grey


def _size(picture: Size, mark: Size, scale: float) -> Size:
    """As wide as its share of the picture; less where it would be higher than the picture."""
    width = min(scale * picture.width, picture.height * mark.width / mark.height, picture.width)
    height = min(width * mark.height / mark.width, picture.height)
    return Size(max(1, round(width)), max(1, round(height)))


def _places(picture: Size, mark: Size, watermark: Watermark) -> Iterator[tuple[int, int]]:
    margin = round(min(picture) * _MARGIN)
    if watermark.tile:
        for top in range(margin, picture.height, mark.height + margin):
            for left in range(margin, picture.width, mark.width + margin):
                yield left, top
    else:
        across = ("left" in watermark.place, "right" in watermark.place)
        down = ("top" in watermark.place, "bottom" in watermark.place)
        yield (
            _along(picture.width - mark.width, margin, *across),
            _along(picture.height - mark.height, margin, *down),
        )


def _along(room: int, margin: int, first: bool, last: bool) -> int:  # noqa: FBT001 - both, in order
    """Where the mark begins on one side; in the middle where it is too large for margins."""
    if first == last or room < 2 * margin:
        return room // 2
    return margin if first else room - margin
