"""Whatever colours a picture came in, sRGB is what leaves.

Untagged RGB and grey are taken for sRGB, as browsers do. A profile is somebody else's data: it is
capped, must describe the kind of picture it came with, and where it cannot be used the picture goes
on as if untagged, with a caveat.
"""

import io
from functools import cache

from PIL import Image, ImageCms

from imagefleet.imaging.recipes import Caveat

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
