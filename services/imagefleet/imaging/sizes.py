"""How large each variant of a picture is, and in which order one size is made from another."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from imagefleet.imaging.recipes import Fit, VariantSpec
from imagefleet.jobs.images import Focal

# The part of its size that a JPEG is decoded at, and how many times the largest variant that has to
# be at least: below, the decoder's own scaling would show (docs/images.md). Of halves it does not.
_DRAFTS = ((8, 1.25), (4, 1.25), (2, 1.0))
_SIDEWAYS = 5  # EXIF orientations from here on swap width and height
_CENTRE = Focal(0.5, 0.5)


class Size(NamedTuple):
    width: int
    height: int

    @property
    def pixels(self) -> int:
        return self.width * self.height

    def turned(self, orientation: int) -> "Size":
        """This size before or after a picture of that orientation is turned upright."""
        return Size(self.height, self.width) if orientation >= _SIDEWAYS else self


@dataclass(frozen=True, slots=True)
class SizeLevel:
    """One size of the whole picture, and the variants that are made from it."""

    size: Size
    variants: tuple[VariantSpec, ...]


def scaled(source: Size, variant: VariantSpec) -> Size:
    """The whole picture's size for this variant, before cropping or padding; never enlarged."""
    if too_small(source, variant):
        return source
    if _width_decides(source, variant):
        return Size(variant.width, _share(source.height, variant.width, source.width))
    return Size(_share(source.width, variant.height, source.height), variant.height)


def too_small(source: Size, variant: VariantSpec) -> bool:
    """Whether the source would have to be enlarged to do what the variant asks for."""
    if _width_decides(source, variant):
        return variant.width > source.width
    return variant.height > source.height


def fitted(size: Size, variant: VariantSpec) -> Size:
    """The size of a variant that is made of the whole picture at that one (`scaled`).

    What is cut or padded is as wide to high as the box and as large as it; of a source that is too
    small it has the same shape, and is smaller. A thumbnail in a row of squares is a square.
    """
    shaped = Size(
        _share(size.height, variant.width, variant.height),
        _share(size.width, variant.height, variant.width),
    )
    match variant.fit:
        case Fit.INSIDE:
            return size
        case Fit.COVER:
            return Size(min(size.width, shaped.width), min(size.height, shaped.height))
        case Fit.PAD:
            return Size(max(size.width, shaped.width), max(size.height, shaped.height))
        case Fit.CONTAIN:
            return Size(variant.width, variant.height)


def window(size: Size, kept: Size, focal: Focal | None) -> tuple[int, int, int, int]:
    """What is kept of a picture that is cut: as near around the point as its edges let it be."""
    x, y = focal or _CENTRE
    left, top = _from(size.width, kept.width, x), _from(size.height, kept.height, y)
    return left, top, left + kept.width, top + kept.height


def levels(source: Size, variants: Iterable[VariantSpec]) -> tuple[SizeLevel, ...]:
    """Every size that is needed, largest first, so that each can be made from the one before."""
    ordered = sorted(
        ((scaled(source, variant), variant) for variant in variants),
        key=lambda pair: (pair[0].pixels, pair[0]),
        reverse=True,
    )
    return tuple(
        SizeLevel(size, tuple(variant for _, variant in pairs))
        for size, pairs in groupby(ordered, key=lambda pair: pair[0])
    )


def draft_part(source: Size, wanted: Size) -> int:
    """The part of its sides that a JPEG is decoded at, for a picture of the size that is wanted."""
    pairs = tuple(zip(source, wanted, strict=True))
    fitting = (
        part
        for part, margin in _DRAFTS
        if all(-(-side // part) >= margin * length for side, length in pairs)
    )
    return next(fitting, 1)


def _width_decides(source: Size, variant: VariantSpec) -> bool:
    """Whether the picture meets the box's sides first (or, to cover it, last) with its width."""
    wider_than_box = source.width * variant.height >= variant.width * source.height
    return wider_than_box != (variant.fit is Fit.COVER)


def _share(side: int, numerator: int, denominator: int) -> int:
    return max(1, (side * numerator + denominator // 2) // denominator)


def _from(length: int, kept: int, share: float) -> int:
    """Where that much of a side begins; of two that are as near, the first."""
    wanted = math.ceil(length * share - kept / 2 - 0.5)
    return max(0, min(wanted, length - kept))
