"""Pictures of our own, to try the fleet with: the same ones every time."""

import math
from dataclasses import dataclass
from typing import Final

from PIL import Image

from imagefleet.imaging.codecs import open_image, reading
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.warming import lying, saved
from imagefleet.jobs.images import ImageFormat

SIZES: Final = ((1600, 1200), (900, 1400), (640, 480), (1280, 720), (320, 320), (2048, 1152))
FORMATS: Final = ("jpeg", "png", "webp", "gif")
GIF_FRAMES: Final = 3
RINGS: Final = 12
GOLDEN: Final = 137.5  # degrees of hue between neighbours, so that no two look alike


@dataclass(frozen=True, slots=True)
class Sample:
    """A file to upload."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a decoder found in a file, having read every pixel of it."""

    format: str
    width: int
    height: int


def sample(number: int) -> Sample:
    """The picture of this number: a JPEG that lies on its side, a PNG with alpha, and so on."""
    kind = FORMATS[number % len(FORMATS)]
    width, height = SIZES[number % len(SIZES)]
    picture = _drawn(number, width, height, "RGBA" if kind in {"png", "webp"} else "RGB")
    match kind:
        case "jpeg":
            content = saved(picture, "JPEG", quality=88, exif=lying())
        case "png":
            content = saved(picture, "PNG", compress_level=1)
        case "webp":
            content = saved(picture, "WEBP", quality=85, method=0)
        case _:
            first, *others = (
                picture.rotate(90 * turn).quantize(64, Image.Quantize.FASTOCTREE)
                for turn in range(GIF_FRAMES)
            )
            content = saved(first, "GIF", save_all=True, append_images=others, duration=200)
    return Sample(f"sample-{number:03}.{ImageFormat(kind).extension}", content)


def decode(content: bytes) -> Decoded:
    """Read every pixel; InputRejected when that is not possible."""
    with reading(Limits().most_pixels):
        picture = open_image(content)
        picture.load()
    return Decoded((picture.format or "").lower(), picture.width, picture.height)


def _drawn(number: int, width: int, height: int, mode: str) -> Image.Image:
    """A gradient with rings: smooth parts, hard edges, and where there is alpha a hole."""
    # Imported here: who warms codecs hands what it loads on to its children, and draws nothing.
    from PIL import ImageDraw  # noqa: PLC0415

    hue = int(number * GOLDEN) % 360
    across = Image.linear_gradient("L").rotate(90).resize((width, height))
    down = Image.linear_gradient("L").resize((width, height))
    base = Image.merge("RGB", (across, down, Image.new("L", (width, height), hue * 255 // 360)))
    picture = base.convert(mode)
    draw = ImageDraw.Draw(picture)
    for ring in range(RINGS):
        radius = min(width, height) * (ring + 1) // (2 * RINGS)
        angle = math.radians(hue + ring * GOLDEN)
        x = width // 2 + int(math.cos(angle) * width / 4)
        y = height // 2 + int(math.sin(angle) * height / 4)
        colour = f"hsl({(hue + ring * 30) % 360}, 80%, 55%)"
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=5)
    if mode == "RGBA":
        hole = (0, 0, width // 4, height // 4)
        picture.paste((0, 0, 0, 0), hole)
    return picture
