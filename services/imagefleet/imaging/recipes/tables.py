"""What a recipes file may say, table by table.

These classes are the published schema (`imagefleet recipes schema`), and judge each key by itself.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from imagefleet.imaging.recipes import (
    MAX_SIDE,
    MOST_VARIANTS,
    Fit,
    Focus,
    Lossless,
    Metadata,
    Place,
    Truncated,
)
from imagefleet.jobs.kinds import RECIPE_FORM

VARIANT_NAME: Final = "^[a-z][a-z0-9_-]{0,59}$"  # with "-3x" behind it, it is part of a key
COLOUR: Final = "^#[0-9a-fA-F]{6}$"
FORMS: Final[Mapping[str, str]] = {
    RECIPE_FORM: "small letters, digits, - and _, a letter first, at most 63",
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


class FileTable(BaseModel):
    """Some keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,  # the line under a key is its description in the schema
        defer_build=True,  # no other verb waits for it
    )


class WatermarkTable(FileTable):
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


class VariantTable(FileTable):
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


class RecipeTable(FileTable):
    """The variants that are made of an image."""

    description: Annotated[str, Field(max_length=1000)] = ""
    """For readers of the file."""
    metadata: Annotated[Metadata, _BY_NAME] = Metadata.NONE
    """What a file says besides its pixels: nothing, or whose it is by the source's own words."""
    truncated: Annotated[Truncated, _BY_NAME] = Truncated.WARN
    """What becomes of a JPEG whose data ends long before its pixels do."""
    variants: Annotated[list[VariantTable], Field(min_length=1, max_length=MOST_VARIANTS)]
    """In the order in which they are listed."""


class RecipesFile(FileTable):
    """The recipes of a fleet, by name; uploads that name none use `default`."""

    schema_at: Annotated[str, Field(alias="$schema")] = ""
    """For editors of JSON."""
    recipes: Annotated[
        dict[Annotated[str, Field(pattern=RECIPE_FORM)], RecipeTable],
        Field(min_length=1, max_length=64),
    ]
    """One of them is called default."""
