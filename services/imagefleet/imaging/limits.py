"""What one picture may cost us, and will, judged from its header before any pixel exists."""

from dataclasses import dataclass

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
        sentence = f"The file is larger than {limits.max_bytes // _MIB} MiB."
        raise InputRejected("too_large", sentence, f"{size_bytes} bytes")


def judge_size(width: int, height: int, image_format: ImageFormat, limits: Limits) -> None:
    most = limits.pixels_of(image_format)
    if width * height > most:
        sentence = f"The image has more than {most:,} pixels."
        raise InputRejected("too_many_pixels", sentence, f"{width}x{height}")


def judge_header(facts: HeaderFacts, limits: Limits) -> None:
    """Refuse what the header shows to be too expensive; what it does not show passes.

    Frames cost nothing: the first is decoded, the others are counted as far as MOST_FRAMES.
    """
    judge_size(facts.width or 0, facts.height or 0, facts.format, limits)
    if facts.metadata_bytes > limits.max_metadata_bytes:
        sentence = (
            f"The image carries more than {limits.max_metadata_bytes // _MIB} MiB of metadata."
        )
        raise InputRejected("too_much_metadata", sentence, f"{facts.metadata_bytes} bytes")


def judge_scans(scans: int, limits: Limits) -> None:
    if scans > limits.max_scans:
        sentence = f"The image is coded in more than {limits.max_scans} passes."
        raise InputRejected("too_many_scans", sentence, f"{scans} scans or more")


def judge_density(facts: HeaderFacts, size_bytes: int) -> None:
    """Refuse a JPEG that is shorter than the pixels it claims.

    Its decoder would fill what is missing with grey, and Pillow would pass no complaint on.
    """
    pixels = (facts.width or 0) * (facts.height or 0)
    if facts.format is ImageFormat.JPEG and pixels > size_bytes * _JPEG_PIXELS_PER_BYTE:
        raise corrupt(facts.format, f"{pixels} pixels in {size_bytes} bytes")
