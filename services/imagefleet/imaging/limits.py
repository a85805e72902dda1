"""What one picture may cost us, judged from its header before any pixel exists."""

from dataclasses import dataclass
from typing import assert_never

from imagefleet.errors import InputRejected
from imagefleet.imaging.headers.facts import MOST_FRAMES, HeaderFacts, corrupt
from imagefleet.jobs.images import ImageFormat

_MIB = 2**20
_BESIDES_PIXELS = 32 * _MIB  # the process itself, and the variants
_JPEG_PIXELS_PER_BYTE = 8 * 64  # a block of 64 pixels takes a bit at the very least


@dataclass(frozen=True, slots=True)
class Limits:
    max_bytes: int = 50 * _MIB
    max_pixels: int = 50_000_000  # 48-megapixel phones pass; 200 MB as decoded RGB
    max_dimension: int = 30_000  # panoramas pass; a JPEG can say 65,535, a PNG 2^31
    max_frames: int = MOST_FRAMES
    max_animation_pixels: int = 1_000_000_000  # width x height x frames
    max_scans: int = 100  # an encoder writes about ten; each extra one costs a pass over all pixels
    max_icc_bytes: int = 4 * _MIB  # a press profile has 2; larger ones are ignored, with a warning
    max_metadata_bytes: int = 16 * _MIB  # phones embed depth maps of some megabytes


def judge_bytes(size_bytes: int, limits: Limits) -> None:
    if size_bytes > limits.max_bytes:
        raise InputRejected(
            "too_large",
            f"The file is larger than {limits.max_bytes // _MIB} MiB.",
            f"{size_bytes} bytes",
        )


def judge_size(width: int, height: int, limits: Limits) -> None:
    if max(width, height) > limits.max_dimension:
        raise InputRejected(
            "too_many_pixels",
            f"A side of the image is longer than {limits.max_dimension:,} pixels.",
            f"{width}x{height}",
        )
    if width * height > limits.max_pixels:
        raise InputRejected(
            "too_many_pixels",
            f"The image has more than {limits.max_pixels:,} pixels.",
            f"{width}x{height}",
        )


def judge_header(facts: HeaderFacts, limits: Limits) -> None:
    """Refuse what the header shows to be too expensive; what it does not show passes."""
    width, height, frames = facts.width or 0, facts.height or 0, facts.frames or 1
    judge_size(width, height, limits)
    if frames > limits.max_frames or width * height * frames > limits.max_animation_pixels:
        raise InputRejected(
            "too_many_frames",
            "The animation has too many frames, or too many pixels in all of them together.",
            f"{width}x{height}, {frames} frames",
        )
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


def decoding_bytes(facts: HeaderFacts, size_bytes: int, limits: Limits) -> int:
    """What making variants of this file takes in memory, and rather more than less.

    Of a file whose size its head does not tell, what the largest picture takes.
    """
    pixels = (facts.width or 0) * (facts.height or 0) or limits.max_pixels
    return _BESIDES_PIXELS + 2 * size_bytes + pixels * _bytes_a_pixel(facts)


def _bytes_a_pixel(facts: HeaderFacts) -> int:
    """Of the whole source, at the moment when most is held. `make bench-memory` measures it."""
    match facts.format:
        case ImageFormat.JPEG:  # decoded at the size wanted; in passes, all coefficients are held
            return 10 if facts.progressive else 3
        case ImageFormat.PNG:  # the picture, and itself again with premultiplied alpha
            return 12 if facts.deep else 10
        case ImageFormat.GIF:
            return 10
        case ImageFormat.WEBP:  # the decoder's canvas twice and its own picture, beside Pillow's
            return 18
        case ImageFormat.AVIF:  # planes, which may be deep, beside the picture and its copy
            return 20
        case _:
            assert_never(facts.format)
