"""Pictures of our own: to try the fleet with, the same ones every time, and to warm codecs by."""

import base64
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from PIL import Image, ImageCms

from imagefleet.imaging.codecs import check_installation, open_image, reading
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import (
    Encoding,
    Fit,
    Focus,
    Lossless,
    Metadata,
    Recipe,
    VariantSpec,
    Watermark,
)
from imagefleet.imaging.render import render
from imagefleet.jobs.images import ImageFormat

SIZES: Final = ((1600, 1200), (900, 1400), (640, 480), (1280, 720), (320, 320), (2048, 1152))
FORMATS: Final = ("jpeg", "png", "webp", "gif")
ORIENTATION: Final = 0x0112
LIES_ON_ITS_SIDE: Final = 6
GIF_FRAMES: Final = 3
RINGS: Final = 12
PHOTO: Final = (2560, 1920)
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
            content = _saved(picture, "JPEG", quality=88, exif=_lying())
        case "png":
            content = _saved(picture, "PNG", compress_level=1)
        case "webp":
            content = _saved(picture, "WEBP", quality=85, method=0)
        case _:
            first, *others = (
                picture.rotate(90 * turn).quantize(64, Image.Quantize.FASTOCTREE)
                for turn in range(GIF_FRAMES)
            )
            content = _saved(first, "GIF", save_all=True, append_images=others, duration=200)
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


def warm() -> None:
    """Load every codec by using it; Misconfigured where Pillow is too old or lacks one.

    For the parent of decoding processes: a child may be forbidden to open files, and an import is
    one, so whatever Pillow loads on first use has to be loaded before the fork.
    """
    check_installation()
    for picture in _small_ones():
        render(picture, _every_way(), Limits(), _nowhere)
    # The size of a photo, for what the C library learns of it: a heap that has met large pictures
    # asks the kernel less often, and every child inherits it (2 % of a photo's CPU).
    photo = _saved(Image.linear_gradient("L").resize(PHOTO).convert("RGB"), "JPEG")
    ways = product((200, 640, 1280, 1920), (ImageFormat.WEBP, ImageFormat.JPEG))
    ladder = tuple(VariantSpec(str(side), side, side, form, 80) for side, form in ways)
    render(photo, Recipe("ladder", ladder), Limits(), _nowhere)


def _every_way() -> Recipe:
    """Whatever a recipe may ask for, at least once."""
    jpeg, webp, avif, png = ImageFormat.JPEG, ImageFormat.WEBP, ImageFormat.AVIF, ImageFormat.PNG
    mark = base64.b64encode(_saved(Image.new("RGBA", (4, 4), "white"), "WEBP")).decode()
    tiles = Watermark(mark, tile=True)
    variants = (
        VariantSpec("plain", 8, 8, jpeg, 80),
        VariantSpec("plain", 8, 8, avif, 63),
        VariantSpec("plain", 8, 8, png, 100),
        VariantSpec("auto", 8, 8, webp, 80, or_smaller=(Encoding(png, 100),), most_bytes=256),
        VariantSpec("exact", 8, 8, webp, 80, lossless=Lossless.ALWAYS, watermark=Watermark(mark)),
        VariantSpec("cut", 8, 6, webp, 80, Fit.COVER, focus=Focus.ATTENTION, sharpen=0.5),
        VariantSpec("pad", 8, 6, jpeg, 80, Fit.PAD, background="#8090a0", watermark=tiles),
    )
    return Recipe("every way", variants, Metadata.COPYRIGHT)


def _nowhere(_name: str, _format: ImageFormat, _encoded: bytes) -> None:
    pass


def _small_ones() -> Iterator[bytes]:
    """One small picture a format, with everything in it that takes a path of its own."""
    colours = Image.new("RGBA", (16, 16), (200, 100, 50, 128))
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    tagged = {"exif": _lying(), "icc_profile": profile}
    yield _saved(colours.convert("RGB"), "JPEG", progressive=True, **tagged)
    yield _saved(colours.convert("CMYK"), "JPEG")
    yield _saved(colours, "PNG", **tagged)
    yield _saved(colours.convert("P"), "PNG", transparency=0)
    yield _saved(Image.new("I;16", (16, 16), 500), "PNG")
    yield _saved(colours, "WEBP", **tagged)
    yield _saved(
        colours.convert("P"), "GIF", save_all=True, append_images=[Image.new("P", (16, 16))]
    )
    yield _saved(colours, "AVIF", max_threads=1, **tagged)
    frames = [Image.new("RGB", (16, 16), "navy")]
    yield _saved(colours.convert("RGB"), "MPO", save_all=True, append_images=frames)


def _lying() -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = LIES_ON_ITS_SIDE
    return exif


def _saved(picture: Image.Image, pillow_format: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, pillow_format, **options)
    return out.getvalue()
