"""What a recipes file may say, table by table, and what that comes to: variants, or contradictions.

The classes are the published schema (`imagefleet recipes schema`), and judge each key by itself.
What several keys say together is judged on whatever the file says, so that it is told beside the
faults of single keys.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from imagefleet.imaging.recipe_lines import Where
from imagefleet.imaging.recipes import (
    MAX_SIDE,
    MOST_VARIANTS,
    Encoding,
    Fit,
    Focus,
    Lossless,
    Metadata,
    Place,
    Recipe,
    Truncated,
    VariantSpec,
    Watermark,
)
from imagefleet.jobs.images import ImageFormat

RECIPE_NAME: Final = "^[a-z][a-z0-9_-]{0,62}$"
VARIANT_NAME: Final = "^[a-z][a-z0-9_-]{0,59}$"  # with "-3x" behind it, it is part of a key
COLOUR: Final = "^#[0-9a-fA-F]{6}$"
FORMS: Final[Mapping[str, str]] = {
    RECIPE_NAME: "small letters, digits, - and _, a letter first, at most 63",
    VARIANT_NAME: "small letters, digits, - and _, a letter first, at most 60",
    COLOUR: "a colour such as #ffffff",
}

OutputName: TypeAlias = Literal["jpeg", "png", "webp", "avif"]
Side: TypeAlias = Annotated[int, Field(ge=1, le=MAX_SIDE)]
Percent: TypeAlias = Annotated[int, Field(ge=1, le=100)]
Quality: TypeAlias = Annotated[
    Annotated[Percent, Tag("number")]
    | Annotated[
        Annotated[dict[Literal["jpeg", "webp", "avif"], Percent], Field(min_length=1)], Tag("table")
    ],
    Discriminator(lambda given: "table" if isinstance(given, dict) else "number"),
]
# A name of a list goes for the thing itself; all else is strict.
_BY_NAME: Final = Field(strict=False)


class Table(BaseModel):
    """Some keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,  # the line under a key is its description in the schema
        defer_build=True,  # no other verb waits for it
    )


class WatermarkTable(Table):
    """A picture that is laid over the variant."""

    image: Annotated[str, Field(min_length=1, max_length=1024)]
    """A PNG or WebP file of at most 32 KiB: its path, as seen from the recipes file."""
    place: Annotated[Place, _BY_NAME] = Place.BOTTOM_RIGHT
    """Where in the variant."""
    scale: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Its width, as a share of the variant's."""
    opacity: Annotated[float, Field(gt=0, le=1)] = 1.0
    """1 hides what is behind it."""
    tile: bool = False
    """Whether it is repeated all over the variant; `place` does not matter then."""


class VariantTable(Table):
    """One output, or one for each of several formats and screens."""

    name: Annotated[str, Field(pattern=VARIANT_NAME)]
    """What it is called in addresses; denser screens get `name-2x` and `name-3x`."""
    fit: Annotated[Fit, _BY_NAME] = Fit.INSIDE
    """How the picture is brought into the box: whole (inside), cut (cover), in the middle of
    exactly that box (contain), with margins of the box's ratio (pad). Never enlarged."""
    width: Side | None = None
    """Of the box, in pixels."""
    height: Side | None = None
    """Of the box, in pixels."""
    edge: Side | None = None
    """The longest side, in place of width and height; of fit inside."""
    factors: Annotated[list[Annotated[int, Field(ge=1, le=3)]], Field(min_length=1)] = [1]
    """Once for each of these: 2 and 3 are for screens with so many dots a pixel."""
    format: Literal["jpeg", "png", "webp", "avif", "auto"] | None = None
    """One format, or auto: of each picture the smallest of those that are `allowed`."""
    allowed: Annotated[list[OutputName], Field(min_length=2)] | None = None
    """What auto chooses from; the first, unless another is smaller. webp, jpeg and png unless
    others are named."""
    formats: Annotated[list[OutputName], Field(min_length=1)] | None = None
    """In place of `format`, one file each, best first: browsers take the first that they know."""
    quality: Quality = 80
    """1 to 100 as JPEG counts, for each format what looks about the same; or a table by format."""
    max_bytes: Annotated[int, Field(ge=256, le=32 * 2**20)] | None = None
    """The quality goes down until it fits."""
    lossless: Annotated[Lossless, _BY_NAME] = Lossless.GRAPHICS
    """When WebP loses nothing: never, of graphics where that is smaller, or always."""
    background: Annotated[str, Field(pattern=COLOUR)] | None = None
    """#rrggbb behind what is transparent."""
    sharpen: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How much, after scaling down."""
    focus: Annotated[Focus, _BY_NAME] = Focus.CENTRE
    """What cover keeps of an image without a focal point: its centre, or where most is to see."""
    watermark: WatermarkTable | None = None
    """A picture over it."""


class RecipeTable(Table):
    """The variants that are made of an image."""

    description: Annotated[str, Field(max_length=1000)] = ""
    """For readers of the file."""
    metadata: Annotated[Metadata, _BY_NAME] = Metadata.NONE
    """What a file says besides its pixels: nothing, or whose it is by the source's own words."""
    truncated: Annotated[Truncated, _BY_NAME] = Truncated.WARN
    """What becomes of a JPEG whose data ends long before its pixels do."""
    variants: Annotated[list[VariantTable], Field(min_length=1, max_length=MOST_VARIANTS)]
    """In the order in which they are listed."""


class RecipesFile(Table):
    """The recipes of a fleet, by name; uploads that name none use `default`."""

    schema_at: Annotated[str, Field(alias="$schema")] = ""
    """For editors of JSON."""
    recipes: Annotated[
        dict[Annotated[str, Field(pattern=RECIPE_NAME)], RecipeTable],
        Field(min_length=1, max_length=64),
    ]
    """One of them is called default."""


FALLBACKS: Final = frozenset({"jpeg", "png"})
AUTO: Final = ("webp", "jpeg", "png")

# What looks about like a JPEG of some quality (docs/recipes.md): between these points on a line.
_AVIF_LIKE_JPEG: Final = ((0, 0), (20, 30), (50, 47), (80, 63), (90, 79), (100, 100))


def outputs_of(variant: Mapping[str, Any]) -> list[str]:
    """The formats that a variant's table names, by whichever key."""
    one = variant.get("format")
    several = variant.get("allowed", AUTO) if one == "auto" else variant.get("formats", [one])
    return [name for name in several if isinstance(name, str)] if several else []


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
    for key in sizes:
        side = variant[key]
        if type(side) is int and side <= MAX_SIDE < side * max(factors, default=1):
            yield (key,), f"times {max(factors)} is over {MAX_SIDE} pixels: leave out that factor"
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
