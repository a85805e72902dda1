"""Where most is to be seen in a picture: what a cut keeps where nobody said what it is of.

After libvips' `attention`, in few lines: a tiny version is scored for edges, for skin and for red
against green; blurred, so that a place counts by what surrounds it; and the highest score is the
point, where the middle counts more than in libvips. docs/images.md compares the two.
"""

import math
from collections.abc import Iterable
from operator import mul

from PIL import Image

from imagefleet.imaging.recipes import Fit, Focus, VariantSpec
from imagefleet.imaging.sizes import Size
from imagefleet.imaging.steps import resized
from imagefleet.jobs.images import Focal

_SIDE = 32
_SPREAD = 4.0  # of the blur, in tiny pixels: an eighth of a side, as a window keeps most of it
_REACH = 7  # where what is added is less than a fifth of the middle's
_TO_THE_MIDDLE = 0.25  # less counts what is in a corner: few put there what a picture is of
_EDGES = 5.0  # how much an edge counts
_SKIN = (0.78, 0.57, 0.44)  # the direction of its colours among X, Y and Z (smartcrop.js)
_DARK = 5.0  # of 100: below, a colour tells nothing
_XYZ = (
    (0.4124, 0.3576, 0.1805),
    (0.2126, 0.7152, 0.0722),
    (0.0193, 0.1192, 0.9505),
)
_WHITE_X = 0.9505
_CURVED = 0.008856  # L*a*b*: above, a cube root

Rows = list[list[float]]


class Middle:
    """What all variants of a picture are cut around: its focal point, else what their focus says.

    Where most is to be seen is looked for once, in the largest that is cut: a point is as good
    there, and the whole picture may have a hundred times the pixels.
    """

    def __init__(self, focal: Focal | None) -> None:
        self._focal = focal
        self._attended: Focal | None = None

    def of(self, variant: VariantSpec, picture: Image.Image) -> Focal | None:
        """For a variant of this picture; None is the centre. The largest comes first."""
        if self._focal or (variant.fit, variant.focus) != (Fit.COVER, Focus.ATTENTION):
            return self._focal
        self._attended = self._attended or attention(picture)
        return self._attended


def attention(picture: Image.Image) -> Focal:
    """The point, as shares of the sides; the middle of a picture where nothing is to be seen."""
    scores = _blurred(_scores(_tiny(picture)))
    middle = (_SIDE - 1) / 2

    def worth(place: tuple[int, int]) -> tuple[float, float]:
        x, y = place
        away = math.hypot(x - middle, y - middle) / math.hypot(middle, middle)
        return scores[y][x] * (1 - _TO_THE_MIDDLE * away**2), -away

    x, y = max(((x, y) for y in range(_SIDE) for x in range(_SIDE)), key=worth)
    return Focal((x + 0.5) / _SIDE, (y + 0.5) / _SIDE)


def _tiny(picture: Image.Image) -> Image.Image:
    """The whole picture as a small square; what is transparent is black, where nothing is seen."""
    tiny = resized(picture, Size(_SIDE, _SIDE))
    if not tiny.mode.endswith("A"):
        return tiny.convert("RGB")
    black = Image.new("RGB", tiny.size)
    black.paste(tiny.convert("RGB"), mask=tiny.getchannel("A"))
    return black


_LINEAR = [
    100 * (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4)  # noqa: PLR2004 - sRGB's own
    for v in (level / 255 for level in range(256))
]


def _scores(tiny: Image.Image) -> Rows:
    linear = map(_LINEAR.__getitem__, tiny.tobytes())
    pixels = zip(linear, linear, linear, strict=True)  # one iterator, three at a time
    (xr, xg, xb), (yr, yg, yb), (zr, zg, zb) = _XYZ
    colours = [
        (xr * r + xg * g + xb * b, yr * r + yg * g + yb * b, zr * r + zg * g + zb * b)
        for r, g, b in pixels
    ]
    light, told = _rows(y for _, y, _ in colours), _rows(map(_told_by_colour, colours))
    edges = map(_edges, light[:1] + light[:-1], light, light[1:] + light[-1:])
    return [
        [score + _EDGES * edge for score, edge in zip(*pair, strict=True)]
        for pair in zip(told, edges, strict=True)
    ]


def _rows(values: Iterable[float]) -> Rows:
    flat = list(values)
    return [flat[first : first + _SIDE] for first in range(0, len(flat), _SIDE)]


def _told_by_colour(colour: tuple[float, float, float]) -> float:
    x, y, z = colour
    if y <= _DARK:
        return 0.0
    length = math.hypot(x, y, z)
    skin = 100 - 100 * math.dist((x / length, y / length, z / length), _SKIN)
    return max(0.0, skin + 500 * (_curved(x / 100 / _WHITE_X) - _curved(y / 100)))


def _curved(share: float) -> float:
    return share ** (1 / 3) if share > _CURVED else 7.787 * share + 16 / 116


def _edges(above: list[float], row: list[float], below: list[float]) -> list[float]:
    """How far each is from those around it; beyond an edge its own value goes on."""
    around = zip(row, row[:1] + row[:-1], row[1:] + row[-1:], above, below, strict=True)
    return [abs(4 * own - (left + right) - up - down) for own, left, right, up, down in around]


def _blurred(rows: Rows) -> Rows:
    """Along the rows, then along the columns; beyond an edge its own value goes on."""
    weights = [math.exp(-((d / _SPREAD) ** 2) / 2) for d in range(-_REACH, _REACH + 1)]
    for _ in range(2):
        padded = [[row[0]] * _REACH + row + [row[-1]] * _REACH for row in rows]
        blurred = [
            [sum(map(mul, weights, row[x : x + len(weights)])) for x in range(_SIDE)]
            for row in padded
        ]
        rows = [list(column) for column in zip(*blurred, strict=True)]
    return rows
