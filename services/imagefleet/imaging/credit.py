"""Whose a picture is, in its source's own words: all of its metadata that a recipe may let through.

What was said in EXIF counts, else what was said in XMP. It is somebody else's text, so it is cut to
a length, what does not print is taken out, and EXIF of our own is written around it: nothing that
stood beside it (a place, a camera, an orientation) comes along.
"""

import html
import re
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from PIL import ExifTags, Image

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
        found = listed.search(packet)
        in_xmp = html.unescape(_decoded(found[1])) if found else ""
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
