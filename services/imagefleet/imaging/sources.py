"""What a decoded source means: its pixels as ones that can be resampled, and whose they are.

Decoders leave much to who knows their formats: what is transparent may be a colour, in the file's
own samples, or what no frame covers. Browsers show it all alike, and so do we.

Whose a picture is stands in its source's own words, all of its metadata that a recipe may let
through. What was said in EXIF counts, else what was said in XMP. It is somebody else's text, so it
is cut to a length, what does not print is taken out, and EXIF of our own is written around it:
nothing that stood beside it (a place, a camera, an orientation) comes along.

Its pixels may be worth having as they are coded, where no encoder of ours is as good: then they go
into a file of their own, once that was seen to show the same and to hold nothing else (0024).
"""

import html
import math
import re
from contextlib import suppress
from types import MappingProxyType
from typing import Final, NamedTuple

from PIL import ExifTags, Image, ImageChops, ImageMath

from imagefleet.errors import InputRejected
from imagefleet.imaging.codecs import open_image, reading
from imagefleet.imaging.graphics import ICON, carried, hidden, without_hidden
from imagefleet.imaging.headers import png, webp
from imagefleet.imaging.headers.facts import HeaderFacts
from imagefleet.imaging.sizes import Size
from imagefleet.jobs.images import ImageFormat

_RESIZABLE = frozenset({"L", "LA", "RGB", "RGBA", "CMYK"})
_WITH_ALPHA = frozenset({"LA", "RGBA"})
_SRGB_GAMMA = 1 / 2.2  # nearly: what a PNG says of itself that is as screens are
_SAME_GAMMA = 0.02  # moves no colour by more than the eye can tell
_PREFERRED = frozenset({"icc_profile", "srgb"})  # to the gamma, where a PNG says both


def as_stated(picture: Image.Image, facts: HeaderFacts, data: bytes) -> Image.Image:
    """A decoded source in one of the modes L, LA, RGB, RGBA, CMYK, as its file means it."""
    if facts.format is ImageFormat.PNG:
        _scale_transparent_colour(picture, png.bits_a_sample(data))
    if facts.first_frame is not None:
        return _with_margins(picture, facts.first_frame)
    gamma = picture.info.get("gamma", _SRGB_GAMMA)
    if picture.info.keys() & _PREFERRED or abs(gamma - _SRGB_GAMMA) < _SAME_GAMMA:
        return unpacked(picture)
    return _from_gamma(unpacked(picture), gamma)


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


def _from_gamma(picture: Image.Image, gamma: float) -> Image.Image:
    """In sRGB, from samples that are light to the power of gamma."""
    table = [_srgb((sample / 255) ** (1 / max(gamma, _SAME_GAMMA))) for sample in range(256)]
    colours = len(picture.getbands()) - (picture.mode in _WITH_ALPHA)
    as_it_is = list(range(256)) if picture.mode in _WITH_ALPHA else []
    return picture.point(table * colours + as_it_is)


def _srgb(light: float) -> int:
    """The sample for this much light, 0 to 1."""
    curved = 12.92 * light if light <= 0.0031308 else 1.055 * light ** (1 / 2.4) - 0.055  # noqa: PLR2004 - sRGB's own
    return round(255 * curved)


def _eight_bits(picture: Image.Image) -> Image.Image:
    """16-bit grey, scaled: Pillow's own conversion cuts off everything above 255."""
    wide = picture.convert("I")
    grey = wide.point(lambda sample: sample * (1 / 257)).convert("L")
    transparent = picture.info.get("transparency")
    if isinstance(transparent, int):
        opaque = ImageMath.lambda_eval(lambda band: (band["wide"] != transparent) * 255, wide=wide)
        grey.putalpha(opaque.convert("L"))
    return grey


_MOST_PASSED_ON: Final = 1 << 23  # pixels; they are held several times
_MOST_SPARE: Final = 3  # bytes behind the end of a WebP; encoders write one sometimes


class Origin(NamedTuple):
    """What an encoder is told of where a picture comes from."""

    format: ImageFormat
    size: Size
    size_bytes: int
    drawn: bool = False
    credit: bytes = b""
    """EXIF that says whose it is, for every variant."""
    data: bytes = b""

    @property
    def is_icon(self) -> bool:
        """Whether each of its pixels may have been set by hand."""
        return self.drawn and self.size.pixels <= ICON


