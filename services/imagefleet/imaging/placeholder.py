"""What a page shows before the picture arrives: a ThumbHash and one colour.

ThumbHash (https://evanw.github.io/thumbhash/) is a discrete cosine transform of a tiny version of
the picture, quantised to some 25 bytes. Only its lowest frequencies survive, so a source of 32
pixels a side gives the same hash as one of 100, in a tenth of the time. `picture` goes back, for
pages that have no decoder.
"""

import math
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mul

PLACEHOLDER_SIDE = 32
_MAX_SIDE = 100  # the algorithm's own
_OPAQUE_ENOUGH = 128
# A plain area leaves rounding errors where it should leave zero; scaled up, they would be noise.
_NO_DETAIL = 1e-9
_WHITE = "#ffffff"
_SHOWN_SIDE = 16  # pixels of what is drawn: no wave of a hash is shorter than two of them
_FULLER = 1.25  # the algorithm's own: colours as they were meant, before they were rounded
_LENGTHS = range(9, 40)  # bytes of a hash

Channel = Sequence[float]


@dataclass(frozen=True, slots=True)
class _Waves:
    """A channel as cosine waves: the average, the others scaled to 0..1, and their largest."""

    average: float
    others: tuple[float, ...]
    scale: float


def thumbhash(width: int, height: int, rgba: bytes) -> bytes:
    """The ThumbHash of straight-alpha RGBA bytes, at most 100 pixels a side."""
    if max(width, height) > _MAX_SIDE or len(rgba) != width * height * 4:
        message = f"{len(rgba)} bytes for {width}x{height} pixels"
        raise ValueError(message)
    luminance, yellow_blue, red_green, alpha = _channels(rgba)
    has_alpha = min(alpha) < 1
    detail = 5 if has_alpha else 7  # a hash has room for fewer waves where alpha takes some
    across = max(1, _round(detail * width / max(width, height)))
    down = max(1, _round(detail * height / max(width, height)))
    size = (width, height)
    waves = [
        _waves(luminance, size, max(3, across), max(3, down)),
        _waves(yellow_blue, size, 3, 3),
        _waves(red_green, size, 3, 3),
    ]
    if has_alpha:
        waves.append(_waves(alpha, size, 5, 5))
    landscape = width > height
    header = _header(waves, down if landscape else across, landscape=landscape)
    return header + _nibbles([_round(15 * value) for wave in waves for value in wave.others])


def dominant_color(rgba: bytes) -> str:
    """The mean of the fullest of 512 colour bins, as #rrggbb; white where all is transparent."""
    bins: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for red, green, blue, alpha in zip(*(rgba[band::4] for band in range(4)), strict=True):
        if alpha >= _OPAQUE_ENOUGH:
            bins[red >> 5 << 6 | green >> 5 << 3 | blue >> 5].append((red, green, blue))
    if not bins:
        return _WHITE
    _, fullest = max(bins.items(), key=lambda item: (len(item[1]), -item[0]))
    means = (round(sum(band) / len(fullest)) for band in zip(*fullest, strict=True))
    return "#" + "".join(f"{mean:02x}" for mean in means)


def _channels(rgba: bytes) -> tuple[Channel, Channel, Channel, Channel]:
    """Luminance, yellow-blue, red-green and alpha, composed on the picture's average colour."""
    alpha = [value / 255 for value in rgba[3::4]]
    opacity = sum(alpha)
    composed: list[list[float]] = []
    for band in range(3):
        premultiplied = [a / 255 * value for a, value in zip(alpha, rgba[band::4], strict=True)]
        average = sum(premultiplied) / opacity if opacity else 0.0
        composed.append(
            [average * (1 - a) + value for a, value in zip(alpha, premultiplied, strict=True)]
        )
    red_green_blue = list(zip(*composed, strict=True))
    return (
        [(r + g + b) / 3 for r, g, b in red_green_blue],
        [(r + g) / 2 - b for r, g, b in red_green_blue],
        [r - g for r, g, _ in red_green_blue],
        alpha,
    )


def _waves(channel: Channel, size: tuple[int, int], across: int, down: int) -> _Waves:
    """The triangle of low frequencies; rows first and columns after, which costs less than both."""
    width, height = size
    row_waves = [_cosines(width, frequency) for frequency in range(across)]
    rows = [channel[y * width : (y + 1) * width] for y in range(height)]
    by_row = [[sum(map(mul, row, wave)) for row in rows] for wave in row_waves]
    values = [
        sum(map(mul, by_row[cx], _cosines(height, cy))) / (width * height)
        for cy in range(down)
        for cx in range(across)
        if cx * down < across * (down - cy)
    ]
    average, *others = values
    scale = max(map(abs, others))
    if scale < _NO_DETAIL:
        return _Waves(average, (0.0,) * len(others), 0.0)
    others = [0.5 + 0.5 / scale * value for value in others]
    return _Waves(average, tuple(others), scale)


