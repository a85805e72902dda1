"""What making the variants of a picture takes in memory: foretold by its head, before any pixel.

A child is given that and a margin, and begins when its worker has it to give. So what is foretold
is rather more than less, and `make bench-memory` compares it with what is taken.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

from imagefleet.errors import InputRejected
from imagefleet.imaging.headers.facts import HeaderFacts
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Lossless, Recipe, VariantSpec
from imagefleet.imaging.sizes import Size, draft_part, fitted, levels
from imagefleet.imaging.sniff import HEAD_BYTES, sniff
from imagefleet.jobs.images import ImageFormat

# Two moments take most, one after the other: when the source is decoded and shrunk, and when the
# largest variant is encoded.
_AT_REST = 28 << 20  # what a child has that does nothing
_COPIES_OF_FILE = 4  # as it was read, with an end of its own, and twice with filling (JPEG)
_SHRUNK = 8  # bytes a pixel of the largest, scaled and not cut yet, beside the source
_ENCODED = 44  # of a variant when it is encoded, as AVIF of a photo or as WebP with alpha
_ENCODED_WHOLE = 62  # as AVIF with whole colours, which what is drawn has, and no JPEG is
_MARK = 36  # of the largest watermark: four are kept, and one is being read
_TWO_PICTURES = 8  # a JPEG is decoded again where it may lack some
_ROW = 16  # Pillow keeps the address of each row, of two pictures


def foretold_bytes(source: Path, recipe: Recipe, limits: Limits) -> int:
    """Of this file; nothing where it is no picture, as to find that out takes hardly any."""
    with source.open("rb") as file:
        head = file.read(HEAD_BYTES)
        try:
            facts = sniff(head)
            if facts.width is None:
                facts = sniff(head + file.read())
        except InputRejected:
            return 0
    if facts.width is None:  # nor has a file any that ends with its head
        return 0
    return decoding_bytes(facts, source.stat().st_size, limits, recipe.variants)


def least_bytes(
    mime_type: str, width: int | None, height: int | None, size_bytes: int, recipe: Recipe
) -> int:
    """What such a picture takes if nothing else about it costs memory; 0: too little is known."""
    for each in ImageFormat:
        if each.mime_type == mime_type and width and height:
            plain = HeaderFacts(each, width, height, samples=1)
            return decoding_bytes(plain, size_bytes, Limits(), recipe.variants)
    return 0


def decoding_bytes(
    facts: HeaderFacts, size_bytes: int, limits: Limits, variants: Sequence[VariantSpec]
) -> int:
    """Of a file with this head; where that does not tell its size, of the largest there may be."""
    source = Size(facts.width or 0, facts.height or 0)
    if not all(source):  # the largest that may be, and a long way from any variant
        source = Size(limits.pixels_of(facts.format), 1)
    size = source.turned(facts.orientation)
    ordered = levels(size, variants)
    made = (
        _encoding(facts.format, spec) * fitted(level.size, spec).pixels
        for level in ordered
        for spec in level.variants
    )
    held = source.pixels * _bytes_a_pixel(facts)
    if facts.format is ImageFormat.JPEG:
        part = draft_part(source, ordered[0].size.turned(facts.orientation))
        held += source.pixels / part**2 * _TWO_PICTURES
    shrinking = held + _ROW * source.height + _SHRUNK * ordered[0].size.pixels
    marks = {variant.watermark.image for variant in variants if variant.watermark}
    heads = map(sniff, map(base64.b64decode, marks))  # looked at when their recipe was read
    marked = max(((head.width or 0) * (head.height or 0) for head in heads), default=0)
    beside = _COPIES_OF_FILE * size_bytes + _MARK * marked
    return int(_AT_REST + beside + max(shrinking, *made))


def _encoding(source: ImageFormat, variant: VariantSpec) -> int:
    may_be_drawn = source is not ImageFormat.JPEG and variant.lossless is not Lossless.NEVER
    whole = may_be_drawn and ImageFormat.AVIF in variant.formats
    return _ENCODED_WHOLE if whole else _ENCODED


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
