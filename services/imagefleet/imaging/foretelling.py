"""What making the variants of a file takes in memory, by its head alone, and rather more than less.

Two moments take most, one after the other: when the source is decoded and shrunk, and when the
largest variant is encoded. Figures are those of `make bench-memory`, which fails where a picture
takes more than is foretold here (docs/images.md).
"""

from collections.abc import Sequence
from typing import assert_never

from imagefleet.imaging.headers.facts import HeaderFacts
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import VariantSpec
from imagefleet.imaging.sizes import Size, draft_part, fitted, levels
from imagefleet.jobs.images import ImageFormat

_MIB = 2**20
_AT_REST = 24 * _MIB  # what a child has that does nothing
_COPIES_OF_FILE = 4  # as it was read, with an end of its own, and twice with filling (JPEG)
_SHRUNK = 8  # bytes a pixel of the largest, scaled and not cut yet, beside the source
_ENCODED = 44  # of the largest variant when it is encoded, as AVIF or as WebP with alpha
_TWO_PICTURES = 8  # a JPEG is decoded again where it may lack some
_ROW = 16  # Pillow keeps the address of each row, of two pictures


def decoding_bytes(
    facts: HeaderFacts, size_bytes: int, limits: Limits, variants: Sequence[VariantSpec]
) -> int:
    """Of a file whose size its head does not tell, what the largest picture takes."""
    source = Size(facts.width or 0, facts.height or 0)
    if not all(source):  # the largest that may be, and a long way from any variant
        source = Size(limits.pixels_of(facts.format), 1)
    size = source.turned(facts.orientation)
    ordered = levels(size, variants)
    shown = (fitted(level.size, spec) for level in ordered for spec in level.variants)
    made = max(wide * high for wide, high in shown)
    shrunk = ordered[0].size.width * ordered[0].size.height
    held = source.width * source.height * _bytes_a_pixel(facts)
    if facts.format is ImageFormat.JPEG:
        part = draft_part(source, ordered[0].size.turned(facts.orientation))
        held += source.width * source.height / part**2 * _TWO_PICTURES
    shrinking = held + _ROW * source.height + _SHRUNK * shrunk
    return int(_AT_REST + _COPIES_OF_FILE * size_bytes + max(shrinking, _ENCODED * made))


def _bytes_a_pixel(facts: HeaderFacts) -> float:
    """Of the whole source, at the moment when most is held."""
    match facts.format:
        case ImageFormat.JPEG:  # in passes, all coefficients; the picture is told above
            return 2 * facts.samples + 0.25 if facts.progressive else 0.25
        case ImageFormat.PNG:  # itself; with alpha again, premultiplied; grey may be 32 bits wide
            return 11.5 if facts.deep else (9.5 if facts.alpha else 5.5)
        case ImageFormat.GIF:
            return 9.5
        case ImageFormat.WEBP:  # the decoder's canvas twice, and what it hands out
            return 16.5 if facts.animated else 12.75
        case ImageFormat.AVIF:  # planes, which may be deep, beside the picture and its copy
            return (11 if facts.alpha else 7.5) + facts.samples * (2.5 if facts.deep else 1.25)
        case _:
            assert_never(facts.format)
