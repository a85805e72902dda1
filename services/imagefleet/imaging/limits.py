"""What one picture may cost us, judged from its header before any pixel exists."""

from dataclasses import dataclass
from typing import assert_never

from imagefleet.errors import InputRejected
from imagefleet.imaging.headers.facts import HeaderFacts, corrupt
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

    Frames cost nothing: the first is decoded, and the others are counted no further than MOST_FRAMES.
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


# What a child has before it begins, and besides what is told below.
_BESIDES_PIXELS = 64 * _MIB
_OF_FILE = 3  # the file on a tmpfs, as it was read, and once more with filling (JPEG)
_OF_ROW = 16  # Pillow keeps the address of each row, of two pictures
_MADE = 24  # of the largest variant: as it is composed, and what its encoder holds


def decoding_bytes(facts: HeaderFacts, size_bytes: int, limits: Limits, made_pixels: int) -> int:
    """What making variants of this file takes in memory, and rather more than less.

    Of a file whose size its head does not tell, what the largest picture takes. `made_pixels` is of
    the largest variant. Measured by `make bench-memory`.
    """
    pixels = (facts.width or 0) * (facts.height or 0) or limits.pixels_of(facts.format)
    if facts.format is ImageFormat.JPEG:
        # Decoded at no more than 2.5 times the sides that are wanted, or at an eighth; twice, where
        # it is in doubt whether something is missing. In passes, all coefficients are held.
        decoded = min(pixels, max(7 * made_pixels, pixels // 64))
        held = 8 * decoded + (2 * facts.samples * pixels if facts.progressive else 0)
    else:
        held = pixels * _bytes_a_pixel(facts)
    rows = _OF_ROW * (facts.height or 0)
    return int(_BESIDES_PIXELS + _OF_FILE * size_bytes + held + rows + _MADE * made_pixels)


def _bytes_a_pixel(facts: HeaderFacts) -> float:
    """Of the whole source, at the moment when most is held."""
    picture = 8.0 if facts.alpha else 4.0  # with alpha itself, and again with it multiplied in
    match facts.format:
        case ImageFormat.PNG:
            return picture + 3
        case ImageFormat.GIF:
            return 10
        case ImageFormat.WEBP:  # the decoder's canvas twice, beside what it hands out
            return 12 + picture / 2
        case ImageFormat.AVIF:  # planes, which may be deep, beside the picture
            return picture + 2 + facts.samples * (4 if facts.deep else 2)
        case ImageFormat.JPEG:  # told above
            return picture
        case _:
            assert_never(facts.format)