def own_file(origin: Origin, picture: Image.Image) -> bytes | None:
    """The source's pixels as they are coded, in a file with nothing else; None: not to be had.

    It shows exactly this picture, and hides nothing. Of PNG, and of WebP that lost nothing.
    """
    if math.prod(origin.size) > _MOST_PASSED_ON:
        return None
    with suppress(InputRejected), reading(_MOST_PASSED_ON):
        content = _own_png(origin) if origin.format is ImageFormat.PNG else _own_webp(origin)
        if content is not None and _shows(content, origin.format, picture):
            return content
    return None


def _own_png(origin: Origin) -> bytes | None:
    coded = png.coded(origin.data)
    if coded is not None and coded.palette:
        coded = coded.of_colours(open_image(coded.file()).histogram())
    return None if coded is None else coded.file(origin.credit)


def _own_webp(origin: Origin) -> bytes | None:
    """Up to the last byte that its decoder needs: behind it could be anything."""
    pixels = webp.coded(origin.data)
    if pixels is None or origin.credit:  # which would need a third chunk
        return None
    for _ in range(_MOST_SPARE):
        shorter = webp.file_of(pixels[:-1])
        try:
            with reading(_MOST_PASSED_ON):
                open_image(shorter).load()
        except InputRejected:
            return webp.file_of(pixels)
        pixels = pixels[:-1]
    return None


def _shows(content: bytes, form: ImageFormat, picture: Image.Image) -> bool:
    shown = as_stated(open_image(content), HeaderFacts(form), content)
    if shown.size != picture.size:
        return False
    if shown.mode.endswith("A"):
        mask = hidden(shown)
        several = any(sum(map(bool, band.histogram(mask))) > 1 for band in shown.split())
        if several and shown.tobytes() != carried(shown).tobytes():  # as optimisers fill it
            return False
    pair = (without_hidden(each.convert("RGBA")) for each in (shown, picture))
    return ImageChops.difference(*pair).getbbox(alpha_only=False) is None


_LONGEST: Final = 512  # characters of each
_MOST_XMP: Final = 1 << 18  # bytes that are looked through


def _listed(name: str) -> re.Pattern[bytes]:
    """The first item of a list in XMP, as every program writes it that writes one."""
    opening = rf"<dc:{name}>\s*<rdf:\w{{1,9}}>\s*<rdf:li[^>]{{0,99}}>"
    return re.compile(rf"{opening}([^<]{{1,{8 * _LONGEST}}})</rdf:li>".encode())


_TAGS: Final = MappingProxyType(
    {
        ExifTags.Base.Artist: _listed("creator"),
        ExifTags.Base.Copyright: _listed("rights"),
    }
)


def credit_of(picture: Image.Image) -> bytes:
    """EXIF of the artist and the copyright that an opened picture states; nothing: it has none.

    Call it within reading(): EXIF that cannot be read raises whatever Pillow thinks of it.
    """
    stated = picture.getexif()
    xmp = picture.info.get("xmp")
    packet = xmp[:_MOST_XMP] if isinstance(xmp, bytes) else b""
    said = Image.Exif()
    for tag, listed in _TAGS.items():
        element = listed.search(packet)
        in_xmp = html.unescape(_decoded(element[1])) if element else ""
        if words := _printable(_decoded(stated.get(tag))) or _printable(in_xmp):
            said[tag] = words.encode()  # a text of EXIF is ASCII, or UTF-8 by everybody's habit
    return said.tobytes() if said else b""


def _decoded(value: object) -> str:
    """As Pillow hands it out every byte is a character; whoever wrote them meant UTF-8, or that."""
    raw = value.encode("latin-1", "replace") if isinstance(value, str) else value
    if not isinstance(raw, bytes):
        return ""
    with suppress(UnicodeDecodeError):
        return raw.decode()
    return raw.decode("latin-1")


def _printable(text: str) -> str:
    cut = text[: 2 * _LONGEST]
    words = "".join(char if char.isprintable() else " " for char in cut).split()
    return " ".join(words)[:_LONGEST].rstrip()
