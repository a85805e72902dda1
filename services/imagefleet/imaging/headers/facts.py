"""What a header can tell, and the two ways in which reading one can end early."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from imagefleet.errors import InputRejected

MOST_FRAMES = 1_000  # what an animation may have; parsers count one more at most, and stop there


class ImageFormat(StrEnum):
    JPEG = "jpeg"
    PNG = "png"
    WEBP = "webp"
    GIF = "gif"
    AVIF = "avif"

    @property
    def mime_type(self) -> str:
        return f"image/{self.value}"

    @property
    def extension(self) -> str:
        return "jpg" if self is ImageFormat.JPEG else self.value


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """What the header says; width and height are as stored, before orientation.

    `width` and `height` are None only where the header goes on beyond the bytes that were given,
    `frames` is None where only the rest of the file can tell, and counted up to MOST_FRAMES + 1.
    `orientation` is EXIF's 1 to 8, 1 where none was seen. `metadata_bytes` is what the header
    declares besides the picture itself.
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
    arithmetic: bool = False  # coded so that nobody can tell where its pixels end (JPEG)
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
    return InputRejected("corrupt", "The image is damaged and cannot be read.", f"{what}: {detail}")


def too_many_parts(image_format: ImageFormat, detail: str) -> InputRejected:
    """Of a file whose header goes on in more pieces than any encoder writes."""
    return InputRejected(
        "too_many_parts",
        "The image is made of more pieces than it may be.",
        f"{image_format.name}: {detail}",
    )


def unsupported(what: str, detail: str, public_message: str | None = None) -> InputRejected:
    sentence = "This is not an image we accept: JPEG, PNG, WebP, GIF or AVIF."
    return InputRejected("unsupported", public_message or sentence, f"{what}: {detail}")
