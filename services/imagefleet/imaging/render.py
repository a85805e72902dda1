"""One source and one recipe in, every variant out: what a decoding process runs."""

import base64
import hashlib
import io
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageCms

from imagefleet.errors import InputRejected
from imagefleet.imaging.codecs import check_installation, encode, fit, flatten
from imagefleet.imaging.headers.facts import HeaderFacts, corrupt
from imagefleet.imaging.limits import Limits, judge_bytes, judge_density, judge_header, judge_scans
from imagefleet.imaging.placeholder import PLACEHOLDER_SIDE, dominant_color, thumbhash
from imagefleet.imaging.recipes import RECIPES, Fit, Recipe, Size, SizeLevel, VariantSpec, too_small
from imagefleet.imaging.sniff import check_pixels, check_restarts, count_scans, sniff
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
        return _render(source, recipe, limits, sink, checkpoint)
    except MemoryError as fault:
        sentence = "The image needs more memory to process than it may have."
        raise InputRejected("memory", sentence) from fault


def _render(
    source: bytes | Path | BinaryIO,
    recipe: Recipe,
    limits: Limits,
    sink: Sink,
    checkpoint: Checkpoint,
) -> Rendering:
    data = read(source, limits)
    work = open_file(data, examine(data, limits), recipe, limits)
    for step in STEPS:
        checkpoint()
        work = step(work)
    variants: list[VariantFacts] = []
    picture = work.picture
    for level, picture in cascade(work):
        variants += _make(level, picture, work, sink, checkpoint)
    order = [(spec.name, spec.format) for spec in recipe.variants]
    return Rendering(
        source=_source(data, work),
        placeholder=_placeholder(picture),
        variants=tuple(sorted(variants, key=lambda made: order.index((made.name, made.format)))),
    )


def read(source: bytes | Path | BinaryIO, limits: Limits) -> bytes:
    """The whole source, or InputRejected after one byte more than the limit."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            return read(file, limits)
    data = source if isinstance(source, bytes) else source.read(limits.max_bytes + 1)
    judge_bytes(len(data), limits)
    return data


def examine(data: bytes, limits: Limits) -> HeaderFacts:
    """Everything that can be judged about a whole file before a decoder sees it."""
    facts = sniff(data)
    if facts.width is None:
        raise corrupt(facts.format, "the file ends within its header")
    judge_header(facts, limits)
    judge_density(facts, len(data))
    check_pixels(data)
    check_restarts(data)
    judge_scans(count_scans(data, limits.max_scans), limits)
    return facts


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
        sha256=hashlib.sha256(encoded).hexdigest(),
        content_type=variant.format.mime_type,
        warnings=warnings,
    )


def _source(data: bytes, work: Work) -> SourceFacts:
    return SourceFacts(
        format=work.facts.format,
        width=work.size.width,
        height=work.size.height,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        frames=work.facts.frames,
    )


def _placeholder(picture: Image.Image) -> PlaceholderFacts:
    longest = max(picture.size)
    side = min(longest, PLACEHOLDER_SIDE)
    size = Size(*(max(1, round(length * side / longest)) for length in picture.size))
    rgba = resized(picture, size).convert("RGBA").tobytes()
    hashed = thumbhash(size.width, size.height, rgba)
    return PlaceholderFacts(thumbhash=base64.b64encode(hashed).decode(), color=dominant_color(rgba))


PHOTO = (2560, 1920)


def warm() -> None:
    """Load every codec by using it; Misconfigured where Pillow is too old or lacks one.

    For the parent of decoding processes: a child may be forbidden to open files, and an import is
    one, so whatever Pillow loads on first use has to be loaded before the fork.
    """
    check_installation()
    for sample in _samples():
        for recipe in RECIPES.values():
            render(sample, recipe, Limits(), _nowhere)
    # The size of a photo, for what the C library learns of it: a heap that has met large pictures
    # asks the kernel less often, and every child inherits it (2 % of a photo's CPU).
    photo = _saved(Image.linear_gradient("L").resize(PHOTO).convert("RGB"), "JPEG")
    render(photo, RECIPES["default"], Limits(), _nowhere)


def _nowhere(_name: str, _format: ImageFormat, _encoded: bytes) -> None:
    pass


def _samples() -> Iterator[bytes]:
    """One small picture a format, with everything in it that takes a path of its own."""
    colours = Image.new("RGBA", (16, 16), (200, 100, 50, 128))
    exif = Image.Exif()
    exif[0x0112] = 6
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    tagged = {"exif": exif, "icc_profile": profile}
    yield _saved(colours.convert("RGB"), "JPEG", progressive=True, **tagged)
    yield _saved(colours.convert("CMYK"), "JPEG")
    yield _saved(colours, "PNG", **tagged)
    yield _saved(colours.convert("P"), "PNG", transparency=0)
    yield _saved(Image.new("I;16", (16, 16), 500), "PNG")
    yield _saved(colours, "WEBP", **tagged)
    yield _saved(
        colours.convert("P"), "GIF", save_all=True, append_images=[Image.new("P", (16, 16))]
    )
    yield _saved(colours, "AVIF", max_threads=1, **tagged)
    frames = [Image.new("RGB", (16, 16), "navy")]
    yield _saved(colours.convert("RGB"), "MPO", save_all=True, append_images=frames)


def _saved(picture: Image.Image, pillow_format: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, pillow_format, **options)
    return out.getvalue()
