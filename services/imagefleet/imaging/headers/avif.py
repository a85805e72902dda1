"""AVIF: the sizes of its items and of its track, and what is said of the primary one."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from imagefleet.imaging.headers.facts import HeadEnded, HeaderFacts, corrupt, too_many_parts, uint
from imagefleet.jobs.images import ImageFormat

_BOX = struct.Struct(">I4s")
# A picture in 200 tiles, each described by boxes of its own, has some 800; those around them are
# looked at once for each of the things that are looked for.
_MAX_BOXES = 2_400
_MAX_BRAND_BYTES = 4_096
_FULL_BOX_BYTES = 4  # version and flags
_HIGH_BITDEPTH = 0x40
_MONOCHROME = 0x10
_HALVED_ACROSS, _HALVED_BOTH = 0x08, 0x0C  # of the colours' sides
# By the axis that is mirrored at, after so many quarters of a turn to the left.
_ORIENTATIONS = {None: (1, 8, 3, 6), 0: (4, 5, 2, 7), 1: (2, 7, 4, 5)}

Span = tuple[int, int]  # where a box's content starts and ends
Box = tuple[bytes, Span]


def brands(data: bytes) -> frozenset[bytes]:
    """The brands of an ISO media file, empty where it is none."""
    if data[4:8] != b"ftyp":
        return frozenset()
    major, compatible = data[8:12], data[16 : min(uint(data, 0, 4), _MAX_BRAND_BYTES)]
    return frozenset({major, *(compatible[at : at + 4] for at in range(0, len(compatible), 4))})


def avif_facts(data: bytes) -> HeaderFacts:
    """The largest item's size: grid, alpha and thumbnail are never larger than the picture."""
    visited = count(1)
    spans = _find(data, visited, b"meta", b"iprp", b"ipco")
    properties = [box for span in spans for box in _boxes(data, span, visited)]
    sizes = [_item_size(data, span) for name, span in properties if name == b"ispe"]
    tracks = list(_find(data, visited, b"moov", b"trak", b"tkhd"))
    sizes += [_track_size(data, span) for span in tracks]
    if not sizes:
        raise HeadEnded
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    codings = [uint(data, at + 2, 1) for name, (at, _) in properties if name == b"av1C"]
    alpha = bool(tracks) or any(name == b"auxC" for name, _ in properties)
    facts = HeaderFacts(
        ImageFormat.AVIF,
        width,
        height,
        orientation=_orientation(data, properties, visited),
        deep=any(coding & _HIGH_BITDEPTH for coding in codings),
        alpha=alpha,
        samples=alpha + (3 if tracks else max(map(_samples, codings), default=3)),
        gain_map=b"tmap" in brands(data),  # without it a decoder looks for none
    )
    if not tracks and b"avis" not in brands(data):
        return facts
    frames = _frames(data, visited)
    return replace(facts, frames=frames, animated=frames is None or frames > 1)


def _orientation(data: bytes, properties: list[Box], visited: Iterator[int]) -> int:
    """As EXIF numbers it, by the primary item's boxes alone: EXIF itself is not obeyed."""
    turns, axis = 0, None
    for number in _of_primary(data, visited):
        if 0 < number <= len(properties):
            name, (start, _) = properties[number - 1]
            if name == b"irot":
                turns = uint(data, start, 1) & 3
            elif name == b"imir":
                axis = uint(data, start, 1) & 1
    return _ORIENTATIONS[axis][turns]


def _of_primary(data: bytes, visited: Iterator[int]) -> list[int]:
    """Which properties are the primary item's, counted from 1."""
    primary = None
    for start, _ in _find(data, visited, b"meta", b"pitm"):
        primary = uint(data, start + _FULL_BOX_BYTES, 4 if uint(data, start, 1) else 2)
    for start, _ in _find(data, visited, b"meta", b"iprp", b"ipma"):
        item_bytes = 4 if uint(data, start, 1) else 2
        number_bytes = 2 if uint(data, start + 1, 3) & 1 else 1
        essential = 1 << (8 * number_bytes - 1)  # a flag beside the number
        at = start + _FULL_BOX_BYTES + 4
        for _ in range(uint(data, at - 4, 4)):
            _spend(visited)
            item, at = uint(data, at, item_bytes), at + item_bytes + 1
            places = range(at, at + uint(data, at - 1, 1) * number_bytes, number_bytes)
            if item == primary:
                return [uint(data, place, number_bytes) & ~essential for place in places]
            at = places.stop
    return []


def _samples(coding: int) -> float:
    """How many a pixel has, by the flags of a decoder's configuration."""
    colours = {_HALVED_BOTH: 1.5, _HALVED_ACROSS: 2}.get(coding & _HALVED_BOTH, 3)
    return 1 if coding & _MONOCHROME else colours


def _frames(data: bytes, visited: Iterator[int]) -> int | None:
    path = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsz")
    counts = [uint(data, start + 8, 4) for start, _ in _find(data, visited, *path)]
    return max(1, *counts) if counts else None


def _item_size(data: bytes, span: Span) -> tuple[int, int]:
    return uint(data, span[0] + _FULL_BOX_BYTES, 4), uint(data, span[0] + _FULL_BOX_BYTES + 4, 4)


def _track_size(data: bytes, span: Span) -> tuple[int, int]:
    """The last two fields of a track header, in 16.16 fixed point."""
    return uint(data, span[1] - 8, 4) >> 16, uint(data, span[1] - 4, 4) >> 16


def _find(data: bytes, visited: Iterator[int], *path: bytes) -> Iterator[Span]:
    """Every box at the end of this path, at the price of one budget of boxes for all of them."""
    spans: list[Span] = [(0, len(data))]
    for wanted in path:
        header_bytes = _FULL_BOX_BYTES if wanted == b"meta" else 0
        spans = [
            (start + header_bytes, end)
            for span in spans
            for name, (start, end) in _boxes(data, span, visited)
            if name == wanted
        ]
    yield from spans


def _boxes(data: bytes, span: Span, visited: Iterator[int]) -> Iterator[Box]:
    """The boxes inside a span; one that reaches beyond it ends there."""
    at, end = span
    while at + 8 <= end:
        _spend(visited)
        (length, name), header_bytes = _BOX.unpack_from(data, at), 8
        if length == 1:
            length, header_bytes = uint(data, at + 8, 8), 16
        elif length == 0:
            length = end - at
        if length < header_bytes:
            raise corrupt(ImageFormat.AVIF, "impossible box length")
        yield name, (at + header_bytes, min(at + length, end))
        at += length


def _spend(visited: Iterator[int]) -> None:
    if next(visited) > _MAX_BOXES:
        raise too_many_parts(ImageFormat.AVIF, "too many boxes")
