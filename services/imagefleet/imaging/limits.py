"""What one picture may cost us, and will, judged from its header before any pixel exists."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from imagefleet.errors import InputRejected
from imagefleet.imaging.headers.facts import HeaderFacts, corrupt
from imagefleet.imaging.recipes import VariantSpec
from imagefleet.imaging.sizes import Size, draft_part, fitted, levels
from imagefleet.jobs.images import ImageFormat

_MIB = 2**20
_JPEG_PIXELS_PER_BYTE = 8 * 64  # a block of 64 pixels takes a bit at the very least


@dataclass(frozen=True, slots=True)
class Limits:
    max_bytes: int = 50 * _MIB
    max_jpeg_pixels: int = 110_000_000  # phones of 108 megapixels pass
    max_pixels: int = 2**26  # of every other format; 8192x8192
    max_scans: int = 100  # an encoder writes about ten; each extra one costs a pass over all pixels
    max_icc_bytes: int = 4 * _MIB  # a press profile has 2; larger ones are ignored, with a warning
    max_metadata_bytes: int = 16 * _MIB  # phones embed depth maps of some megabytes

    def pixels_of(self, image_format: ImageFormat) -> int:
        """How many pixels a picture of this format may have, however long and thin it is."""
        return self.max_jpeg_pixels if image_format is ImageFormat.JPEG else self.max_pixels

    @property
    def most_pixels(self) -> int:
        """Beyond this nothing is ever decoded, whatever it says that it is."""
        return max(self.max_jpeg_pixels, self.max_pixels)


def judge_bytes(size_bytes: int, limits: Limits) -> None:
    if size_bytes > limits.max_bytes:
        raise InputRejected(
            "too_large",
            f"The file is larger than {limits.max_bytes // _MIB} MiB.",
            f"{size_bytes} bytes",
        )


def judge_size(width: int, height: int, image_format: ImageFormat, limits: Limits) -> None:
    most = limits.pixels_of(image_format)
    if width * height > most:
        raise InputRejected(
            "too_many_pixels",
            f"The image has more than {most:,} pixels.",
            f"{width}x{height}",
        )


def judge_header(facts: HeaderFacts, limits: Limits) -> None:
    """Refuse what the header shows to be too expensive; what it does not show passes.

    Frames cost nothing: the first is decoded, the others are counted as far as MOST_FRAMES.
    """
    judge_size(facts.width or 0, facts.height or 0, facts.format, limits)
    if facts.metadata_bytes > limits.max_metadata_bytes:
        raise InputRejected(
            "too_much_metadata",
            f"The image carries more than {limits.max_metadata_bytes // _MIB} MiB of metadata.",
            f"{facts.metadata_bytes} bytes",
        )


def judge_scans(scans: int, limits: Limits) -> None:
    if scans > limits.max_scans:
        raise InputRejected(
            "too_many_scans",
            f"The image is coded in more than {limits.max_scans} passes.",
            f"{scans} scans or more",
        )


def judge_density(facts: HeaderFacts, size_bytes: int) -> None:
    """Refuse a JPEG that is shorter than the pixels it claims.

    Its decoder would fill what is missing with grey, and Pillow would pass no complaint on.
    """
    pixels = (facts.width or 0) * (facts.height or 0)
    if facts.format is ImageFormat.JPEG and pixels > size_bytes * _JPEG_PIXELS_PER_BYTE:
        raise corrupt(facts.format, f"{pixels} pixels in {size_bytes} bytes")


# What making variants takes: two moments take most, one after the other, when the source is decoded
# and shrunk, and when the largest variant is encoded. `make bench-memory` compares.
_AT_REST = 28 * _MIB  # what a child has that does nothing
_COPIES_OF_FILE = 4  # as it was read, with an end of its own, and twice with filling (JPEG)
_SHRUNK = 8  # bytes a pixel of the largest, scaled and not cut yet, beside the source
_ENCODED = 44  # of the largest variant when it is encoded, as AVIF or as WebP with alpha
_TWO_PICTURES = 8  # a JPEG is decoded again where it may lack some
_ROW = 16  # Pillow keeps the address of each row, of two pictures


def decoding_bytes(
    facts: HeaderFacts, size_bytes: int, limits: Limits, variants: Sequence[VariantSpec]
) -> int:
    """What making these variants of a file takes in memory, and rather more than less.

    Of a file whose size its head does not tell, what the largest picture takes.
    """
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
            return 2 * facts.samples + 0.5 if facts.progressive else 0.25
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
