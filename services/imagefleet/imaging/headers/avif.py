"""AVIF: the sizes of its items, and of its track where it is a sequence."""

import struct
from collections.abc import Iterator
from itertools import count

from imagefleet.imaging.headers.facts import HeadEnded, HeaderFacts, corrupt, too_many_parts, uint
from imagefleet.jobs.images import ImageFormat

_BOX = struct.Struct(">I4s")
# A picture in 200 tiles, each described by boxes of its own, has some 800; each is looked at once
# for each of the three things that are looked for.
_MAX_BOXES = 2_400
_MAX_BRAND_BYTES = 4_096
_FULL_BOX_BYTES = 4  # version and flags

Span = tuple[int, int]  # where a box's content starts and ends


def brands(data: bytes) -> frozenset[bytes]:
    """The brands of an ISO media file, empty where it is none."""
    if data[4:8] != b"ftyp":
        return frozenset()
    major, compatible = data[8:12], data[16 : min(uint(data, 0, 4), _MAX_BRAND_BYTES)]
    return frozenset({major, *(compatible[at : at + 4] for at in range(0, len(compatible), 4))})


def avif_facts(data: bytes) -> HeaderFacts:
    """The largest item's size: grid, alpha and thumbnail are never larger than the picture."""
    visited = count(1)
    items = _find(data, visited, b"meta", b"iprp", b"ipco", b"ispe")
    sizes = [_item_size(data, span) for span in items]
    tracks = list(_find(data, visited, b"moov", b"trak", b"tkhd"))
    sizes += [_track_size(data, span) for span in tracks]
    if not sizes:
        raise HeadEnded
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    if not tracks and b"avis" not in brands(data):
        return HeaderFacts(ImageFormat.AVIF, width, height, alpha=True, samples=4)
    frames = _frames(data, visited)
    animated = frames is None or frames > 1
    return HeaderFacts(
        ImageFormat.AVIF, width, height, frames=frames, animated=animated, alpha=True, samples=4
    )


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
    for name in path:
        spans = [inner for span in spans for inner in _children(data, span, name, visited)]
    yield from spans


def _children(data: bytes, span: Span, wanted: bytes, visited: Iterator[int]) -> Iterator[Span]:
    """The boxes of this name inside a span; a box that reaches beyond it ends there."""
    at, end = span
    while at + 8 <= end:
        if next(visited) > _MAX_BOXES:
            raise too_many_parts(ImageFormat.AVIF, "too many boxes")
        (length, name), header_bytes = _BOX.unpack_from(data, at), 8
        if length == 1:
            length, header_bytes = uint(data, at + 8, 8), 16
        elif length == 0:
            length = end - at
        if length < header_bytes:
            raise corrupt(ImageFormat.AVIF, "impossible box length")
        if name == wanted:
            start = at + header_bytes + (_FULL_BOX_BYTES if wanted == b"meta" else 0)
            yield start, min(at + length, end)
        at += length
