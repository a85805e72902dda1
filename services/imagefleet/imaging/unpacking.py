"""What decoders hand out, as pictures that can be resampled: eight bits a sample, alpha as alpha.

Decoders leave much to who knows their formats: what is transparent may be a colour, in the file's
own samples, or what no frame covers. Browsers show it all alike, and so do we.
"""

from PIL import Image, ImageMath

from imagefleet.imaging.headers.facts import HeaderFacts
from imagefleet.imaging.headers.png import bits_a_sample
from imagefleet.jobs.images import ImageFormat

_RESIZABLE = frozenset({"L", "LA", "RGB", "RGBA", "CMYK"})
_WITH_ALPHA = frozenset({"LA", "RGBA"})


def as_stated(picture: Image.Image, facts: HeaderFacts, data: bytes) -> Image.Image:
    """A decoded source in one of the modes L, LA, RGB, RGBA, CMYK, as its file means it."""
    if facts.format is ImageFormat.PNG:
        _scale_transparent_colour(picture, bits_a_sample(data))
    if facts.first_frame is not None:
        return _with_margins(picture, facts.first_frame)
    return unpacked(picture)


def unpacked(picture: Image.Image) -> Image.Image:
    """The picture in eight bits a sample, as a mode that can be resampled."""
    if picture.mode.startswith("I"):
        return _eight_bits(picture)
    if picture.has_transparency_data and picture.mode not in _WITH_ALPHA:
        return picture.convert("LA" if picture.mode == "L" else "RGBA")
    if picture.mode == "1":
        return picture.convert("L")
    return picture if picture.mode in _RESIZABLE else picture.convert("RGB")


def _scale_transparent_colour(picture: Image.Image, bits: int) -> None:
    """Pillow leaves it in the file's own samples where it brings the pixels to eight bits."""
    stated = picture.info.get("transparency")
    if picture.mode == "L" and isinstance(stated, int):
        most = 2**bits - 1
        picture.info["transparency"] = (stated & most) * 255 // most
    elif bits == 16 and isinstance(stated, tuple):  # noqa: PLR2004 - bits a sample
        picture.info["transparency"] = tuple(sample >> 8 for sample in stated)


def _with_margins(picture: Image.Image, frame: tuple[int, int, int, int]) -> Image.Image:
    """Transparent around the first frame, where Pillow fills the screen with the first colour."""
    canvas = Image.new("RGBA", picture.size)
    canvas.paste(picture.crop(frame).convert("RGBA"), frame[:2])
    return canvas


def _eight_bits(picture: Image.Image) -> Image.Image:
    """16-bit grey, scaled: Pillow's own conversion cuts off everything above 255."""
    wide = picture.convert("I")
    grey = wide.point(lambda sample: sample * (1 / 257)).convert("L")
    transparent = picture.info.get("transparency")
    if isinstance(transparent, int):
        opaque = ImageMath.lambda_eval(lambda band: (band["wide"] != transparent) * 255, wide=wide)
        grey.putalpha(opaque.convert("L"))
    return grey
