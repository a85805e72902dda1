"""The door to Pillow: which decoders exist for us, what their faults mean, what colours become.

Whatever colours a picture came in, sRGB is what leaves. Untagged RGB and grey are taken for sRGB,
as browsers do. A profile is somebody else's data: it is capped, must describe the kind of picture
it came with, and where it cannot be used the picture goes on as if untagged, with a caveat.
"""

import ctypes
import errno
import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import PIL
from PIL import AvifImagePlugin, Image, ImageCms, ImageFile, PngImagePlugin, features

# Imported so that they are registered: otherwise Pillow, on meeting one it does not know, imports
# every decoder it has.
from PIL import (  # isort: skip
    GifImagePlugin,  # noqa: F401
    JpegImagePlugin,  # noqa: F401
    MpoImagePlugin,  # noqa: F401
    TiffImagePlugin,  # noqa: F401 - reads EXIF; not among the formats we open
    WebPImagePlugin,
)
from functools import cache

from imagefleet.errors import InputRejected, Misconfigured
from imagefleet.imaging.headers.facts import corrupt
from imagefleet.jobs.images import Caveat, ImageFormat

# Older ones overflow buffers in the JPEG decoder, the one that no allowlist can spare us.
OLDEST_PILLOW = (13, 0, 0)

# MPO, which phones write, is opened by the JPEG decoder and calls itself MPO afterwards.
_PILLOW_FORMATS = tuple(image_format.name for image_format in ImageFormat)


class _WebP(WebPImagePlugin.WebPImageFile):
    """Lets go of the decoder, which holds two more pictures, before its own is made."""

    def load_prepare(self) -> None:
        if not self.is_animated:  # others are asked for the next frame
            del self._decoder
        super().load_prepare()


Image.register_open("WEBP", _WebP, Image.OPEN["WEBP"][1])
# Of texts and of the profile in a PNG, inflated: each, and all texts together.
_MOST_TEXT_BYTES = 4 * 2**20
_MOST_TEXTS_BYTES = 16 * 2**20
_TOO_MUCH_TEXT = "PngImagePlugin.MAX_TEXT_CHUNK", "MAX_TEXT_MEMORY"  # in what Pillow says of more

# A damaged file makes Pillow raise nearly everything. The list is explicit so that a mistake of
# ours outside a decoder is not mistaken for the file's.
_READ_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImageCms.PyCMSError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)


@contextmanager
def reading(max_pixels: int) -> Iterator[list[warnings.WarningMessage]]:
    """Run a decoder: its faults become InputRejected, its warnings the list that is handed out."""
    previous = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = max_pixels
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        # Pillow only raises at twice its limit and warns below; the limit is meant.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            yield heard
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as fault:
            sentence = "The image has too many pixels."
            raise InputRejected("too_many_pixels", sentence, str(fault)) from fault
        except _READ_FAULTS as fault:
            if any(bound in str(fault) for bound in _TOO_MUCH_TEXT):
                sentence = "The image carries too much metadata."
                raise InputRejected("too_much_metadata", sentence, str(fault)) from fault
            raise corrupt(None, f"{type(fault).__name__}: {fault}") from fault
        finally:
            Image.MAX_IMAGE_PIXELS = previous


def open_image(data: bytes) -> ImageFile.ImageFile:
    """The opened, undecoded picture. Call it, and whatever reads pixels later, within reading()."""
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    # In a child that may not start threads the decoder would fail, and elsewhere it would take
    # every core.
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    PngImagePlugin.MAX_TEXT_CHUNK = _MOST_TEXT_BYTES
    PngImagePlugin.MAX_TEXT_MEMORY = _MOST_TEXTS_BYTES
    return Image.open(io.BytesIO(data), formats=_PILLOW_FORMATS)


