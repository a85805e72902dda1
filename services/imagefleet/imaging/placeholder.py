"""What a page shows before the picture arrives: a ThumbHash and one colour.

ThumbHash (https://evanw.github.io/thumbhash/) is a discrete cosine transform of a tiny version of
the picture, quantised to some 25 bytes. Only its lowest frequencies survive, so a source of 32
pixels a side gives the same hash as one of 100, in a tenth of the time.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

PLACEHOLDER_SIDE = 32
_MAX_SIDE = 100  # the algorithm's own
_OPAQUE_ENOUGH = 128
# A plain area leaves rounding errors where it should leave zero; scaled up, they would be noise.
_NO_DETAIL = 1e-9
_WHITE = "#ffffff"

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
