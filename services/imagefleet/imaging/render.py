"""One source and one recipe in, every variant out: what a decoding process runs."""

import base64
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from imagefleet.errors import InputRejected
from imagefleet.imaging.codecs import encode, fit, flatten
from imagefleet.imaging.limits import Limits, judge_bytes
from imagefleet.imaging.placeholder import PLACEHOLDER_SIDE, dominant_color, thumbhash
from imagefleet.imaging.recipes import Fit, Recipe, VariantSpec
from imagefleet.imaging.sizes import Size, SizeLevel, too_small
from imagefleet.imaging.sniff import examine
from imagefleet.imaging.steps import STEPS, Work, cascade, open_file, resized
from imagefleet.jobs.images import (
    Caveat,
    ImageFormat,
    PlaceholderFacts,
    Rendering,
    SourceFacts,
    VariantFacts,
)

Sink = Callable[[str, ImageFormat, bytes], None]
Checkpoint = Callable[[], None]


def render(
    source: bytes | Path | BinaryIO,
    recipe: Recipe,
    limits: Limits,
    sink: Sink,
    *,
    checkpoint: Checkpoint = lambda: None,
) -> Rendering:
    """Every variant of the recipe, each handed to the sink as soon as it is encoded.

    Raises InputRejected for whatever is the input's fault; its code says which. What the sink or
    the checkpoint raises passes through: the checkpoint is called between steps, to stop late work.
    One render at a time in a process: Pillow keeps its limits, and Python its warnings, for all.
    """
    try:
        data = read(source, limits)
        work = open_file(data, examine(data, limits), recipe, limits)
        for step in STEPS:
            checkpoint()
            work = step(work)
        made: list[VariantFacts] = []
        picture = work.picture
        for level, picture in cascade(work):
            made += _make(level, picture, work, sink, checkpoint)
        order = [(spec.name, spec.format) for spec in recipe.variants]
        made.sort(key=lambda variant: order.index((variant.name, variant.format)))
        return Rendering(
            source=_source(data, work),
            placeholder=_placeholder(picture),
            variants=tuple(made),
        )
    except MemoryError as fault:
        sentence = "The image needs more memory to process than it may have."
        raise InputRejected("memory", sentence) from fault


def read(source: bytes | Path | BinaryIO, limits: Limits) -> bytes:
    """The whole source, or InputRejected after one byte more than the limit."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            return read(file, limits)
    data = source if isinstance(source, bytes) else source.read(limits.max_bytes + 1)
    judge_bytes(len(data), limits)
    return data


def _make(
    level: SizeLevel, picture: Image.Image, work: Work, sink: Sink, checkpoint: Checkpoint
) -> Iterator[VariantFacts]:
    """The variants of one level. Those that come out alike, as a small source's do, share bytes."""
    for _, alike in groupby(sorted(level.variants, key=_outcome), key=_outcome):
        variants = tuple(alike)
        checkpoint()
        fitted, caveats = flatten(fit(picture, variants[0]), variants[0].format)
        encoded = encode(fitted, variants[0].format, variants[0].quality)
        for variant in variants:
            sink(variant.name, variant.format, encoded)
            small = (Caveat.NOT_ENLARGED,) if too_small(work.size, variant) else ()
            warnings = (*work.caveats, *caveats, *small)
            yield _variant(variant, Size(*fitted.size), encoded, warnings)


def _outcome(variant: VariantSpec) -> tuple[str, int, str, int, int]:
    """What decides the bytes of a variant whose scaled size is given."""
    box = (0, 0) if variant.fit is Fit.INSIDE else (variant.width, variant.height)
    return (variant.format, variant.quality, variant.fit, *box)


def _variant(
    variant: VariantSpec, size: Size, encoded: bytes, warnings: tuple[Caveat, ...]
) -> VariantFacts:
    return VariantFacts(
        name=variant.name,
        format=variant.format,
        width=size.width,
        height=size.height,
        bytes=len(encoded),
        content_type=variant.format.mime_type,
        warnings=warnings,
    )


def _source(data: bytes, work: Work) -> SourceFacts:
    return SourceFacts(
        format=work.facts.format,
        width=work.size.width,
        height=work.size.height,
        bytes=len(data),
        frames=work.facts.frames,
    )


def _placeholder(picture: Image.Image) -> PlaceholderFacts:
    longest = max(picture.size)
    side = min(longest, PLACEHOLDER_SIDE)
    size = Size(*(max(1, round(length * side / longest)) for length in picture.size))
    rgba = resized(picture, size).convert("RGBA").tobytes()
    hashed = thumbhash(size.width, size.height, rgba)
    return PlaceholderFacts(thumbhash=base64.b64encode(hashed).decode(), color=dominant_color(rgba))
