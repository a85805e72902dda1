"""WebP: the first chunk holds the size, the others frames and metadata."""

from dataclasses import replace

from imagefleet.imaging.headers.exif import orientation_of
from imagefleet.imaging.headers.facts import (
    HeadEnded,
    HeaderFacts,
    ImageFormat,
    corrupt,
    take,
    uint,
    unsupported,
)

_RIFF_HEADER_BYTES = 12
_ANIMATION = 0x02
_METADATA = (b"EXIF", b"XMP ", b"ICCP")
_MAX_CHUNKS = 100_000


def webp_facts(data: bytes) -> HeaderFacts:
    width, height = _size(data)
    facts = HeaderFacts(ImageFormat.WEBP, width, height)
    if data[12:16] == b"VP8X":
        return _extended(data, facts)
    return facts


def _size(data: bytes) -> tuple[int, int]:
    kind = take(data, 12, 4)
    if kind == b"VP8X":
        return 1 + uint(data, 24, 3, "little"), 1 + uint(data, 27, 3, "little")
    if kind == b"VP8L":
        if uint(data, 20, 1) != 0x2F:  # noqa: PLR2004 - the format's signature
            raise corrupt(ImageFormat.WEBP, "no lossless signature")
        bits = uint(data, 21, 4, "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        if take(data, 23, 3) != b"\x9d\x01\x2a":
            raise corrupt(ImageFormat.WEBP, "no key frame")
        return uint(data, 26, 2, "little") & 0x3FFF, uint(data, 28, 2, "little") & 0x3FFF
    raise unsupported(ImageFormat.WEBP, "unknown first chunk")


def _extended(data: bytes, facts: HeaderFacts) -> HeaderFacts:
    animated = bool(uint(data, 20, 1) & _ANIMATION)
    frames, metadata_bytes, orientation = 0, 0, 1
    at = _RIFF_HEADER_BYTES
    for _ in range(_MAX_CHUNKS):
        try:
            name, length = take(data, at, 4), uint(data, at + 4, 4, "little")
        except HeadEnded:
            break
        frames += name == b"ANMF"
        metadata_bytes += length if name in _METADATA else 0
        if name == b"EXIF":
            orientation = orientation_of(data[at + 8 : at + 8 + length].removeprefix(b"Exif\0\0"))
        at += 8 + length + length % 2
    else:
        raise corrupt(ImageFormat.WEBP, "too many chunks")
    complete = at >= uint(data, 4, 4, "little") + 8 or at == len(data)
    return replace(
        facts,
        orientation=orientation,
        animated=animated and (frames > 1 or not complete),
        frames=max(1, frames) if complete or not animated else None,
        metadata_bytes=metadata_bytes,
    )
