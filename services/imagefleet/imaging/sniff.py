"""What a file is, by its own first bytes: asked before it is stored, and before it is decoded.

Nothing here needs Pillow, takes unbounded time, or raises anything but InputRejected.
"""

from collections.abc import Callable

from imagefleet.errors import InputRejected
from imagefleet.imaging.headers.avif import avif_facts, brands
from imagefleet.imaging.headers.facts import HeadEnded, HeaderFacts, corrupt, unsupported
from imagefleet.imaging.headers.gif import gif_facts
from imagefleet.imaging.headers.jpeg import count_scans, jpeg_facts
from imagefleet.imaging.headers.png import SIGNATURE, check_pixels, png_facts
from imagefleet.imaging.headers.webp import webp_facts
from imagefleet.imaging.limits import Limits, judge_density, judge_header, judge_scans
from imagefleet.jobs.images import ImageFormat
from imagefleet.jobs.lifecycle import failure_sentence

HEAD_BYTES = 262_144  # EXIF with its thumbnail and a CMYK profile before the size fit in here

_ALIASES = {
    "image/jpg": ImageFormat.JPEG,
    "image/pjpeg": ImageFormat.JPEG,
    "image/x-png": ImageFormat.PNG,
    "image/apng": ImageFormat.PNG,
}
# The last is what curl says of any body that it is not told the type of.
NO_DECLARATION = frozenset({"", "application/octet-stream", "application/x-www-form-urlencoded"})
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis"})

_Parser = Callable[[bytes], HeaderFacts]
_PARSERS: dict[ImageFormat, _Parser] = {
    ImageFormat.JPEG: jpeg_facts,
    ImageFormat.PNG: png_facts,
    ImageFormat.WEBP: webp_facts,
    ImageFormat.GIF: gif_facts,
    ImageFormat.AVIF: avif_facts,
}


def sniff(data: bytes) -> HeaderFacts:
    """The facts of a file, from its first HEAD_BYTES or from the whole of it.

    Data of exactly HEAD_BYTES is taken for the beginning of something longer; any other length is
    the whole file, and a header that does not end within it is corrupt.
    """
    if not data:
        raise InputRejected("empty_file", failure_sentence("empty_file"))
    image_format = _recognise(data)
    try:
        facts = _PARSERS[image_format](data)
    except HeadEnded:
        if len(data) != HEAD_BYTES:
            raise corrupt(image_format, "ends within its header") from None
        return HeaderFacts(image_format, frames=None)
    if facts.width == 0 or facts.height == 0:
        raise corrupt(image_format, "a side of zero pixels")
    return facts


def examine(data: bytes, limits: Limits) -> HeaderFacts:
    """Everything that can be judged about a whole file before a decoder sees it."""
    facts = sniff(data)
    if facts.width is None:
        raise corrupt(facts.format, "the file ends within its header")
    judge_header(facts, limits)
    judge_density(facts, len(data))
    check_pixels(data)
    judge_scans(count_scans(data, limits.max_scans), limits)
    return facts


def agree(declared: str | None, sniffed: ImageFormat) -> bool:
    """Whether a declared content type fits the bytes; which may declare nothing."""
    media_type = (declared or "").partition(";")[0].strip().lower()
    if media_type in NO_DECLARATION:
        return True
    return media_type == sniffed.mime_type or _ALIASES.get(media_type) is sniffed


def _recognise(data: bytes) -> ImageFormat:
    if data.startswith(b"\xff\xd8\xff"):
        return ImageFormat.JPEG
    if data.startswith(SIGNATURE):
        return ImageFormat.PNG
    if data.startswith((b"GIF87a", b"GIF89a")):
        return ImageFormat.GIF
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return ImageFormat.WEBP
    branded = brands(data)
    if branded & {b"avif", b"avis"}:
        return ImageFormat.AVIF
    if branded & _HEIC_BRANDS:
        raise unsupported(
            "HEIC", "brand", "HEIC images are not accepted; export the image as JPEG."
        )
    if _looks_like_markup(data):
        raise unsupported("markup", "text", "SVG and HTML are not accepted: they are programs.")
    raise unsupported("unknown", f"signature {data[:8].hex()}")


def _looks_like_markup(data: bytes) -> bool:
    start = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return start.startswith((b"<?xml", b"<svg", b"<!doctype", b"<html", b"<!--"))
