"""A clean picture to bytes: every field of the encoder explicit, nothing left to the file."""

import io

from PIL import Image

from imagefleet.imaging.caveats import Caveat
from imagefleet.imaging.geometry import Size, cropped
from imagefleet.imaging.headers.facts import ImageFormat
from imagefleet.imaging.recipes import ENCODERS, Fit, VariantSpec

_WHITE: dict[str, float | tuple[float, ...]] = {"L": 255, "RGB": (255, 255, 255)}
_TRANSPARENT_WHITE = (255, 255, 255, 0)

# What may carry somebody's words, place or profile. Named and emptied, as several encoders fall
# back on the picture's own info where the caller is silent.
_NOTHING: dict[str, bytes] = {"exif": b"", "xmp": b"", "icc_profile": b"", "comment": b""}


def fit(picture: Image.Image, variant: VariantSpec) -> Image.Image:
    """The scaled picture, cut to the box or laid into the middle of it, as the variant asks."""
    size = Size(*picture.size)
    match variant.fit:
        case Fit.INSIDE:
            return picture
        case Fit.COVER:
            return _cut(picture, cropped(size, variant))
        case Fit.CONTAIN:
            return _lay_into(picture, Size(variant.width, variant.height))


def flatten(
    picture: Image.Image, image_format: ImageFormat
) -> tuple[Image.Image, tuple[Caveat, ...]]:
    """The picture on white where the format knows no transparency."""
    if image_format is not ImageFormat.JPEG or not picture.mode.endswith("A"):
        return picture, ()
    mode = picture.mode.removesuffix("A")
    paper = Image.new(mode, picture.size, _WHITE[mode])
    paper.paste(picture.convert(mode), mask=picture.getchannel("A"))
    return paper, (Caveat.ALPHA_FLATTENED,)


def encode(picture: Image.Image, image_format: ImageFormat, quality: int) -> bytes:
    """The same picture and settings give the same bytes, as long as the fingerprint is the same."""
    clean = picture.convert("RGBA") if picture.mode == "LA" else picture
    out = io.BytesIO()
    options = ENCODERS[image_format]
    clean.save(out, format=image_format.name, quality=quality, **options, **_NOTHING)
    return out.getvalue()


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
