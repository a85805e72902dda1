"""The scaled picture becomes the one that a variant shows: cut, sharpened, with ground and mark."""

import base64
from collections.abc import Iterable, Iterator
from functools import lru_cache

from PIL import Image, ImageChops, ImageColor, ImageFilter

from imagefleet.errors import InputRejected, Misconfigured
from imagefleet.imaging.codecs import open_image, reading
from imagefleet.imaging.recipes import MOST_MARK_PIXELS, Fit, VariantSpec, Watermark
from imagefleet.imaging.sizes import Size, fitted, window
from imagefleet.imaging.sources import unpacked
from imagefleet.imaging.steps import resized
from imagefleet.jobs.images import Focal

# What scaling down blurs is about a pixel wide. A wider radius draws haloes, and differences of
# less than the threshold are grain that nobody wants more of.
_RADIUS = 0.8
_MOST_PERCENT = 150
_THRESHOLD = 2
_REACH = 3  # pixels: how far the mask of that radius looks
_OPAQUE = 255
_WHERE_OPAQUE = [0] * _OPAQUE + [_OPAQUE]  # what becomes of each value of alpha
_MARGIN = 0.02  # of the shorter side: between the edges and the mark, and between marks
_MARKS = 4  # that are kept decoded; the variants of a recipe seldom have two


def compose(
    picture: Image.Image, variant: VariantSpec, focal: Focal | None = None, *, scaled: bool = True
) -> Image.Image:
    """What the variant shows of a scaled picture, which stays as it is.

    Sharpened is only what was scaled, and before it gets margins and a mark, which are sharp.
    """
    size, shown = Size(*picture.size), picture
    if variant.fit is Fit.COVER and fitted(size, variant) != size:
        shown = picture.crop(window(size, fitted(size, variant), focal))
    if variant.sharpen and scaled:
        shown = _sharpened(shown, variant.sharpen)
    shown = _on_ground(shown, fitted(size, variant), variant.background)
    return shown if variant.watermark is None else marked(shown, variant.watermark)


def check_marks(marks: Iterable[str]) -> None:
    """Misconfigured where one of these watermarks cannot be read; of WebP only decoding tells."""
    for mark in marks:
        _decoded(mark)


def _sharpened(picture: Image.Image, strength: float) -> Image.Image:
    """Colours alone; and none near transparency, where they would mix with what nobody sees."""
    mask = ImageFilter.UnsharpMask(_RADIUS, round(strength * _MOST_PERCENT), _THRESHOLD)
    if not picture.mode.endswith("A"):
        return picture.filter(mask)
    alpha = picture.getchannel("A")
    opaque = alpha.point(_WHERE_OPAQUE)
    inside = opaque.filter(ImageFilter.BoxBlur(_REACH)).point(_WHERE_OPAQUE)
    colours = picture.convert(picture.mode.removesuffix("A"))
    sharp = Image.composite(colours.filter(mask), colours, inside)
    sharp.putalpha(alpha)
    return sharp


def _on_ground(picture: Image.Image, size: Size, background: str | None) -> Image.Image:
    """In the middle of a canvas; without a colour it is transparent, and white to JPEG."""
    seen_through = picture.mode.endswith("A")
    if picture.size == size and (background is None or not seen_through):
        return picture
    mode = picture.mode.removesuffix("A")
    if background is None:
        ground: tuple[int, ...] = (*(_OPAQUE for _ in mode), 0)
        mode += "A"
    else:
        ground = ImageColor.getrgb(background)
        mode, ground = ("L", ground[:1]) if mode == "L" and len({*ground}) == 1 else ("RGB", ground)
    canvas = Image.new(mode, size, ground)
    at = ((size.width - picture.width) // 2, (size.height - picture.height) // 2)
    over = picture.getchannel("A") if seen_through and background is not None else None
    canvas.paste(picture.convert(mode), at, over)
    return canvas


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
