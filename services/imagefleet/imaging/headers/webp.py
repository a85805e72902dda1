"""WebP: the first chunk holds the size, the others frames and metadata."""

import struct
from dataclasses import replace

from imagefleet.imaging.headers.facts import (
    MOST_FRAMES,
    HeaderFacts,
    corrupt,
    take,
    too_many_parts,
    uint,
    unsupported,
    with_exif,
)
from imagefleet.jobs.images import ImageFormat

_RIFF_HEADER_BYTES = 12
_ANIMATION = 0x02
_ALPHA = 0x10
_METADATA = (b"EXIF", b"XMP ", b"ICCP")
_CHUNK = struct.Struct("<4sI")
_MAX_CHUNKS = 2_000  # a frame is one; the others are a handful


def webp_facts(data: bytes) -> HeaderFacts:
    width, height = _size(data)
    # Of a lossless one no bit is asked: encoders set it as they like. Lossy ones have none here.
    facts = HeaderFacts(ImageFormat.WEBP, width, height, alpha=data[12:16] == b"VP8L")
    if data[12:16] == b"VP8X":
        return _extended(data, facts)
    return facts


def coded(data: bytes) -> bytes | None:
    """The pixels of a still WebP as they are coded, if nothing was lost where they were."""
    at = _RIFF_HEADER_BYTES
    while at + 8 <= len(data):
        name, length = _CHUNK.unpack_from(data, at)
        if name == b"VP8L":
            return data[at + 8 : at + 8 + length]
        if name not in (b"VP8X", *_METADATA):
            return None
        at += 8 + length + length % 2
    return None


def file_of(pixels: bytes) -> bytes:
    """A WebP of these pixels, coded without loss, and nothing else."""
    chunk = _CHUNK.pack(b"VP8L", len(pixels)) + pixels + bytes(len(pixels) % 2)
    return _CHUNK.pack(b"RIFF", len(chunk) + 4) + b"WEBP" + chunk


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
    frames, metadata_bytes = 0, 0
    exif: bytes | None = None
    at, end = _RIFF_HEADER_BYTES, uint(data, 4, 4, "little") + 8
    for _ in range(_MAX_CHUNKS):
        if at >= end or at + 8 > len(data) or frames > MOST_FRAMES:
            break
        name, length = _CHUNK.unpack_from(data, at)
        if name == b"ANMF":
            frames += 1
        elif name in _METADATA:
            metadata_bytes += length
            if name == b"EXIF" and exif is None:
                exif = data[at + 8 : at + 8 + length].removeprefix(b"Exif\0\0")
        at += 8 + length + length % 2
    else:
        raise too_many_parts(ImageFormat.WEBP, f"more than {_MAX_CHUNKS} chunks")
    counted = at >= end or at == len(data) or frames > MOST_FRAMES
    return replace(
        with_exif(facts, exif),
        alpha=animated or bool(uint(data, 20, 1) & _ALPHA),
        animated=animated and (frames > 1 or not counted),
        frames=max(1, frames) if counted or not animated else None,
        metadata_bytes=metadata_bytes,
    )
