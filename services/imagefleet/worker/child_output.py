"""What a child says it made, believed only as far as it can be checked.

A child that decoded a hostile picture may be the attacker's by now. Its report has to have exactly
the shape it should; the files are measured, hashed and sniffed here, by parsers that never touch a
pixel. What cannot be checked (the colour, the source's true size) is bounded, and harmless.
"""

import hashlib
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from imagefleet.errors import InputRejected
from imagefleet.imaging.headers.facts import ImageFormat
from imagefleet.imaging.recipes import Caveat, Recipe, VariantSpec
from imagefleet.imaging.sniff import HEAD_BYTES, sniff
from imagefleet.jobs.model import JsonObject
from imagefleet.worker.child import file_name
from imagefleet.worker.children import Usage

_LONGEST_SIDE: Final = 65_535  # beyond what any limit lets through

_Side = Annotated[int, Field(ge=1, le=_LONGEST_SIDE)]
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class UntrueError(Exception):
    """A child's report and its files disagree, or the report is none."""


class _Claim(BaseModel):
    """JSON has no enumerations and tuples, so the types are lax; the values are not."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceFacts(_Claim):
    """What came in; width and height are upright."""

    format: ImageFormat
    width: _Side
    height: _Side
    frames: Annotated[int, Field(ge=1)] | None
    size_bytes: int
    sha256: _Digest


class Placeholder(_Claim):
    thumbhash: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{1,64}={0,2}$")]
    color: Annotated[str, Field(pattern=r"^#[0-9a-f]{6}$")]


class VariantFacts(_Claim):
    name: str
    format: ImageFormat
    width: _Side
    height: _Side
    size_bytes: int
    sha256: _Digest
    content_type: str
    warnings: Annotated[tuple[Caveat, ...], Field(max_length=len(Caveat))]


class _Report(_Claim):
    source: SourceFacts
    placeholder: Placeholder
    variants: tuple[VariantFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedFile:
    """One variant, in the scratch folder."""

    facts: VariantFacts
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedFiles:
    """Everything made of one source. Its files are there until `discard`, or the `with` ends."""

    source: SourceFacts
    placeholder: Placeholder
    variants: tuple[RenderedFile, ...]
    usage: Usage | None
    folder: Path

    def discard(self) -> None:
        """Remove the files; once is enough."""
        remove(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()


def remove(folder: Path) -> None:
    """The folder and what is in it; it may be gone already."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def checked(
    report: JsonObject, recipe: Recipe, source: int, folder: Path, usage: Usage | None
) -> RenderedFiles:
    """The report as values, or Untrue. Reads every file: call it from a thread."""
    try:
        claim = _Report.model_validate(report)
    except ValidationError as error:
        raise UntrueError(str(error.errors(include_input=False, include_url=False))) from error
    if (claim.source.size_bytes, claim.source.sha256) != _measured(source):
        message = "not the source it was given"
        raise UntrueError(message)
    if len(claim.variants) != len(recipe.variants):
        message = "not the variants of the recipe"
        raise UntrueError(message)
    pairs = zip(recipe.variants, claim.variants, strict=True)
    return RenderedFiles(
        source=claim.source,
        placeholder=claim.placeholder,
        variants=tuple(_file(wanted, facts, folder) for wanted, facts in pairs),
        usage=usage,
        folder=folder,
    )


def _file(wanted: VariantSpec, facts: VariantFacts, folder: Path) -> RenderedFile:
    path = folder / file_name(wanted.name, wanted.format)
    with path.open("rb") as file:
        measured = _measured(file.fileno())
        head = os.pread(file.fileno(), HEAD_BYTES, 0)
    try:
        seen = sniff(head)
    except InputRejected as error:
        message = f"{path.name}: {error}"
        raise UntrueError(message) from error
    agreed = (
        (facts.name, facts.format) == (wanted.name, wanted.format)
        and facts.content_type == wanted.format.mime_type
        and (facts.size_bytes, facts.sha256) == measured
        and (facts.format, facts.width, facts.height) == (seen.format, seen.width, seen.height)
        and facts.width <= wanted.width
        and facts.height <= wanted.height
    )
    if not agreed:
        message = f"{path.name} is not what the report says"
        raise UntrueError(message)
    return RenderedFile(facts=facts, path=path)


def _measured(file: int) -> tuple[int, str]:
    """Length and SHA-256, whatever the position of the descriptor."""
    digest, length = hashlib.sha256(), 0
    while chunk := os.pread(file, 1 << 20, length):
        digest.update(chunk)
        length += len(chunk)
    return length, digest.hexdigest()
