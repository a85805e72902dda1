"""The scaled picture becomes the one that a variant shows: cut, sharpened, with ground and mark."""

from PIL import Image, ImageColor, ImageFilter

from imagefleet.imaging.recipes import Fit, VariantSpec
from imagefleet.imaging.sizes import Size, fitted, window
from imagefleet.imaging.watermark import marked
from imagefleet.jobs.images import Focal

# What scaling down blurs is about a pixel wide. A wider radius draws haloes, and differences of
# less than the threshold are grain that nobody wants more of.
_RADIUS = 0.8
_MOST_PERCENT = 150
_THRESHOLD = 2
_REACH = 3  # pixels: how far the mask of that radius looks
_OPAQUE = 255


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


def _sharpened(picture: Image.Image, strength: float) -> Image.Image:
    """Colours alone; and none near transparency, where they would mix with what nobody sees."""
    mask = ImageFilter.UnsharpMask(_RADIUS, round(strength * _MOST_PERCENT), _THRESHOLD)
    if not picture.mode.endswith("A"):
        return picture.filter(mask)
    alpha = picture.getchannel("A")
    opaque = alpha.point(lambda value: _OPAQUE * (value == _OPAQUE))
    inside = opaque.filter(ImageFilter.BoxBlur(_REACH)).point(
        lambda value: _OPAQUE * (value == _OPAQUE)
    )
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
