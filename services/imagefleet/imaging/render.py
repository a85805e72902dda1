"""One source and one recipe in, every variant out: what a decoding process runs."""

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from imagefleet.errors import InputRejected
from imagefleet.imaging.attention import Middle
from imagefleet.imaging.codecs import forget_refusals, was_refused_memory
from imagefleet.imaging.composing import compose
from imagefleet.imaging.encoding import encode
from imagefleet.imaging.headers.facts import MOST_FRAMES
from imagefleet.imaging.limits import Limits, judge_bytes
from imagefleet.imaging.placeholder import PLACEHOLDER_SIDE, dominant_color, thumbhash
from imagefleet.imaging.recipes import Fit, Focus, Recipe, VariantSpec
from imagefleet.imaging.sizes import Size, SizeLevel, fitted, too_small
from imagefleet.imaging.sniff import examine
from imagefleet.imaging.steps import STEPS, Work, cascade, open_file, resized
from imagefleet.jobs.images import (
    Caveat,
    Focal,
    ImageFormat,
    PlaceholderFacts,
    Rendering,
    SourceFacts,
    VariantFacts,
)
from imagefleet.jobs.lifecycle import failure_sentence

Sink = Callable[[str, ImageFormat, bytes], None]
Checkpoint = Callable[[], None]


def render(
    source: bytes | Path | BinaryIO,
    recipe: Recipe,
    limits: Limits,
    sink: Sink,
    *,
    focal: Focal | None = None,
    checkpoint: Checkpoint = lambda: None,
) -> Rendering:
    """Every variant of the recipe, each handed to the sink as soon as it is encoded.

    What would be the same picture as another variant is not handed over: its facts name that one.
    Raises InputRejected for whatever is the input's fault; its code says which. What the sink or
    the checkpoint raises passes through: the checkpoint is called between steps, to stop late work.
    One render at a time in a process: Pillow keeps its limits, and Python its warnings, for all.
    """
    forget_refusals()
    try:
        data = read(source, limits)
        work = open_file(data, examine(data, limits), recipe, limits, focal)
        for step in STEPS:
            checkpoint()
            work = step(work)
        made: list[VariantFacts] = []
        picture, middle = work.picture, Middle(work.focal)
        for level, picture in cascade(work):
            made += _make(level, picture, work, middle, sink, checkpoint)
        numbered = enumerate(recipe.variants)
        order = {(spec.name, form): n for n, spec in numbered for form in spec.formats}
        made.sort(key=lambda variant: order[variant.name, variant.format])
        seen = _placeholder(picture)
        return Rendering(source=_source(data, work), placeholder=seen, variants=tuple(made))
    except Exception as fault:
        if isinstance(fault, MemoryError) or was_refused_memory():
            raise InputRejected("memory", failure_sentence("memory"), str(fault) or None) from fault
        raise


def read(source: bytes | Path | BinaryIO, limits: Limits) -> bytes:
    """The whole source, or InputRejected after one byte more than the limit."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            return read(file, limits)
    data = source if isinstance(source, bytes) else source.read(limits.max_bytes + 1)
    judge_bytes(len(data), limits)
    return data


def _make(
    level: SizeLevel,
    picture: Image.Image,
    work: Work,
    middle: Middle,
    sink: Sink,
    checkpoint: Checkpoint,
) -> Iterator[VariantFacts]:
    """The variants of one level. Those that come out alike, as a small source's do, are one."""
    scaled = level.size != work.size
    outcome = partial(_outcome, level.size, scaled=scaled)
    for _, alike in groupby(sorted(level.variants, key=outcome), key=outcome):
        first, *others = alike
        checkpoint()
        shown = compose(picture, first, middle.of(first, picture), scaled=scaled)
        encoded = encode(shown, first, work.origin)
        sink(first.name, encoded.format, encoded.content)
        for variant in (first, *others):
            small = (Caveat.NOT_ENLARGED,) if too_small(work.size, variant) else ()
            yield VariantFacts(
                name=variant.name,
                format=encoded.format,
                width=shown.width,
                height=shown.height,
                bytes=len(encoded.content),
                content_type=encoded.format.mime_type,
                warnings=(*work.caveats, *encoded.caveats, *small),
                same_as=None if variant is first else first.name,
            )


def _outcome(size: Size, variant: VariantSpec, *, scaled: bool) -> str:
    """What decides the bytes of a variant whose scaled size is given."""
    shown = fitted(size, variant)
    sharpen = variant.sharpen if scaled else 0.0
    named = replace(variant, name="", width=shown.width, height=shown.height, sharpen=sharpen)
    return repr(replace(named, fit=Fit.INSIDE, focus=Focus.CENTRE) if shown == size else named)


def _source(data: bytes, work: Work) -> SourceFacts:
    return SourceFacts(
        format=work.facts.format,
        width=work.size.width,
        height=work.size.height,
        bytes=len(data),
        frames=work.facts.frames if (work.facts.frames or 0) <= MOST_FRAMES else None,
    )


def _placeholder(picture: Image.Image) -> PlaceholderFacts:
    longest = max(picture.size)
    side = min(longest, PLACEHOLDER_SIDE)
    size = Size(*(max(1, round(length * side / longest)) for length in picture.size))
    rgba = resized(picture, size).convert("RGBA").tobytes()
    hashed = thumbhash(size.width, size.height, rgba)
    return PlaceholderFacts(thumbhash=base64.b64encode(hashed).decode(), color=dominant_color(rgba))
