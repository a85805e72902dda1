"""What a header can tell, how its bytes are read, and the one EXIF field that is obeyed."""

from dataclasses import dataclass, replace
from typing import Literal

from imagefleet.errors import InputRejected
from imagefleet.jobs.images import ImageFormat
from imagefleet.jobs.lifecycle import failure_sentence

MOST_FRAMES = 1_000  # are counted; parsers look for one more, and stop there


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """What the header says; width and height are as stored, before orientation.

    `width` and `height` are None only where the header goes on beyond the bytes that were given,
    `frames` is None where only the rest of the file can tell, and counted up to MOST_FRAMES + 1.
    `orientation` is EXIF's 1 to 8, by the format's own header alone and 1 where none was seen: XMP
    and texts have no say in it, as in no browser. `metadata_bytes` is what the header declares
    besides the picture itself. `alpha` is whether anything may be transparent, and true where the
    header does not tell.
    """

    format: ImageFormat
    width: int | None = None
    height: int | None = None
    orientation: int = 1
    frames: int | None = 1
    animated: bool = False
    progressive: bool = False  # progressive or interlaced: costs its full size in memory
    multi_picture: bool = False  # further pictures behind the first one (MPO)
    gain_map: bool = False
    deep: bool = False  # more than 8 bits a sample
    alpha: bool = False
    samples: float = 3.0  # a pixel, as coded: 1.5 where colours are at half the sides (JPEG, AVIF)
    arithmetic: bool = False  # coded so that nobody can tell where its pixels end (JPEG)
    irregular: bool = False  # something in it could not be read and was passed over
    first_frame: tuple[int, int, int, int] | None = None  # its box, where it leaves margins (GIF)
    metadata_bytes: int = 0

    @property
    def mime_type(self) -> str:
        return self.format.mime_type


class HeadEnded(Exception):
    """The bytes ended before the header did."""


def take(data: bytes, at: int, size: int) -> bytes:
    """Exactly these bytes, or HeadEnded."""
    if at < 0 or at + size > len(data):
        raise HeadEnded
    return data[at : at + size]


def uint(data: bytes, at: int, size: int, order: Literal["big", "little"] = "big") -> int:
    """The unsigned integer at this place, or HeadEnded."""
    return int.from_bytes(take(data, at, size), order)


def corrupt(image_format: ImageFormat | None, detail: str) -> InputRejected:
    what = image_format.name if image_format else "decoder"
    return InputRejected("corrupt", failure_sentence("corrupt"), f"{what}: {detail}")


def too_many_parts(image_format: ImageFormat, detail: str) -> InputRejected:
    """Of a file whose header goes on in more pieces than any encoder writes."""
    sentence = failure_sentence("too_many_parts")
    return InputRejected("too_many_parts", sentence, f"{image_format.name}: {detail}")


def unsupported(what: str, detail: str, public_message: str | None = None) -> InputRejected:
    sentence = "This is not an image we accept: JPEG, PNG, WebP, GIF or AVIF."
    return InputRejected("unsupported", public_message or sentence, f"{what}: {detail}")


_ORIENTATION = 0x0112
_SHORT = 3
_ENTRY_BYTES = 12
_MAX_ENTRIES = 200  # a camera writes about twenty; the field allows 65,535


def with_exif(facts: HeaderFacts, tiff: bytes | None) -> HeaderFacts:
    """These facts, and which way is up by a TIFF block; one that is broken turns nothing."""
    if tiff is None:
        return facts
    try:
        return replace(facts, orientation=_orientation_of(tiff))
    except HeadEnded:
        return replace(facts, irregular=True)


def _orientation_of(tiff: bytes) -> int:
    """1 to 8; 1 where it is absent or out of range; HeadEnded where the block cannot be read."""
    byte_orders: dict[bytes, Literal["big", "little"]] = {b"II": "little", b"MM": "big"}
    order = byte_orders.get(tiff[:2])
    if order is None:
        raise HeadEnded
    directory = uint(tiff, 4, 4, order)
    entries = min(uint(tiff, directory, 2, order), _MAX_ENTRIES)
    for index in range(entries):
        entry = take(tiff, directory + 2 + index * _ENTRY_BYTES, _ENTRY_BYTES)
        if uint(entry, 0, 2, order) == _ORIENTATION and uint(entry, 2, 2, order) == _SHORT:
            value = uint(entry, 8, 2, order)
            return value if 1 <= value <= 8 else 1  # noqa: PLR2004 - EXIF's own range
    return 1
