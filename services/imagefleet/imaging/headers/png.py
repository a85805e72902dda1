"""PNG: the header chunk, and what stands between it and the pixels."""

import zlib
from dataclasses import replace

from imagefleet.imaging.headers.exif import orientation_of
from imagefleet.imaging.headers.facts import (
    HeaderFacts,
    ImageFormat,
    corrupt,
    take,
    uint,
)

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER_BYTES = 13
_CHUNK_OVERHEAD_BYTES = 12  # length, name, checksum
_MAX_SIDE = 2**31 - 1
# An encoder writes pixels in chunks of 4 KB or more; Pillow pays for every chunk in Python.
_MAX_CHUNKS = 100_000


def png_facts(data: bytes) -> HeaderFacts:
    return _chunks(data, _header(data))


def _header(data: bytes) -> HeaderFacts:
    at = len(SIGNATURE)
    if take(data, at + 4, 4) != b"IHDR" or uint(data, at, 4) != _HEADER_BYTES:
        raise corrupt(ImageFormat.PNG, "the first chunk is not IHDR")
    width, height = uint(data, at + 8, 4), uint(data, at + 12, 4)
    if max(width, height) > _MAX_SIDE:
        raise corrupt(ImageFormat.PNG, "impossible dimensions")
    return HeaderFacts(
        ImageFormat.PNG,
        width,
        height,
        progressive=uint(data, at + 20, 1) != 0,
        deep=uint(data, at + 16, 1) == 16,  # noqa: PLR2004 - bits a sample
    )


def _chunks(data: bytes, facts: HeaderFacts) -> HeaderFacts:
    at = len(SIGNATURE) + _CHUNK_OVERHEAD_BYTES + _HEADER_BYTES
    before_pixels = True
    for _ in range(_MAX_CHUNKS):
        if at + 8 > len(data):
            return facts
        length, name = uint(data, at, 4), take(data, at + 4, 4)
        before_pixels = before_pixels and name != b"IDAT"
        if name == b"IEND":
            return facts
        if name == b"IDAT" and _damaged(data, at, length):
            raise corrupt(ImageFormat.PNG, "wrong checksum of pixels")
        if before_pixels:
            facts = _ancillary(data[at + 8 : at + 8 + length], name, length, facts)
        at += _CHUNK_OVERHEAD_BYTES + length
    raise corrupt(ImageFormat.PNG, "too many chunks")


def _damaged(data: bytes, at: int, length: int) -> bool:
    """Whether a chunk that is wholly here was changed. Pillow checks all of them but the pixels."""
    end = at + 8 + length
    if end + 4 > len(data):
        return False
    return zlib.crc32(memoryview(data)[at + 4 : end]) != uint(data, end, 4)


def _ancillary(payload: bytes, name: bytes, length: int, facts: HeaderFacts) -> HeaderFacts:
    facts = replace(facts, metadata_bytes=facts.metadata_bytes + length)
    if name == b"eXIf":
        return replace(facts, orientation=orientation_of(payload))
    if name == b"acTL" and len(payload) >= 4:  # noqa: PLR2004 - the frame count
        frames = max(1, uint(payload, 0, 4))
        return replace(facts, frames=frames, animated=frames > 1)
    return facts
