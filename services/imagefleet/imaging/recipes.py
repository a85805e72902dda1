"""Which variants are made of a picture: named, immutable, known by hash.

A producer names a recipe and never writes one: free parameters would let anybody order unbounded
work. Editing a recipe changes its hash, and with it what the ledger says was made by it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType

from imagefleet.jobs.images import ImageFormat

# Raise it when the pipeline itself starts to make other pixels from the same recipe.
_PIPELINE_VERSION = 2

_MAX_SIDE = 16_383  # WebP's own

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


class Fit(StrEnum):
    INSIDE = "inside"  # the whole picture, no side longer than the box
    COVER = "cover"  # the box filled, what reaches beyond it cut off around the focus
    CONTAIN = "contain"  # the whole picture in the middle of a box of exactly this size


# In what no two variants differ; their hash has always said so.
_ALIKE = {
    "focus": "centre",
    "upscaling": "never",  # a smaller source keeps its size, and the variant says not_enlarged
    "metadata": "strip",  # nothing but pixels
    "animation": "first_frame",
}


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """One output: a box of width x height pixels, and how the picture is brought into it."""

    name: str
    width: int
    height: int
    format: ImageFormat
    quality: int
    fit: Fit = Fit.INSIDE

    def __post_init__(self) -> None:
        if self.format not in ENCODERS:
            message = f"{self.name}: {self.format} is not an output format"
            raise ValueError(message)
        if not (0 < self.width <= _MAX_SIDE and 0 < self.height <= _MAX_SIDE):
            message = f"{self.name}: a box of {self.width}x{self.height} pixels"
            raise ValueError(message)


@dataclass(frozen=True)
class Recipe:
    """A name and its variants; two variants may share a name, never a name and a format."""

    name: str
    variants: tuple[VariantSpec, ...]

    def __post_init__(self) -> None:
        keys = {(variant.name, variant.format) for variant in self.variants}
        if not self.variants or len(keys) != len(self.variants):
            message = f"recipe {self.name}: no variants, or one twice"
            raise ValueError(message)

    @cached_property
    def hash(self) -> str:
        """32 hexadecimal digits that change with anything that can change an output byte."""
        content = {
            "pipeline": _PIPELINE_VERSION,
            "variants": [{**asdict(variant), **_ALIKE} for variant in self.variants],
            "encoders": {
                variant.format: dict(ENCODERS[variant.format]) for variant in self.variants
            },
        }
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]


_SIDES = MappingProxyType({"thumb": 200, "small": 640, "medium": 1280, "large": 1920})


def _ladder(name: str, qualities: Mapping[ImageFormat, int]) -> Recipe:
    return Recipe(
        name,
        tuple(
            VariantSpec(step, side, side, image_format, quality)
            for step, side in _SIDES.items()
            for image_format, quality in qualities.items()
        ),
    )


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            _ladder("default", {ImageFormat.WEBP: 80, ImageFormat.JPEG: 80}),
            _ladder("avif", {ImageFormat.AVIF: 63}),
        )
    }
)
