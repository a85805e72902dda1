"""What the tables of a recipes file come to: variants, or contradictions.

Keys are judged together on whatever the file says, so that single ones' faults are told beside it.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from imagefleet.imaging.recipes import MAX_SIDE, Encoding, Recipe, VariantSpec, Watermark
from imagefleet.imaging.recipes.lines import Where
from imagefleet.imaging.recipes.tables import Quality, RecipeTable, VariantTable
from imagefleet.jobs.images import ImageFormat

MOST_BOX_PIXELS: Final = 2**26  # of a canvas that is made whatever the picture is; 8192 x 8192
FALLBACKS: Final = frozenset({"jpeg", "png"})
AUTO: Final = ["webp", "jpeg", "png"]

# What looks about like a JPEG of some quality (docs/recipes.md): between these points on a line.
_AVIF_LIKE_JPEG: Final = ((0, 0), (20, 30), (50, 47), (80, 63), (90, 79), (100, 100))


def outputs_of(variant: Mapping[str, Any]) -> list[str]:
    """The formats that a variant's table names, by whichever key."""
    single = variant.get("format")
    several = variant.get("allowed", AUTO) if single == "auto" else variant.get("formats", [single])
    return [each for each in several if isinstance(each, str)] if isinstance(several, list) else []


def factors_of(variant: Mapping[str, Any]) -> list[int]:
    """How many dots a pixel it is made for."""
    given = variant.get("factors", [1])
    return [each for each in given if type(each) is int] if isinstance(given, list) else [1]


def named(name: object, factor: int) -> str:
    """What a variant is called that is made for a screen with so many dots a pixel."""
    return f"{name}" if factor == 1 else f"{name}-{factor}x"


def contradictions(variant: Mapping[str, Any]) -> Iterator[tuple[Where, str]]:
    """What does not go together in a variant's table: where in it, and why.

    It is asked of tables that have other faults, too.
    """
    fit, sizes = variant.get("fit", "inside"), variant.keys() & {"width", "height", "edge"}
    if "edge" in sizes and len(sizes) > 1:
        yield ("edge",), "is the longest side: give it alone, or width and height without it"
    elif fit == "inside" and not sizes:
        yield (), "says no size: give edge, width or height"
    elif fit in ["cover", "contain", "pad"] and sizes != {"width", "height"}:
        yield ("fit",), f"{fit} needs width and height, and no edge"
    outputs, factors = outputs_of(variant), factors_of(variant)
    if ("format" in variant) == ("formats" in variant):
        yield (), "has to say either format (one) or formats (a set, best first)"
    elif "formats" in variant and outputs and FALLBACKS.isdisjoint(outputs):
        yield ("formats",), "lacks one that every browser shows: add jpeg or png at the end"
    if "allowed" in variant and variant.get("format") != "auto":
        yield ("allowed",), 'goes with format = "auto" alone'
    for key, said in (("formats", outputs), ("allowed", outputs), ("factors", factors)):
        if key in variant and len(set(map(str, said))) != len(said):
            yield (key,), "names one of them twice"
    most = max(factors, default=1)
    for key in sizes:
        side = variant[key]
        if type(side) is int and side <= MAX_SIDE < side * most:
            yield (key,), f"times {most} is over {MAX_SIDE} pixels: leave out that factor"
    box: list[Any] = [variant.get(side) for side in ("width", "height")]
    if fit in ["contain", "pad"] and all(type(side) is int for side in box):
        pixels = math.prod(box) * most * most
        if pixels > MOST_BOX_PIXELS:
            yield ("fit",), f"{fit} would make {pixels:,} pixels, over {MOST_BOX_PIXELS:,}"
    quality = variant.get("quality")
    for name in (quality.keys() - set(outputs)) if isinstance(quality, dict) else ():
        yield ("quality", name), "is no format of this variant"
    if outputs and "webp" not in outputs and variant.get("lossless") == "always":
        yield ("lossless",), "can be asked of WebP alone, which is not among the formats"
    if outputs == ["png"] and "max_bytes" in variant:
        yield ("max_bytes",), "cannot be kept by PNG, which has no quality that could go down"
    if fit != "cover" and "focus" in variant:
        yield ("focus",), 'is about what cover cuts: it goes with fit = "cover" alone'


def recipe_of(name: str, table: RecipeTable, images: Mapping[str, str]) -> Recipe:
    """The recipe; `images` are the watermarks' files, in base64."""
    variants = tuple(spec for variant in table.variants for spec in _specs(variant, images))
    return Recipe(name, variants, table.metadata, table.truncated)


def _specs(variant: VariantTable, images: Mapping[str, str]) -> Iterator[VariantSpec]:
    encodings = [
        Encoding(ImageFormat(name), _quality(variant.quality, ImageFormat(name)))
        for name in outputs_of(variant.model_dump(exclude_none=True))
    ]
    rest = tuple(encodings[1:]) if variant.format == "auto" else ()
    watermark = None
    if variant.watermark is not None:
        said = variant.watermark.model_dump()
        watermark = Watermark(**{**said, "image": images[said["image"]]})
    width, height = variant.width or variant.edge, variant.height or variant.edge
    for factor in variant.factors:
        for form, quality in encodings[:1] if rest else encodings:
            yield VariantSpec(
                named(variant.name, factor),
                width * factor if width else MAX_SIDE,
                height * factor if height else MAX_SIDE,
                form,
                quality,
                variant.fit,
                rest,
                variant.focus,
                variant.max_bytes,
                variant.lossless,
                variant.background and variant.background.lower(),
                variant.sharpen,
                watermark,
            )


def _quality(said: Quality, form: ImageFormat) -> int:
    """Of one format; PNG has none, and 100 stands for it."""
    if form is ImageFormat.PNG:
        return 100
    like_jpeg = said if isinstance(said, int) else 80
    if form is ImageFormat.AVIF:
        for (low, least), (high, most) in pairwise(_AVIF_LIKE_JPEG):
            if low < like_jpeg <= high:
                like_jpeg = least + round((like_jpeg - low) * (most - least) / (high - low))
                break
    if isinstance(said, int) or form.value not in said:
        return like_jpeg
    return said[form.value]
