"""Pictures to bytes: every field of an encoder explicit, nothing left to the file."""

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import PIL
from PIL import AvifImagePlugin, Image, features

from imagefleet.imaging.recipes import Recipe, VariantSpec
from imagefleet.jobs.images import Caveat, ImageFormat

# Raise it when the pipeline itself starts to make other pixels from the same recipe.
_PIPELINE_VERSION = 3

EncoderOptions = Mapping[str, int | str | bool]

# Everything an encoder is told besides quality. Progressive, optimised JPEG costs half as much
# again for 3 % fewer bytes. WebP method 4 takes 2.4 times as long as 2, once, and saves 4 % of the
# bytes and 0.3 dB each time somebody looks (docs/images.md). AVIF's bytes depend on its number of
# threads, so it has one.
ENCODERS: Mapping[ImageFormat, EncoderOptions] = MappingProxyType(
    {
        ImageFormat.JPEG: MappingProxyType(
            {"subsampling": "4:2:0", "progressive": False, "optimize": False}
        ),
        ImageFormat.PNG: MappingProxyType({"compress_level": 9}),
        ImageFormat.WEBP: MappingProxyType(
            {"lossless": False, "alpha_quality": 100, "method": 4, "exact": False}
        ),
        ImageFormat.AVIF: MappingProxyType(
            {
                "subsampling": "4:2:0",
                "speed": 8,
                "range": "full",
                "codec": "aom",
                "max_threads": 1,
                "autotiling": False,
            }
        ),
    }
)

# What may carry somebody's words, place or profile. Named and emptied, as several encoders fall
# back on the picture's own info where the caller is silent.
_NOTHING: dict[str, bytes] = {"exif": b"", "xmp": b"", "icc_profile": b"", "comment": b""}


_WHITE: dict[str, float | tuple[float, ...]] = {"L": 255, "RGB": (255, 255, 255)}


def encoder_fingerprint(recipe: Recipe) -> str:
    """What the bytes of a variant depend on besides its source: the same gives the same bytes.

    The recipe, by the hash of all that is in it; our own pipeline, with the encoders' options;
    Pillow, and the codecs in it.
    """
    options = json.dumps({form: dict(told) for form, told in ENCODERS.items()}, sort_keys=True)
    versions = {
        "recipe": recipe.hash,
        "pipeline": f"{_PIPELINE_VERSION}.{hashlib.sha256(options.encode()).hexdigest()[:8]}",
        "pillow": PIL.__version__,
        "jpeg": features.version("libjpeg_turbo") or features.version("jpg"),
        "zlib": features.version("zlib_ng") or features.version("zlib"),
        "webp": features.version("webp"),
        "avif": features.version("avif"),
        "aom": AvifImagePlugin.get_codec_version("aom"),
        "dav1d": AvifImagePlugin.get_codec_version("dav1d"),
        "lcms": features.version("littlecms2"),
    }
    return " ".join(f"{name}/{version or 'none'}" for name, version in versions.items())


@dataclass(frozen=True, slots=True)
class Encoded:
    """A variant's bytes, in the format that it came out in."""

    format: ImageFormat
    content: bytes
    caveats: tuple[Caveat, ...] = ()


def encode(picture: Image.Image, variant: VariantSpec) -> Encoded:
    """A clean picture to bytes, as the variant asks.

    The same picture and settings give the same bytes, as long as the fingerprint is the same.
    """
    flat, caveats = flatten(picture, variant.format)
    return Encoded(variant.format, save(flat, variant.format, variant.quality), caveats)


def save(picture: Image.Image, image_format: ImageFormat, quality: int) -> bytes:
    """Every field of the encoder explicit, nothing left to the file."""
    clean = picture.convert("RGBA") if picture.mode == "LA" else picture
    out = io.BytesIO()
    options = ENCODERS[image_format]
    clean.save(out, format=image_format.name, quality=quality, **options, **_NOTHING)
    return out.getvalue()


def flatten(
    picture: Image.Image, image_format: ImageFormat
) -> tuple[Image.Image, tuple[Caveat, ...]]:
    """The picture on white where the format knows no transparency."""
    if image_format is not ImageFormat.JPEG or not picture.mode.endswith("A"):
        return picture, ()
    mode = picture.mode.removesuffix("A")
    paper = Image.new(mode, picture.size, _WHITE[mode])
    paper.paste(picture.convert(mode), mask=picture.getchannel("A"))
    return paper, (Caveat.ALPHA_FLATTENED,)