def _cosines(length: int, frequency: int) -> list[float]:
    return [math.cos(math.pi / length * frequency * (i + 0.5)) for i in range(length)]


def _header(waves: list[_Waves], shorter_detail: int, *, landscape: bool) -> bytes:
    luminance, yellow_blue, red_green, *alpha = waves
    first = (
        _round(63 * luminance.average)
        | _round(31.5 + 31.5 * yellow_blue.average) << 6
        | _round(31.5 + 31.5 * red_green.average) << 12
        | _round(31 * luminance.scale) << 18
        | bool(alpha) << 23
    )
    second = (
        shorter_detail
        | _round(63 * yellow_blue.scale) << 3
        | _round(63 * red_green.scale) << 9
        | landscape << 15
    )
    header = first.to_bytes(3, "little") + second.to_bytes(2, "little")
    for wave in alpha:
        header += bytes([_round(15 * wave.average) | _round(15 * wave.scale) << 4])
    return header


def _nibbles(values: list[int]) -> bytes:
    padded = [*values, 0] if len(values) % 2 else values
    return bytes(low | high << 4 for low, high in zip(padded[::2], padded[1::2], strict=True))


def _round(value: float) -> int:
    """Halves go up, as in the reference; Python's own rounding would send them to even."""
    return math.floor(value + 0.5)


def picture(thumbhash: bytes) -> bytes:
    """A PNG of some 16 pixels a side of what a hash tells; ValueError where it is none."""
    if len(thumbhash) not in _LENGTHS:
        message = f"{len(thumbhash)} bytes are no ThumbHash"
        raise ValueError(message)
    first, second = (
        int.from_bytes(thumbhash[:3], "little"),
        int.from_bytes(thumbhash[3:5], "little"),
    )
    has_alpha, detail = bool(first >> 23), second & 7
    most = 5 if has_alpha else 7
    across, down = (most, detail) if second >> 15 else (detail, most)
    size = tuple(max(1, _round(_SHOWN_SIDE * part / max(across, down))) for part in (across, down))
    rest = (byte >> shift & 15 for byte in thumbhash[5 + has_alpha :] for shift in (0, 4))

    def channel(average: float, scale: float, across: int, down: int) -> Channel:
        waves = [
            (cx, cy, (next(rest, 0) / 7.5 - 1) * scale)
            for cy in range(down)
            for cx in range(cy == 0, across)
            if cx * down < across * (down - cy)
        ]
        return _sum_of(average, waves, (size[0], size[1]))

    luminance = channel((first & 63) / 63, (first >> 18 & 31) / 31, max(3, across), max(3, down))
    blue = channel((first >> 6 & 63) / 31.5 - 1, (second >> 3 & 63) / 63 * _FULLER, 3, 3)
    green = channel((first >> 12 & 63) / 31.5 - 1, (second >> 9 & 63) / 63 * _FULLER, 3, 3)
    alpha: Channel = [1.0] * len(luminance)
    if has_alpha:
        alpha = channel((thumbhash[5] & 15) / 15, (thumbhash[5] >> 4) / 15, 5, 5)
    rgba = bytearray()
    for light, yellow_blue, red_green, opacity in zip(luminance, blue, green, alpha, strict=True):
        b = light - 2 / 3 * yellow_blue
        r = (3 * light - b + red_green) / 2
        rgba += bytes(_round(255 * min(1, max(0, each))) for each in (r, r - red_green, b, opacity))
    return _png(size[0], size[1], bytes(rgba))


def _sum_of(average: float, waves: list[tuple[int, int, float]], size: tuple[int, int]) -> Channel:
    """The pixels that these waves come to, row by row."""
    width, height = size
    across = [_cosines(width, frequency) for frequency in range(8)]
    down = [_cosines(height, frequency) for frequency in range(8)]
    return [
        average + sum(value * across[cx][x] * down[cy][y] * 2 for cx, cy, value in waves)
        for y in range(height)
        for x in range(width)
    ]


def _png(width: int, height: int, rgba: bytes) -> bytes:
    rows = b"".join(b"\0" + rgba[at : at + 4 * width] for at in range(0, len(rgba), 4 * width))
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunks(header, zlib.compress(rows, 9)))


def _chunks(header: bytes, pixels: bytes) -> Iterator[bytes]:
    for name, data in ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")):
        checked = name + data
        yield struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))
