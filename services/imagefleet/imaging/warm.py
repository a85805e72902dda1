"""What the parent of decoding processes does once, so that its children only ever compute.

A child may be forbidden to open files, and an import is one: whatever Pillow loads on first use
has to be loaded before the fork.
"""

import io
from collections.abc import Iterator

from PIL import Image, ImageCms

from imagefleet.imaging.codecs import check_installation
from imagefleet.imaging.headers.facts import ImageFormat
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import RECIPES
from imagefleet.imaging.render import render

PHOTO = (2560, 1920)


def warm() -> None:
    """Load every codec by using it; Misconfigured where Pillow is too old or lacks one."""
    check_installation()
    for sample in _samples():
        for recipe in RECIPES.values():
            render(sample, recipe, Limits(), _nowhere)
    # The size of a photo, for what the C library learns of it: a heap that has met large pictures
    # asks the kernel less often, and every child inherits it (2 % of a photo's CPU).
    photo = _saved(Image.linear_gradient("L").resize(PHOTO).convert("RGB"), "JPEG")
    render(photo, RECIPES["default"], Limits(), _nowhere)


def _nowhere(_name: str, _format: ImageFormat, _encoded: bytes) -> None:
    pass


def _samples() -> Iterator[bytes]:
    """One small picture a format, with everything in it that takes a path of its own."""
    colours = Image.new("RGBA", (16, 16), (200, 100, 50, 128))
    exif = Image.Exif()
    exif[0x0112] = 6
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    tagged = {"exif": exif, "icc_profile": profile}
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


def _saved(picture: Image.Image, pillow_format: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, pillow_format, **options)
    return out.getvalue()
