"""The scaled picture becomes the one that a variant shows: cut to its box, or laid into it."""

from PIL import Image

from imagefleet.imaging.recipes import Fit, VariantSpec
from imagefleet.imaging.sizes import Size, cropped
from imagefleet.jobs.images import Focal

_TRANSPARENT_WHITE = (255, 255, 255, 0)


def compose(picture: Image.Image, variant: VariantSpec, focal: Focal | None = None) -> Image.Image:
    """The scaled picture, cut to the box or laid into the middle of it, as the variant asks."""
    size = Size(*picture.size)
    match variant.fit:
        case Fit.INSIDE:
            return picture
        case Fit.COVER:
            return _cut(picture, cropped(size, variant))
        case Fit.CONTAIN | Fit.PAD:
            return _lay_into(picture, Size(variant.width, variant.height))


def _cut(picture: Image.Image, size: Size) -> Image.Image:
    if picture.size == size:
        return picture
    left, top = (picture.width - size.width) // 2, (picture.height - size.height) // 2
    return picture.crop((left, top, left + size.width, top + size.height))


def _lay_into(picture: Image.Image, box: Size) -> Image.Image:
    """Margins are transparent, and white where transparency is flattened later."""
    if picture.size == box:
        return picture
    canvas = Image.new("RGBA", box, _TRANSPARENT_WHITE)
    left, top = (box.width - picture.width) // 2, (box.height - picture.height) // 2
    canvas.paste(picture.convert("RGBA"), (left, top))
    return canvas
