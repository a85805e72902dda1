"""The warming up of whoever decodes: every codec is used once, as by pictures and recipes."""

import base64
import io
from collections.abc import Iterator
from itertools import product
from typing import Final

from PIL import Image, ImageCms

from imagefleet.imaging.codecs import check_installation
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

ORIENTATION: Final = 0x0112
LIES_ON_ITS_SIDE: Final = 6
PHOTO: Final = (2560, 1920)


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
    photo = saved(Image.linear_gradient("L").resize(PHOTO).convert("RGB"), "JPEG")
    ways = product((200, 640, 1280, 1920), (ImageFormat.WEBP, ImageFormat.JPEG))
    ladder = tuple(VariantSpec(str(side), side, side, form, 80) for side, form in ways)
    render(photo, Recipe("ladder", ladder), Limits(), _nowhere)


def _every_way() -> Recipe:
    """Whatever a recipe may ask for, at least once."""
    jpeg, webp, avif, png = ImageFormat.JPEG, ImageFormat.WEBP, ImageFormat.AVIF, ImageFormat.PNG
    mark = base64.b64encode(saved(Image.new("RGBA", (4, 4), "white"), "WEBP")).decode()
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
    tagged = {"exif": lying(), "icc_profile": profile}
    yield saved(colours.convert("RGB"), "JPEG", progressive=True, **tagged)
    yield saved(colours.convert("CMYK"), "JPEG")
    yield saved(colours, "PNG", **tagged)
    yield saved(colours.convert("P"), "PNG", transparency=0)
    yield saved(Image.new("I;16", (16, 16), 500), "PNG")
    yield saved(colours, "WEBP", **tagged)
    yield saved(
        colours.convert("P"), "GIF", save_all=True, append_images=[Image.new("P", (16, 16))]
    )
    yield saved(colours, "AVIF", max_threads=1, **tagged)
    frames = [Image.new("RGB", (16, 16), "navy")]
    yield saved(colours.convert("RGB"), "MPO", save_all=True, append_images=frames)


def lying() -> Image.Exif:
    """Of a picture that lies on its side."""
    exif = Image.Exif()
    exif[ORIENTATION] = LIES_ON_ITS_SIDE
    return exif


def saved(picture: Image.Image, pillow_format: str, **options: object) -> bytes:
    """The picture as a file."""
    out = io.BytesIO()
    picture.save(out, pillow_format, **options)
    return out.getvalue()
