"""PNG: the header chunk, and what stands between it and the pixels."""

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

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
_INDEXED = 3  # the type of colour that has a palette
_KEYED = {0: 1, 2: 3}  # the types of which one colour may be transparent, and its samples
_MOST_BITS = 8  # a sample, of pixels that are passed on as they are coded
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


class Coded(NamedTuple):
    """Pixels as they are coded in a PNG, with what their colours are, and nothing else of it."""

    header: bytes
    pixels: bytes
    palette: bytes = b""
    transparent: bytes = b""

    def file(self, credit: bytes = b"") -> bytes:
        """A PNG of them, every checksum our own; EXIF of our own says whose it is."""
        stated = credit.removeprefix(b"Exif\0\0")
        named = (b"PLTE", self.palette), (b"tRNS", self.transparent), (b"eXIf", stated)
        there = [each for each in named if each[1]]
        chunks = [(b"IHDR", self.header), *there, (b"IDAT", self.pixels), (b"IEND", b"")]
        return SIGNATURE + b"".join(
            _CHUNK.pack(len(content), name)
            + content
            + zlib.crc32(name + content).to_bytes(_CHECKSUM_BYTES)
            for name, content in chunks
        )

    def of_colours(self, used: Sequence[int]) -> Self | None:
        """With a palette of these alone, by the number of pixels that have each.

        None: some have a colour that is not there, or what nobody sees has two.
        """
        colours = [self.palette[at : at + 3] for at in range(0, len(self.palette), 3)]
        pairs = [*zip(colours, self.transparent.ljust(len(colours), b"\xff"), strict=False)]
        last = max(number for number, pixels in enumerate(used) if pixels)
        unseen = [pixels for (_, opacity), pixels in zip(pairs, used, strict=False) if not opacity]
        if last >= len(colours) or sum(map(bool, unseen)) > 1:
            return None
        kept = [
            (colour if pixels and opacity else bytes(3), opacity if pixels else 255)
            for (colour, opacity), pixels in zip(pairs, used, strict=False)
        ][: last + 1]
        return self._replace(
            palette=b"".join(colour for colour, _ in kept),
            transparent=bytes(opacity for _, opacity in kept).rstrip(b"\xff"),
        )


def coded(data: bytes) -> Coded | None:
    """The pixels of a whole PNG, if they are all that is in its chunks of pixels.

    So the stream has exactly the bytes that its rows need, ends there, and nothing is behind it.
    Costs what inflating does. Not of 16 bits a sample, of which variants have eight.
    """
    width, height, depth, colour, interlaced = _HEADER.unpack_from(data, _HEADER_AT)
    pixels = b"".join(_coded_pieces(data))
    if depth > _MOST_BITS or not _is_filled(pixels, _pixel_bytes(data)):
        return None
    there: dict[bytes, bytes] = {}
    for name, start, end in _chunks(data, _MAX_CHUNKS):
        if name == b"IDAT":
            break
        if name in (b"PLTE", b"tRNS"):
            if name in there:
                return None
            there[name] = data[start:end]
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    if colour == _INDEXED:
        palette = there.get(b"PLTE", b"")
        whole = palette and len(palette) % 3 == 0
        return Coded(header, pixels, palette, there.get(b"tRNS", b"")) if whole else None
    transparent = there.get(b"tRNS", b"")
    if not transparent or colour not in _KEYED:
        return Coded(header, pixels)
    key = struct.Struct(f">{_KEYED[colour]}H")
    if len(transparent) != key.size:
        return None
    samples = (sample & (1 << depth) - 1 for sample in key.unpack(transparent))
    return Coded(header, pixels, transparent=key.pack(*samples))


def _is_filled(pixels: bytes, wanted: int) -> bool:
    """Whether a stream inflates to just so many bytes, and ends with its last one."""
    inflated, rest = zlib.decompressobj(), pixels
    try:
        while wanted >= 0 and not inflated.eof:
            piece = inflated.decompress(rest, _INFLATED_BYTES)
            if not piece and not inflated.eof:
                return False
            wanted, rest = wanted - len(piece), inflated.unconsumed_tail
    except zlib.error:
        return False
    return not wanted and not inflated.unused_data


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
