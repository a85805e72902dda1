"""JPEG: a walk over its markers, for the header's facts and for counting scans.

Both walks read markers the way libjpeg does: fill bytes and junk between segments are skipped, and
inside a scan only a marker that is neither stuffing nor a restart ends it. Counting the two bytes
of SOS anywhere in the file would be cheaper and wrong: thumbnails, gain maps and the videos that
phones append contain them too.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from imagefleet.imaging.headers.facts import (
    HeadEnded,
    HeaderFacts,
    corrupt,
    take,
    too_many_parts,
    uint,
    unsupported,
    with_exif,
)
from imagefleet.jobs.images import ImageFormat

_SOI = b"\xff\xd8"
_EOI = 0xD9
_EOI_MARKER = b"\xff\xd9"
_SOS = 0xDA
_DRI = 0xDD
_COM = 0xFE
_APP = range(0xE0, 0xF0)
_STANDALONE = frozenset({0x01, 0xD8, *range(0xD0, 0xD8)})  # TEM, SOI, RST0..7: no length follows
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # SOF0..15 without DHT, JPG, DAC
_ARITHMETIC = frozenset({0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_COLOUR = frozenset({0xE0, 0xEE})  # JFIF and Adobe: what the channels mean
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})

_GAIN_MAP = b"urn:iso:std:iso:ts:21496:-1\0"
_APPLES_GAIN_MAP = b"urn:com:apple:photo:2020:aux:hdrgainmap"  # said by the second picture alone

_NEXT_MARKER = re.compile(rb"\xff([\x01-\xfe])")
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
_TWO_RESTARTS = re.compile(rb"(?:\xff[\xd0-\xd7]){2}")
_END_OF_SCAN = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")
# Where a decoder stops taking bytes for pixels: at any marker, or the fill bytes before it. What
# stands before the first of those keeps a search through nothing but them from starting at each.
_NO_PIXELS = re.compile(rb"(?<!\xff)\xff++[\x01-\xfe]")

# Before the frame: a profile takes 255 segments at most, extended XMP as many where it has all the
# metadata a picture may have (64 KiB each), and the rest is a dozen.
_MAX_HEADER_SEGMENTS = 1_000
# In all, scans and their tables included; Pillow pays per segment.
_MAX_SEGMENTS = 10_000
# Pillow skips junk between segments byte by byte, in Python.
_MAX_JUNK_BYTES = 65_536
# That are filled: as many as the largest picture has blocks, and a filling each is 64 MB.
_MAX_FILLED = 1_000_000
# More than a decoder takes for one group of blocks, ten of 64 numbers with 31 bits each: the one
# that begins with the picture's last bits may be black with any bits behind them; the next is not.
_LONGEST_FILLING = 4_096
_SHORTEST_FILLING, _ALL_FILLINGS = 64, 32 * 2**20


class Segment(NamedTuple):
    """One marker; `start` and `end` enclose its payload, which may reach beyond the data."""

    marker: int
    start: int
    end: int

    @property
    def at(self) -> int:
        """Where the marker itself is."""
        return self.start - (2 if self.marker == _EOI else 4)


def segments(data: bytes, most: int = _MAX_SEGMENTS) -> Iterator[Segment]:
    """Every marker of the first picture up to its end; HeadEnded where the data ends first."""
    at, in_scan, junk_bytes = len(_SOI), False, 0
    for _ in range(most):
        match = _end_of_scan(data, at) if in_scan else _NEXT_MARKER.search(data, at)
        if match is None:
            raise HeadEnded
        junk_bytes += 0 if in_scan else match.start() - at
        if junk_bytes > _MAX_JUNK_BYTES:
            raise corrupt(ImageFormat.JPEG, "junk between segments")
        marker, at, in_scan = match[1][0], match.end(), False
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
        in_scan = marker == _SOS
    raise too_many_parts(ImageFormat.JPEG, f"more than {most} segments")


@lru_cache
def _end_of_scan(data: bytes, at: int) -> re.Match[bytes] | None:
    """Nearly all of a photo is one scan, and its markers are walked over four times."""
    return _END_OF_SCAN.search(data, at)


def jpeg_facts(data: bytes) -> HeaderFacts:
    exif: bytes | None = None
    multi_picture, gain_map, metadata_bytes = False, False, 0
    for marker, start, end in segments(data, _MAX_HEADER_SEGMENTS):
        if marker in _FRAMES:
            facts = HeaderFacts(
                ImageFormat.JPEG,
                *_frame_size(data, start),
                progressive=marker in _PROGRESSIVE,
                arithmetic=marker in _ARITHMETIC,
                samples=_samples(data, start),
                multi_picture=multi_picture,
                gain_map=gain_map or (multi_picture and _APPLES_GAIN_MAP in data),
                metadata_bytes=metadata_bytes,
            )
            return with_exif(facts, exif)
        if marker in (_SOS, _EOI):
            break
        if marker in _APP or marker == _COM:
            metadata_bytes += end - start
            payload = data[start:end]
            if payload.startswith(b"Exif\0\0"):
                exif = payload[6:] if exif is None else exif
            elif payload.startswith(b"MPF\0"):
                multi_picture = True
            elif payload.startswith(_GAIN_MAP) or b"hdrgm:Version" in payload:
                gain_map = True
    raise corrupt(ImageFormat.JPEG, "no frame header")


def count_scans(data: bytes, stop_after: int = 1_000) -> int:
    """How many scans the first picture of a JPEG has, counted no further than `stop_after` + 1.

    A decoder passes over the whole picture for each, so a few kilobytes of scans cost minutes.
    0 for anything that is no JPEG. A file cut short is the decoder's to judge, not this one's.
    """
    scans = 0
    if not data.startswith(_SOI):
        return scans
    with suppress(HeadEnded):
        for segment in segments(data):
            scans += segment.marker == _SOS
            if scans > stop_after:
                break
    return scans


def ended(data: bytes) -> bytes:
    """A JPEG as it is, or where it was cut short with an end behind what is there of it."""
    try:
        for segment in segments(data):
            if segment.end > len(data):
                return data[: segment.at] + _EOI_MARKER
    except HeadEnded:
        return data + _EOI_MARKER
    return data


def overfilled(data: bytes) -> bytes | None:
    """The first picture with bytes of no meaning behind every piece of its coded pixels.

    A decoder that has had all its pixels passes over them to the next marker. One that has not
    takes them for pixels, and shows something else than it does without them. A piece ends at any
    marker or with the data, however irregular that is: a decoder that wants no more pixels does not
    look at what follows. None where the picture is coded arithmetically: then it may rightly read
    on. Refused are pieces without number.
    """
    filling = _filling(data)
    out, coded_from, room = bytearray(_SOI), 0, _MAX_FILLED

    def fill(piece: bytes) -> None:
        nonlocal out, room
        filled, markers = _NO_PIXELS.subn(lambda marker: filling + marker[0], piece, count=room)
        room -= markers
        if not room:
            raise too_many_parts(ImageFormat.JPEG, f"{_MAX_FILLED} restart markers")
        # Fill bytes of the marker that follows would make one of the filling's first byte.
        out += filled.rstrip(b"\xff") + filling

    try:
        for segment in segments(data):
            if segment.marker in _ARITHMETIC:
                return None
            if coded_from:
                fill(data[coded_from : segment.at])
            # The pictures behind this one are told of in the others, by places that are wrong now.
            if segment.marker not in _APP or segment.marker in _COLOUR:
                out += data[segment.at : segment.end]
            coded_from = segment.end if segment.marker == _SOS else 0
    except HeadEnded:
        if coded_from:
            fill(data[coded_from:])
        out += _EOI_MARKER
    return bytes(out)


def _filling(data: bytes) -> bytes:
    """Long where there are few pieces; nobody knows it before the picture is there."""
    markers = data.count(b"\xff") - data.count(b"\xff\x00")
    size_bytes = max(_SHORTEST_FILLING, min(_LONGEST_FILLING, _ALL_FILLINGS // (markers + 1)))
    return hashlib.shake_128(data).digest(size_bytes).replace(b"\xff", b"\x00")


def ends_in_many_places(data: bytes) -> bool:
    """Whether a JPEG may lack pixels though its last one is there.

    It may where there are restart markers, as every piece between two ends by itself, and where the
    channels do not come together. (What a progressive one refines later is no pixel of its own.)
    """
    channels = 0
    with suppress(HeadEnded):
        for segment in segments(data):
            if segment.marker in _FRAMES:
                channels = uint(data, segment.start + 5, 1)
            elif segment.marker == _DRI and uint(data, segment.start, 2):
                return True
            elif segment.marker == _SOS:
                own = uint(data, segment.start, 1)
                if own < channels and uint(data, segment.start + 1 + 2 * own, 1) == 0:
                    return True
    return False


def shares_of_pieces(data: bytes) -> tuple[float, float]:
    """How much of a JPEG lacks restart markers, and how much the longest piece between two codes.

    All may lack them where there is nothing between two; and all is one piece without any. A
    decoder fills with grey what it finds nothing for, and begins anew behind the next marker: so a
    hole in the middle of a picture does not show at its end.
    """
    frame, interval, units, coded_from, longest = b"", 0, 0, 0, 0.0
    with suppress(HeadEnded):  # the decoder's to judge
        for segment in segments(data):
            if units:
                longest = max(longest, interval / units)
                if lacking := _share_lacking(data, coded_from, segment.at, units, interval):
                    return lacking, longest
            units = 0
            if segment.marker in _FRAMES:
                frame = b"" if segment.marker in _ARITHMETIC else data[segment.start : segment.end]
            elif segment.marker == _DRI:
                interval = uint(data, segment.start, 2)
            elif segment.marker == _SOS and frame and interval:
                units = _units(frame, data[segment.start : segment.end])
                coded_from = segment.end
    return 0, longest or 1


def _share_lacking(data: bytes, start: int, end: int, units: int, interval: int) -> float:
    if _RESTART.match(data, start, end) or _TWO_RESTARTS.search(data, start, end):
        return 1
    pieces = 1 + sum(1 for _ in _RESTART.finditer(data, start, end))
    return max(0, 1 - pieces * interval / units)


def _units(frame: bytes, scan: bytes) -> int:
    """How many units a scan codes: blocks of one channel, or groups of those of several."""
    height, width = uint(frame, 1, 2), uint(frame, 3, 2)
    channels = [take(frame, at, 3) for at in range(6, 6 + 3 * uint(frame, 5, 1), 3)]
    factors = {name: (each >> 4, each & 15) for name, each, _ in channels}
    across = max((each for each, _ in factors.values()), default=0)
    down = max((each for _, each in factors.values()), default=0)
    wide = high = 1  # of a group, in the finest channel's blocks
    if uint(scan, 0, 1) > 1:
        wide, high = across, down
    else:
        own = factors.get(uint(scan, 1, 1), (0, 0))
        width, height = _share(width, own[0], across), _share(height, own[1], down)
    return _share(width, 1, 8 * wide) * _share(height, 1, 8 * high)


def _samples(data: bytes, start: int) -> float:
    """How many are coded for a pixel, of all channels."""
    count = uint(data, start + 5, 1)
    factors = [uint(data, start + 7 + 3 * channel, 1) for channel in range(count)]
    across = max((each >> 4 for each in factors), default=0)
    most = across * max((each & 15 for each in factors), default=0)
    return sum((each >> 4) * (each & 15) for each in factors) / most if most else count


def _share(side: int, factor: int, of: int) -> int:
    """Rounded up. Factors of zero, which decoders refuse, come to nothing."""
    return -(-side * factor // of) if of else 0


def _frame_size(data: bytes, start: int) -> tuple[int, int]:
    precision_bits = uint(data, start, 1)
    if precision_bits != 8:  # noqa: PLR2004
        raise unsupported(ImageFormat.JPEG, f"{precision_bits} bits a sample")
    return uint(data, start + 3, 2), uint(data, start + 1, 2)
