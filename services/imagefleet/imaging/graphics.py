"""Which pictures are drawn, and how few colours they have: what lossy encoders smear for nothing.

A camera's neighbouring pixels are seldom alike, and where they differ it is by little: noise, and
soft edges. What is drawn is flat, with hard edges. A photo on a white page is flat as well, but not
where it is not white; so of the neighbours that differ it is asked how many do so by little, and
how many do so beside others that differ, as in grass. It is the source that is asked, at its own
size: scaling softens every edge. A JPEG is never taken for drawn: its edges went when it was made.
docs/images.md has the figures.
"""

import math
import re
import sys
from functools import reduce

from PIL import Image, ImageChops

from imagefleet.jobs.images import ImageFormat

FEW_COLOURS = 16  # nothing is smaller than these without loss
_MOST_COLOURS = 256
ICON = 32 * 32  # pixels: nothing that small is a photo, whatever its neighbours say
_ROWS = 256  # that are looked at, spread over the picture: 3 ms of one 1,920 pixels wide
_ALIKE = 0.5  # of all neighbours, at least, in what is drawn
_LITTLE = 8  # levels
_SOFT = 0.4  # of the neighbours that differ, those that do so by little: at most
_BUSY = 0.9  # of the neighbours that differ, those whose next one differs again: at most
_HARD = 0.05  # soft at most in what a palette dithers, where no neighbours are alike
_MOST_INDEXED = 1 << 24  # pixels; a second of processor time
_UNSEEN = re.compile(rb"\0+")  # of alpha
_BOTH_UP_TO = 1 << 18  # pixels up to which a palette is compared with none


def is_drawn(picture: Image.Image, source: ImageFormat) -> bool:
    """Whether a picture from a file of that format, at its own size, is flat and hard-edged."""
    if source is ImageFormat.JPEG:
        return False
    if math.prod(picture.size) <= ICON or picture.getcolors(FEW_COLOURS) is not None:
        return True
    alike, soft, busy = texture(picture)
    if soft <= _HARD and picture.getcolors(_MOST_COLOURS) is not None:
        return True
    return alike >= _ALIKE and soft <= _SOFT and busy <= _BUSY


def texture(picture: Image.Image) -> tuple[float, float, float]:
    """The share of neighbours that are alike.

    And of the others the share that differs by little, and that which has another beside it.
    """
    rows = picture.resize((picture.width, min(picture.height, _ROWS)), Image.Resampling.NEAREST)
    # Colours that are hidden do not count; the edge of what hides them does.
    seen = rows.convert("RGBA").convert("RGBa") if rows.mode.endswith("A") else rows
    bands = ImageChops.difference(*_neighbours(seen)).split()
    steps = reduce(ImageChops.lighter, bands)
    levels = steps.histogram()
    differing = max(1, sum(levels[1:]))
    beside = ImageChops.darker(*_neighbours(steps.point(lambda step: 255 if step else 0)))
    soft = sum(levels[1 : _LITTLE + 1])
    return levels[0] / sum(levels), soft / differing, beside.histogram()[255] / differing


def _neighbours(picture: Image.Image) -> tuple[Image.Image, Image.Image]:
    """The picture without its last column, and without its first; of one column, itself."""
    right, shifted = max(1, picture.width - 1), min(1, picture.width - 1)
    left = picture.crop((0, 0, right, picture.height))
    return left, picture.crop((shifted, 0, shifted + right, picture.height))


def hidden(picture: Image.Image) -> Image.Image:
    """A mask of what is fully transparent in a picture with alpha."""
    return picture.getchannel("A").point(lambda level: 0 if level else 255)


def without_hidden(picture: Image.Image) -> Image.Image:
    """The picture without colours under full transparency; itself where it has no alpha."""
    if not picture.mode.endswith("A"):
        return picture
    shown = picture.copy()
    shown.paste((0,) * len(picture.getbands()), mask=hidden(picture))
    return shown


def carried(picture: Image.Image) -> Image.Image:
    """The picture with what nobody sees in the colour of the last pixel before it that is seen.

    That tells no more than none at all, and a PNG of it is often smaller: edges of what is seen
    have one side.
    """
    colours = len(picture.getbands()) - 1
    pixels, step = bytearray(picture.tobytes()), colours + 1
    for run in _UNSEEN.finditer(picture.getchannel("A").tobytes()):
        first, end = (step * place for place in run.span())
        before = pixels[first - step : first - 1] if first else bytes(colours)
        pixels[first:end] = (before + b"\0") * (run.end() - run.start())
    return Image.frombytes(picture.mode, picture.size, bytes(pixels))


def simplest(picture: Image.Image) -> list[Image.Image]:
    """What may be stored in place of it, as everybody sees the same: one of them is the smallest.

    Colours under full transparency are gone, bands that are alike are one, and few colours have
    a palette.
    """
    mode, picture = picture.mode, without_hidden(picture)
    if mode.startswith("RGB"):
        red, green, blue, *_ = picture.split()
        if not any(ImageChops.difference(red, each).getbbox() for each in (green, blue)):
            picture = picture.convert(mode.replace("RGB", "L"))
    few = indexed(picture)
    if few is None:
        return [picture]
    return [few] if picture.width * picture.height > _BOTH_UP_TO else [few, picture]


def indexed(picture: Image.Image) -> Image.Image | None:
    """The very same picture with a palette; None: it has too many colours for one, or pixels.

    Pillow's own ways to a palette take what is near enough.
    """
    if picture.width * picture.height > _MOST_INDEXED:
        return None
    rgba = picture.convert("RGBA")
    counted = rgba.getcolors(_MOST_COLOURS)
    if counted is None:
        return None
    # Opaque ones come last: their opacity needs no words.
    known = (bytes(colour) for _, colour in counted if isinstance(colour, tuple))
    colours = sorted(known, key=lambda colour: colour[::-1])
    places = {int.from_bytes(colour, sys.byteorder): n for n, colour in enumerate(colours)}
    pixels = memoryview(rgba.tobytes()).cast("I")
    few = Image.frombytes("P", picture.size, bytes(map(places.__getitem__, pixels)))
    few.putpalette(b"".join(colour[:3] for colour in colours))
    if hidden := bytes(colour[3] for colour in colours if colour[3] < 255):  # noqa: PLR2004 - opaque
        few.info["transparency"] = hidden
    return few
