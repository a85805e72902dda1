"""Which variants are made of a picture: named, immutable, known by the hash of their content.

A producer names a recipe and never writes one: free parameters would let anybody order unbounded
work. Whoever runs the fleet writes them. A recipe that was edited is another version, with another
hash: images say which version made them, and every version that was ever in force can still be made
by any worker, as it goes to it whole (`document`, `Recipe.of`).

What a recipe is stands here, and is all that a child imports. Beside it is where they come from:
`files` reads a file whole or tells every fault of it, `tables` are what it may say, `variants` what
those come to, and `lines` where in it something stands.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple, Self

from imagefleet.jobs.images import ImageFormat

MAX_SIDE = 16_383  # WebP's own
MOST_VARIANTS = 48  # each is a file that is open beside the picture
MOST_MARK_PIXELS = 2**20  # of the image of a watermark
LONGEST_MARKS = 64 * 1024  # characters of all images of watermarks: they go with every rendering
OUTPUTS = frozenset({ImageFormat.JPEG, ImageFormat.PNG, ImageFormat.WEBP, ImageFormat.AVIF})


class Fit(StrEnum):
    INSIDE = "inside"  # the whole picture, no side longer than the box
    COVER = "cover"  # the box filled, what reaches beyond it cut off around the focus
    CONTAIN = "contain"  # the whole picture in the middle of a box of exactly this size
    PAD = "pad"  # the whole picture with margins on two sides, as wide to high as the box


class Focus(StrEnum):
    """What is kept of a picture that is cut, where the image has no focal point of its own."""

    CENTRE = "centre"
    ATTENTION = "attention"  # where most is to be seen


class Lossless(StrEnum):
    """When WebP loses nothing. PNG never does, JPEG and AVIF always do."""

    NEVER = "never"
    GRAPHICS = "graphics"  # of flat pictures, where that is smaller
    ALWAYS = "always"


class Metadata(StrEnum):
    """What a variant says besides its pixels."""

    NONE = "none"
    COPYRIGHT = "copyright"  # whose it is, by the source's own words


class Truncated(StrEnum):
    """What becomes of a JPEG whose data ends long before its pixels do."""

    REFUSE = "refuse"
    WARN = "warn"


class Place(StrEnum):
    TOP_LEFT = "top-left"
    TOP = "top"
    TOP_RIGHT = "top-right"
    LEFT = "left"
    CENTRE = "centre"
    RIGHT = "right"
    BOTTOM_LEFT = "bottom-left"
    BOTTOM = "bottom"
    BOTTOM_RIGHT = "bottom-right"


class Encoding(NamedTuple):
    """A format, and how good."""

    format: ImageFormat
    quality: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """A picture that is laid over the variant."""

    image: str  # a PNG or WebP file, in base64: a recipe is whole by itself
    place: Place = Place.BOTTOM_RIGHT
    scale: float = 0.2  # its width, as a share of the variant's
    opacity: float = 1.0
    tile: bool = False  # all over the variant; `place` does not matter then


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """One output: a box of width x height pixels, and how the picture is brought into it.

    A source that is smaller keeps its size, and the variant says `not_enlarged`.
    """

    name: str
    width: int
    height: int
    format: ImageFormat
    quality: int
    fit: Fit = Fit.INSIDE
    or_smaller: tuple[Encoding, ...] = ()
    """Formats that take its format's place in a picture where they come out smaller."""
    focus: Focus = Focus.CENTRE
    most_bytes: int | None = None
    """`quality` goes down until it fits."""
    lossless: Lossless = Lossless.GRAPHICS
    background: str | None = None
    """#rrggbb behind what is transparent; None: white, where the format knows no transparency."""
    sharpen: float = 0.0
    """0 to 1, after scaling down."""
    watermark: Watermark | None = None

    def __post_init__(self) -> None:
        if not OUTPUTS.issuperset(self.formats) or len(set(self.formats)) != len(self.formats):
            message = f"{self.name}: {', '.join(self.formats)} are not output formats, each once"
            raise ValueError(message)
        if not (0 < self.width <= MAX_SIDE and 0 < self.height <= MAX_SIDE):
            message = f"{self.name}: a box of {self.width}x{self.height} pixels"
            raise ValueError(message)

    @property
    def formats(self) -> tuple[ImageFormat, ...]:
        """What it may come out as; the first is the one that it is unless another is smaller."""
        return (self.format, *(encoding.format for encoding in self.or_smaller))

    @classmethod
    def of(cls, document: Mapping[str, Any], marks: Sequence[str] = ()) -> Self:
        """Read one of `Recipe.document`; it was checked when it was written."""
        given = dict(document)
        given["format"] = ImageFormat(given["format"])
        given["or_smaller"] = tuple(
            Encoding(ImageFormat(form), quality) for form, quality in given["or_smaller"]
        )
        for name, kind in (("fit", Fit), ("focus", Focus), ("lossless", Lossless)):
            given[name] = kind(given[name])
        if given["watermark"] is not None:
            mark = given["watermark"]
            told = {**mark, "image": marks[mark["image"]], "place": Place(mark["place"])}
            given["watermark"] = Watermark(**told)
        return cls(**given)


@dataclass(frozen=True)
class Recipe:
    """A name and its variants; two variants may share a name, never a name and a format."""

    name: str
    variants: tuple[VariantSpec, ...]
    metadata: Metadata = Metadata.NONE
    truncated: Truncated = Truncated.WARN

    def __post_init__(self) -> None:
        keys = [(variant.name, form) for variant in self.variants for form in variant.formats]
        if not 0 < len(keys) <= MOST_VARIANTS or len(set(keys)) != len(keys):
            message = f"recipe {self.name}: no variants, or one twice, or over {MOST_VARIANTS}"
            raise ValueError(message)
        if sum(map(len, self.marks)) > LONGEST_MARKS:
            message = f"recipe {self.name}: watermarks of over {LONGEST_MARKS} characters"
            raise ValueError(message)

    @property
    def marks(self) -> list[str]:
        """The images of its watermarks, each once."""
        marks = (variant.watermark for variant in self.variants)
        return list(dict.fromkeys(mark.image for mark in marks if mark))

    def document(self) -> dict[str, Any]:
        """All of it but its name, as JSON: what is stored, and what a child is given.

        Images of watermarks are in it once, and by number in the variants.
        """
        marks = self.marks
        variants = [asdict(variant) for variant in self.variants]
        for watermark in filter(None, (variant["watermark"] for variant in variants)):
            watermark["image"] = marks.index(watermark["image"])
        told = {"metadata": self.metadata, "truncated": self.truncated, "variants": variants}
        return {**told, "marks": marks} if marks else told

    @classmethod
    def of(cls, name: str, document: Mapping[str, Any]) -> Self:
        """The recipe of a document."""
        return cls(
            name,
            tuple(
                VariantSpec.of(variant, document.get("marks", ()))
                for variant in document["variants"]
            ),
            Metadata(document["metadata"]),
            Truncated(document["truncated"]),
        )

    @property
    def makes(self) -> frozenset[ImageFormat]:
        """What its files may come out as."""
        return frozenset(form for variant in self.variants for form in variant.formats)

    @cached_property
    def hash(self) -> str:
        """32 hexadecimal digits of its content; the name is not part of it."""
        canonical = json.dumps(self.document(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]