def check_installation() -> None:
    """Misconfigured unless this Pillow is safe enough and has every codec the recipes need."""
    version = tuple(int(part) for part in PIL.__version__.split(".")[:3] if part.isdigit())
    faults = []
    if version < OLDEST_PILLOW:
        oldest = ".".join(map(str, OLDEST_PILLOW))
        faults.append(f"Pillow {PIL.__version__} is older than {oldest}, which fixed its decoders")
    faults += [
        f"Pillow was built without {name}"
        for name in ("jpg", "zlib", "webp", "avif", "littlecms2")
        if not features.check(name)
    ]
    if faults:
        raise Misconfigured("; ".join(faults))


_errno_of_thread: Final = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_int))(
    ("__errno_location", ctypes.CDLL(None))
)


def forget_refusals() -> None:
    """Begin to watch for memory that the kernel does not give."""
    _errno_of_thread().contents.value = 0


def was_refused_memory() -> bool:
    """Whether that failed, after which decoders say nothing, or that a picture is broken."""
    return bool(_errno_of_thread().contents.value == errno.ENOMEM)


_SPACES = {"L": "GRAY", "RGB": "RGB ", "CMYK": "CMYK"}
_PROFILE_FAULTS = (ImageCms.PyCMSError, OSError, TypeError, ValueError)
_INVISIBLE = 1  # of 255: a profile that moves no colour further is sRGB itself


def to_srgb(
    picture: Image.Image, profile: bytes | None, max_icc_bytes: int
) -> tuple[Image.Image, tuple[Caveat, ...]]:
    """The picture in sRGB, as L, LA, RGB or RGBA; alpha is kept as it is."""
    if not profile:
        caveats = (Caveat.CMYK_WITHOUT_PROFILE,) if picture.mode == "CMYK" else ()
        return _without_profile(picture), caveats
    if len(profile) > max_icc_bytes:
        return _without_profile(picture), (Caveat.PROFILE_TOO_LARGE,)
    colours = picture.convert(picture.mode.removesuffix("A"))
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if source.profile.xcolor_space != _SPACES[colours.mode]:
            return _without_profile(picture), (Caveat.PROFILE_MISMATCH,)
        converted = _through(source, colours)
    except _PROFILE_FAULTS:
        if was_refused_memory():
            raise MemoryError from None
        return _without_profile(picture), (Caveat.PROFILE_BROKEN,)
    if picture.mode.endswith("A"):
        converted.putalpha(picture.getchannel("A"))
    return converted, ()


def _through(source: ImageCms.ImageCmsProfile, colours: Image.Image) -> Image.Image:
    transform = ImageCms.buildTransform(
        source,
        _srgb(),
        colours.mode,
        "RGB",
        ImageCms.Intent.RELATIVE_COLORIMETRIC,
        ImageCms.Flags.BLACKPOINTCOMPENSATION,
    )
    # Most profiles are sRGB under one of many names. Asking what a profile does is cheaper than a
    # pass over the picture, and surer than believing its name.
    if colours.mode != "CMYK" and _changes_nothing(transform, colours.mode):
        return colours
    converted = transform.apply(colours)
    return converted.convert("L") if colours.mode == "L" else converted


def _changes_nothing(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    sample = _sample(mode)
    after = transform.apply(sample)
    pairs = zip(sample.convert("RGB").tobytes(), after.tobytes(), strict=True)
    return all(abs(before - now) <= _INVISIBLE for before, now in pairs)


@cache
def _sample(mode: str) -> Image.Image:
    """Some hundred colours: every grey, or a cube of six steps a side."""
    if mode == "L":
        return Image.frombytes("L", (256, 1), bytes(range(256)))
    steps = range(0, 256, 51)
    cube = [channel for r in steps for g in steps for b in steps for channel in (r, g, b)]
    return Image.frombytes("RGB", (len(cube) // 3, 1), bytes(cube))


@cache
def _srgb() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


def _without_profile(picture: Image.Image) -> Image.Image:
    return picture.convert("RGB") if picture.mode == "CMYK" else picture
