"""The one EXIF field the pipeline obeys."""

from typing import Literal

from imagefleet.imaging.headers.facts import HeadEnded, take, uint

_ORIENTATION = 0x0112
_SHORT = 3
_ENTRY_BYTES = 12
_MAX_ENTRIES = 200  # a camera writes about twenty; the field allows 65,535


def orientation_of(tiff: bytes) -> int:
    """The orientation in a TIFF block, 1 to 8; 1 where it is absent, broken or out of range."""
    byte_orders: dict[bytes, Literal["big", "little"]] = {b"II": "little", b"MM": "big"}
    order = byte_orders.get(tiff[:2])
    if order is None:
        return 1
    try:
        directory = uint(tiff, 4, 4, order)
        entries = min(uint(tiff, directory, 2, order), _MAX_ENTRIES)
        for index in range(entries):
            entry = take(tiff, directory + 2 + index * _ENTRY_BYTES, _ENTRY_BYTES)
            if uint(entry, 0, 2, order) == _ORIENTATION and uint(entry, 2, 2, order) == _SHORT:
                value = uint(entry, 8, 2, order)
                return value if 1 <= value <= 8 else 1  # noqa: PLR2004 - EXIF's own range
    except HeadEnded:
        return 1
    return 1
