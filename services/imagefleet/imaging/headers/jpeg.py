"""JPEG: a walk over its markers, for the header's facts and for counting scans.

Both walks read markers the way libjpeg does: fill bytes and junk between segments are skipped, and
inside a scan only a marker that is neither stuffing nor a restart ends it. Counting the two bytes
of SOS anywhere in the file would be cheaper and wrong: thumbnails, gain maps and the videos that
phones append contain them too.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from imagefleet.imaging.headers.exif import orientation_of
from imagefleet.imaging.headers.facts import (
    HeadEnded,
    HeaderFacts,
    ImageFormat,
    corrupt,
    uint,
    unsupported,
)

_SOI = b"\xff\xd8"
_EOI = 0xD9
_SOS = 0xDA
_COM = 0xFE
_APP = range(0xE0, 0xF0)
_STANDALONE = frozenset({0x01, 0xD8, *range(0xD0, 0xD8)})  # TEM, SOI, RST0..7: no length follows
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # SOF0..15 without DHT, JPG, DAC
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})

_NEXT_MARKER = re.compile(rb"\xff([\x01-\xfe])")
_END_OF_SCAN = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")

# A profile takes at most 255 segments and extended XMP some hundreds; Pillow pays per segment.
_MAX_SEGMENTS = 10_000
# Pillow skips junk between segments byte by byte, in Python.
_MAX_JUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Segment:
    """One marker; `start` and `end` enclose its payload, which may reach beyond the data."""

    marker: int
    start: int
    end: int


def segments(data: bytes) -> Iterator[Segment]:
    """Every marker of the first picture up to its end; HeadEnded where the data ends first."""
    at, pattern, junk_bytes = len(_SOI), _NEXT_MARKER, 0
    for _ in range(_MAX_SEGMENTS):
        found = pattern.search(data, at)
        if found is None:
            raise HeadEnded
        junk_bytes += found.start() - at if pattern is _NEXT_MARKER else 0
        if junk_bytes > _MAX_JUNK_BYTES:
            raise corrupt(ImageFormat.JPEG, "junk between segments")
        marker, at, pattern = found[1][0], found.end(), _NEXT_MARKER
        if marker in _STANDALONE:
            continue
        if marker == _EOI:
            yield Segment(marker, at, at)
            return
        length = uint(data, at, 2)
        if length < 2:  # noqa: PLR2004 - the length counts its own two bytes
            raise corrupt(ImageFormat.JPEG, "impossible segment length")
        yield Segment(marker, at + 2, at + length)
        at += length
        if marker == _SOS:
            pattern = _END_OF_SCAN
    raise corrupt(ImageFormat.JPEG, "too many segments")


def jpeg_facts(data: bytes) -> HeaderFacts:
    facts = HeaderFacts(ImageFormat.JPEG)
    for segment in segments(data):
        if segment.marker in _FRAMES:
            return _frame(data, segment, facts)
        if segment.marker in (_SOS, _EOI):
            break
        if segment.marker in _APP or segment.marker == _COM:
            facts = _application(data[segment.start : segment.end], segment, facts)
    raise corrupt(ImageFormat.JPEG, "no frame header")


def count_scans(data: bytes, stop_after: int = 1_000) -> int:
    """How many scans the first picture of a JPEG has, counted no further than `stop_after` + 1.

    A decoder passes over the whole picture for each, so a few kilobytes of scans cost minutes.
    0 for anything that is no JPEG. A file cut short is the decoder's to judge, not this one's.
    """
    scans = 0
    if not data.startswith(_SOI):
        return scans
    try:
        for segment in segments(data):
            scans += segment.marker == _SOS
            if scans > stop_after:
                break
    except HeadEnded:
        pass
    return scans


def _frame(data: bytes, segment: Segment, facts: HeaderFacts) -> HeaderFacts:
    precision_bits = uint(data, segment.start, 1)
    if precision_bits != 8:  # noqa: PLR2004
        raise unsupported(ImageFormat.JPEG, f"{precision_bits} bits a sample")
    return replace(
        facts,
        width=uint(data, segment.start + 3, 2),
        height=uint(data, segment.start + 1, 2),
        progressive=segment.marker in _PROGRESSIVE,
    )


def _application(payload: bytes, segment: Segment, facts: HeaderFacts) -> HeaderFacts:
    facts = replace(facts, metadata_bytes=facts.metadata_bytes + segment.end - segment.start)
    if payload.startswith(b"Exif\0\0"):
        return replace(facts, orientation=orientation_of(payload[6:]))
    if payload.startswith(b"MPF\0"):
        return replace(facts, multi_picture=True)
    if payload.startswith(b"urn:iso:std:iso:ts:21496:-1\0") or b"hdrgm:Version" in payload:
        return replace(facts, gain_map=True)
    return facts
