"""What a child says it made of a picture, and whether that is so.

A child that decoded a hostile picture may be the attacker's by now, so its word is believed only
as far as it can be checked. The files of a rendering are measured, hashed and sniffed here, by
parsers that never touch a pixel. What cannot be checked (the colour, the source's true size) is
bounded, and harmless.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from pydantic import TypeAdapter, ValidationError

from imagefleet.errors import InputRejected
from imagefleet.imaging.headers.facts import MOST_FRAMES
from imagefleet.imaging.recipes import Recipe, VariantSpec
from imagefleet.imaging.sniff import HEAD_BYTES, sniff
from imagefleet.jobs.images import (
    Caveat,
    PictureFacts,
    PlaceholderFacts,
    Rendering,
    SourceFacts,
    VariantFacts,
)
from imagefleet.jobs.model import JsonObject
from imagefleet.worker.isolation.child import file_name

_RENDERING: Final = TypeAdapter(Rendering)
_LONGEST_SIDE: Final = 2**31 - 1  # of any format
_THUMBHASH: Final = re.compile(r"[A-Za-z0-9+/]{1,64}={0,2}")
_COLOR: Final = re.compile(r"#[0-9a-f]{6}")


class UntrueError(Exception):
    """A child's report and its files disagree, or the report is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedFile:
    """One variant, in the scratch folder. Those that are the same picture have one path."""

    facts: VariantFacts
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedFiles:
    """Everything made of one source. Its files are there until `discard`, or the `with` ends."""

    source: SourceFacts
    placeholder: PlaceholderFacts
    variants: tuple[RenderedFile, ...]
    folder: Path

    def discard(self) -> None:
        """Remove the files; once is enough."""
        remove(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


def remove(folder: Path) -> None:
    """The folder and what is in it; it may be gone already."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def checked(
    report: JsonObject, recipe: Recipe, source: int | tuple[int, str], folder: Path
) -> RenderedFiles:
    """The report as values, or Untrue. Reads every file: call it from a thread."""
    try:
        claim = _RENDERING.validate_python(report, extra="forbid")
    except ValidationError as error:
        raise UntrueError(str(error.errors(include_input=False, include_url=False))) from error
    if not _is_within_bounds(claim):
        message = "numbers or texts that no rendering has"
        raise UntrueError(message)
    length, digest = _measured(source) if isinstance(source, int) else source
    if claim.source.bytes != length:
        message = "not the source it was given"
        raise UntrueError(message)
    if len(claim.variants) != len(recipe.variants):
        message = "not the variants of the recipe"
        raise UntrueError(message)
    return RenderedFiles(
        source=replace(claim.source, sha256=digest),
        placeholder=claim.placeholder,
        variants=tuple(_files(recipe, claim, folder)),
        folder=folder,
    )


def _is_within_bounds(claim: Rendering) -> bool:
    """Of what no file can show; the rest has to be as measured."""
    source, shown = claim.source, claim.placeholder
    return (
        0 < source.width <= _LONGEST_SIDE
        and 0 < source.height <= _LONGEST_SIDE
        and (source.frames is None or 0 < source.frames <= MOST_FRAMES)
        and _THUMBHASH.fullmatch(shown.thumbhash) is not None
        and _COLOR.fullmatch(shown.color) is not None
        and all(len(each.warnings) <= len(Caveat) for each in claim.variants)
    )


def _files(recipe: Recipe, claim: Rendering, folder: Path) -> Iterator[RenderedFile]:
    """Each variant with its file: its own, or one that was checked as another's before."""
    seen: dict[str, PictureFacts] = {}
    paths: dict[PictureFacts, Path] = {}
    for wanted, facts in zip(recipe.variants, claim.variants, strict=True):
        name = file_name(facts.same_as or wanted.name, facts.format)
        if facts.same_as is None and facts.format in wanted.formats:
            seen[name] = _picture_in(folder / name)
        picture = seen.get(name)
        if picture is None or not _agree(wanted, facts, picture):
            message = f"{wanted.name}: {name!a} is not what the report says"
            raise UntrueError(message)
        # Bytes that came out the same by chance are one file as well.
        path = paths.setdefault(picture, folder / name)
        yield RenderedFile(facts=replace(facts, sha256=picture.sha256), path=path)


def _agree(wanted: VariantSpec, facts: VariantFacts, picture: PictureFacts) -> bool:
    return (
        facts.name == wanted.name
        and facts.format in wanted.formats
        and facts.content_type == facts.format.mime_type
        and facts.bytes == picture.bytes
        and (facts.format, facts.width, facts.height)
        == (picture.format, picture.width, picture.height)
        and facts.width <= wanted.width
        and facts.height <= wanted.height
    )


def _picture_in(path: Path) -> PictureFacts:
    """Of a file, whoever made it; a picture's pixels are not looked at."""
    with path.open("rb") as file:
        length, digest = _measured(file.fileno())
        head = os.pread(file.fileno(), HEAD_BYTES, 0)
    try:
        seen = sniff(head)
    except InputRejected as error:
        message = f"{path.name}: {error}"
        raise UntrueError(message) from error
    if seen.width is None or seen.height is None:
        message = f"{path.name}: a picture of no size"
        raise UntrueError(message)
    return PictureFacts(
        format=seen.format, width=seen.width, height=seen.height, bytes=length, sha256=digest
    )


def _measured(file: int) -> tuple[int, str]:
    """Length and SHA-256, whatever the position of the descriptor."""
    digest, length = hashlib.sha256(), 0
    while chunk := os.pread(file, 1 << 20, length):
        digest.update(chunk)
        length += len(chunk)
    return length, digest.hexdigest()
