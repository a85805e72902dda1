"""PNG: the header chunk, and what stands between it and the pixels."""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace

from imagefleet.imaging.headers.facts import (
    HeaderFacts,
    corrupt,
    take,
    too_many_parts,
    uint,
    with_exif,
)
from imagefleet.jobs.images import ImageFormat

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MAX_SIDE = 2**31 - 1
_CHUNK = struct.Struct(">I4s")  # length and name, before the content
_HEADER = struct.Struct(">IIBBxxB")  # width, height, bits a sample, type of colour, interlaced
_HEADER_AT = len(SIGNATURE) + _CHUNK.size
_CHECKSUM_BYTES = 4  # behind the content
# Before the pixels: text and metadata, of which an editor that keeps everything writes some dozens.
_MAX_HEADER_CHUNKS = 1_000
# In all. An encoder writes pixels in chunks of 4 KB or more; Pillow pays for every chunk in Python.
_MAX_CHUNKS = 100_000
_ALPHA = 4  # of the bits in the type of colour
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the type of colour
_WHOLE = ((0, 0, 1, 1),)  # first column, first row, columns apart, rows apart
_ADAM7 = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
_PIECE_BYTES = 65_536  # compressed, at a time: what zlib leaves of it is copied each time
_INFLATED_BYTES = 262_144


def png_facts(data: bytes) -> HeaderFacts:
    facts = _header(data)
    exif: bytes | None = None
    frames, metadata_bytes, alpha = 1, 0, True
    for name, start, end in _chunks(data, _MAX_HEADER_CHUNKS):
        if name in (b"IDAT", b"IEND"):
            alpha = facts.alpha
            break
        metadata_bytes += end - start
        if name == b"eXIf" and exif is None:
            exif = data[start:end]
        elif name == b"acTL" and start + 4 <= len(data):
            frames = max(1, uint(data, start, 4))
        elif name == b"tRNS":
            facts = replace(facts, alpha=True)
    return replace(
        with_exif(facts, exif),
        frames=frames,
        animated=frames > 1,
        alpha=alpha,
        metadata_bytes=metadata_bytes,
    )


def bits_a_sample(data: bytes) -> int:
    """1 to 16, of a whole PNG."""
    return data[_HEADER_AT + 8]


def check_pixels(data: bytes) -> None:
    """Refuse a whole PNG whose pixels were changed. Pillow checks every chunk but these."""
    if not data.startswith(SIGNATURE):
        return
    for name, start, end in _chunks(data, _MAX_CHUNKS):
        if name == b"IEND":
            return
        if name == b"IHDR":  # Pillow would go by this one, and nobody has judged it
            raise corrupt(ImageFormat.PNG, "a second header")
        if name == b"IDAT" and _damaged(data, start, end):
            raise corrupt(ImageFormat.PNG, "wrong checksum of pixels")


def check_rows(data: bytes) -> None:
    """Refuse a PNG whose pixels come to their end, in good order, before its picture does.

    For Pillow that is no fault: what is missing stays black, or transparent. Costs up to as much
    as decoding does.
    """
    wanted = _pixel_bytes(data)
    inflated, left = zlib.decompressobj(), wanted
    for piece in _coded_pieces(data):
        rest = piece
        while rest and left and not inflated.eof:
            left -= len(inflated.decompress(rest, min(left, _INFLATED_BYTES)))
            rest = inflated.unconsumed_tail
        if not left:
            return
    left -= len(inflated.flush())  # of a long repetition zlib keeps what went beyond the bound
    if left > 0:
        raise corrupt(ImageFormat.PNG, f"{wanted - left} bytes of pixels, {wanted} are needed")


def _coded_pieces(data: bytes) -> Iterator[bytes]:
    """What stands in the chunks of pixels, up to the first other chunk behind them."""
    begun = False
    for name, start, end in _chunks(data, _MAX_CHUNKS):
        if name == b"IDAT":
            begun = True
            for at in range(start, end, _PIECE_BYTES):
                yield data[at : min(at + _PIECE_BYTES, end)]
        elif begun:
            return


def _pixel_bytes(data: bytes) -> int:
    """What the pixels take when they are inflated: a byte of its own begins every row."""
    width, height, depth, colour, interlaced = _HEADER.unpack_from(data, _HEADER_AT)
    bits = depth * _CHANNELS.get(colour, 0)  # of no other type, and Pillow reads none
    total = 0
    for left, top, across, down in _ADAM7 if interlaced else _WHOLE:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + -(-columns * bits // 8))
    return total


def _header(data: bytes) -> HeaderFacts:
    if take(data, len(SIGNATURE), 8) != _CHUNK.pack(_HEADER.size, b"IHDR"):
        raise corrupt(ImageFormat.PNG, "the first chunk is not IHDR")
    header = take(data, _HEADER_AT, _HEADER.size)
    width, height, depth, colour, interlaced = _HEADER.unpack(header)
    if max(width, height) > _MAX_SIDE:
        raise corrupt(ImageFormat.PNG, "impossible dimensions")
    deep = depth == 16  # noqa: PLR2004 - bits a sample
    return HeaderFacts(
        ImageFormat.PNG,
        width,
        height,
        progressive=interlaced != 0,
        deep=deep,
        alpha=bool(colour & _ALPHA),
    )


def _chunks(data: bytes, most: int) -> Iterator[tuple[bytes, int, int]]:
    """The name of each chunk behind the header, and where its content starts and ends."""
    at = _HEADER_AT + _HEADER.size + _CHECKSUM_BYTES
    for _ in range(most):
        if at + _CHUNK.size > len(data):
            return
        length, name = _CHUNK.unpack_from(data, at)
        start, end = at + _CHUNK.size, at + _CHUNK.size + length
        yield name, start, end
        at = end + _CHECKSUM_BYTES
    raise too_many_parts(ImageFormat.PNG, f"more than {most} chunks")


def _damaged(data: bytes, start: int, end: int) -> bool:
    """Whether a chunk that is wholly here was changed; its name is checked with its content."""
    if end + _CHECKSUM_BYTES > len(data):
        return False
    return zlib.crc32(memoryview(data)[start - 4 : end]) != uint(data, end, _CHECKSUM_BYTES)
