"""Beginnings of images that are all pieces and no picture: as many steps as a parser would take."""

from __future__ import annotations

import struct

from imagefleet.imaging.sniff import HEAD_BYTES
from tests.support.images import gif_of_frames, png_chunk, png_claiming

_AVIF = b"\0\0\0\x10ftypavif\0\0\0\0"
_PROPERTIES = b"\0\3\xff\xf0meta\0\0\0\0\0\3\xff\xe0iprp\0\3\xff\xd0ipco"
_ISPE = b"\0\0\0\x14ispe\0\0\0\0\0\0\0\1\0\0\0\1"
_WEBP = b"RIFF\xff\xff\xff\0WEBPVP8X\x0a\0\0\0\x02\0\0\0" + bytes(6)
_JPEG = b"\xff\xd8\xff\xe0\0\2"
_ENTRY = struct.pack("<HHII", 0x0111, 3, 1, 0)  # of EXIF, and not the one that is looked for


def _exif(entries: int) -> bytes:
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", entries) + _ENTRY * entries


def _segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload


def _head(start: bytes, again: bytes) -> bytes:
    return (start + again * (HEAD_BYTES // len(again) + 1))[:HEAD_BYTES]


def _webp_chunk(name: bytes, payload: bytes) -> bytes:
    return name + struct.pack("<I", len(payload)) + payload


HEADS = {
    "jpeg segments": _head(b"\xff\xd8", b"\xff\xfe\x00\x02"),
    "jpeg metadata": _head(b"\xff\xd8", _segment(0xE1, _exif(1))),
    "jpeg exif": _head(b"\xff\xd8", _segment(0xE1, _exif(5_000))),
    "jpeg markers": _head(_JPEG, b"\xff\xd0"),
    "jpeg stuffing": _head(_JPEG, b"\xff\x00"),
    "jpeg fill": _head(_JPEG, b"\xff"),
    "png chunks": _head(png_claiming(9, 9)[:33], png_chunk(b"teXt", b"")),
    "png pixels": _head(png_claiming(9, 9)[:33], png_chunk(b"IDAT", b"")),
    "png exif": _head(png_claiming(9, 9)[:33], png_chunk(b"eXIf", _exif(1)[6:])),
    "png frames": _head(png_claiming(9, 9)[:33], png_chunk(b"acTL", b"\0\0\0\1")),
    "webp chunks": _head(_WEBP, b"junk\0\0\0\0"),
    "webp frames": _head(_WEBP, b"ANMF\0\0\0\0"),
    "webp exif": _head(_WEBP, _webp_chunk(b"EXIF", _exif(1)[6:])),
    "gif blocks": _head(gif_of_frames(1)[:-3], b"\x01\x01"),
    "gif extensions": _head(gif_of_frames(1)[:-1], b"\x21\xfe\0"),
    "gif frames": _head(gif_of_frames(0)[:-1], gif_of_frames(2)[-16:-1]),
    "avif boxes": _head(_AVIF, b"\0\0\0\x08skip"),
    "avif items": _head(_AVIF + _PROPERTIES, _ISPE),
    "avif brands": _head(b"\0\0\xff\xffftypavif\0\0\0\0", b"abcd"),
}
