"""What comes back over the border: how a child ended, what it says it made, and whether that is so.

The kernel's word comes first: a child that a signal ended has not finished, whatever it wrote
before. Its own word counts after that, and only if it is exactly one well-formed report.

A child that decoded a hostile picture may be the attacker's by now, so its word is believed only
as far as it can be checked. The files of a rendering are measured, hashed and sniffed here, by
parsers that never touch a pixel. What cannot be checked (the colour, the source's true size) is
bounded, and harmless.
"""

import hashlib
import math
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import BaseModel, Field, JsonValue, TypeAdapter, ValidationError

from imagefleet.errors import FleetError, InputRejected, Unavailable
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
from imagefleet.jobs.lifecycle import failure_sentence
from imagefleet.jobs.model import USED, JsonObject
from imagefleet.worker.isolation.child import (
    FRAME_HEADER,
    FRAME_MARK,
    LONGEST_ERROR,
    NEEDS_MEMORY,
    file_name,
)
from imagefleet.worker.isolation.sandbox import Confinement

_MIB: Final = 2**20
GENERAL_MEMORY_BYTES: Final = 512 * _MIB  # 50 megapixels decoded at once, and as much again
QUARANTINE_MEMORY_BYTES: Final = 1024 * _MIB  # the only one at a time, so it may have more
LONGEST_OUTPUT: Final = 32 * _MIB  # some ten times the largest variant of any recipe
LONGEST_REPORT: Final = 256 * 1024  # bytes; that of a rendering has some 3,000


class Killed(StrEnum):
    """Why the worker, or the zygote for it, killed a child."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    MEMORY = "memory"
    TALKATIVE = "talkative"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a child cost."""

    cpu_seconds: float
    max_rss_bytes: int


@dataclass(slots=True)
class Spent:
    """What the children of an attempt took: all together, and of memory the one that had most."""

    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    read_bytes: int = 0
    made_bytes: int = 0

    def add(self, usage: Usage) -> None:
        """One more is dead."""
        self.cpu_seconds += usage.cpu_seconds
        self.peak_bytes = max(self.peak_bytes, usage.max_rss_bytes)

    def used(self) -> dict[str, float]:
        """All of it, by name; nothing where there was none, or nobody could tell."""
        return {name: getattr(self, name) for name in USED} if self.cpu_seconds else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a child ended. It is dead: nothing it held changes any more."""

    started: bool
    status: int | None
    """As waitpid gives it; None where nobody could tell."""
    usage: Usage | None
    killed: Killed | None
    report: bytes


class ChildCrashed(FleetError):
    """It died, or said what no honest child says. `signal` is None where no signal did it."""

    def __init__(self, detail: str, killed_by: int | None = None) -> None:
        super().__init__("crashed", failure_sentence("crashed"), detail)
        self.signal = killed_by


class ChildDeadline(FleetError):
    """It ran out of time, by the worker's clock or by its own allowance of processor time."""

    def __init__(self, detail: str) -> None:
        super().__init__("deadline", failure_sentence("deadline"), detail)


class ChildCancelled(FleetError):
    """It was killed because its result is not wanted any more."""

    def __init__(self) -> None:
        super().__init__("cancelled", failure_sentence("cancelled"))


class ChildFailed(FleetError):
    """Its task raised something it should not have: a bug; the detail is the traceback."""

    def __init__(self, detail: str) -> None:
        super().__init__("internal_error", failure_sentence("internal_error"), detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What one child may use. The default processor time is all there is before the deadline."""

    deadline_seconds: float
    memory_bytes: int = GENERAL_MEMORY_BYTES
    file_bytes: int = LONGEST_OUTPUT
    cpu_seconds: int | None = None
    report_bytes: int = LONGEST_REPORT

    def confinement(self) -> Confinement:
        """The part of it that the kernel enforces."""
        cpu_seconds = self.cpu_seconds or math.ceil(self.deadline_seconds) + 1
        return Confinement(
            memory_bytes=self.memory_bytes, file_bytes=self.file_bytes, cpu_seconds=cpu_seconds
        )


class _Done(BaseModel):
    kind: Literal["done"]
    value: dict[str, JsonValue]


class _Rejected(BaseModel):
    kind: Literal["rejected"]
    code: str = Field(pattern=r"^[a-z][a-z_]{0,39}$")
    public_message: str = Field(pattern=r"^[ -~]{1,200}$")  # the producer reads it
    detail: str | None


class _Failed(BaseModel):
    kind: Literal["failed"]
    error: str


_Report: TypeAlias = Annotated[_Done | _Rejected | _Failed, Field(discriminator="kind")]
_REPORT: Final[TypeAdapter[_Report]] = TypeAdapter(_Report)


def no_child(detail: str) -> Unavailable:
    """The error for a task of which nothing is known to have run."""
    return Unavailable("no_child", failure_sentence("unavailable"), detail)


def result_of(ending: Ending, allowance: Allowance) -> JsonObject:
    """What a task returned, which may be any JSON, or the error that says why there is none."""
    killed_by = None
    if ending.status is not None and os.WIFSIGNALED(ending.status):
        killed_by = os.WTERMSIG(ending.status)
    if ending.killed is Killed.TALKATIVE:
        detail = f"a report of more than {allowance.report_bytes} bytes"
        raise ChildCrashed(detail)
    if ending.killed is not None and (ending.status is None or killed_by == signal.SIGKILL):
        raise _wanted(ending.killed, allowance)
    if ending.status is None and ending.started:
        detail = "the process it was forked from ended"
        raise ChildCrashed(detail)
    if ending.status is None:
        detail = "the decoding process could not start a child"
        raise no_child(detail)
    if killed_by is not None:
        raise _unwanted(killed_by, ending.usage, allowance)
    return _reported(ending.report, os.waitstatus_to_exitcode(ending.status))


def _wanted(why: Killed, allowance: Allowance) -> FleetError:
    if why is Killed.MEMORY:  # past refusals that an honest child meets first
        detail = f"killed with more memory than its {allowance.memory_bytes} bytes"
        return InputRejected("memory", NEEDS_MEMORY, detail)
    if why is Killed.DEADLINE:
        return ChildDeadline(f"killed after {allowance.deadline_seconds:g} s")
    return ChildCancelled()


def _unwanted(killed_by: int, usage: Usage | None, allowance: Allowance) -> FleetError:
    cpu_seconds = allowance.confinement().cpu_seconds
    used_up = usage is not None and usage.cpu_seconds >= cpu_seconds
    if killed_by == signal.SIGXCPU or (killed_by == signal.SIGKILL and used_up):
        return ChildDeadline(f"{cpu_seconds} s of processor time used up")
    # SIGKILL is the kernel's, short of memory; a neighbour may be to blame, so it is tried again.
    return ChildCrashed(f"killed by signal {killed_by} ({signal.strsignal(killed_by)})", killed_by)


def _reported(report: bytes, exit_code: int) -> JsonObject:
    if exit_code != 0:
        detail = f"exit status {exit_code}"
        raise ChildCrashed(detail)
    match _parsed(report):
        case _Done(value=value):
            return value
        case _Rejected() as refusal:
            detail = "" if refusal.detail is None else _storable(refusal.detail)
            raise InputRejected(refusal.code, refusal.public_message, detail or None)
        case _Failed(error=error):
            raise ChildFailed(_storable(error))
        case None:
            detail = f"a report of {len(report)} bytes that cannot be read"
            raise ChildCrashed(detail)


def _storable(text: str) -> str:
    """A detail as it may go into a log line and a row: Postgres has no text with NUL in it."""
    return text[:LONGEST_ERROR].replace("\0", "\N{REPLACEMENT CHARACTER}")


def _parsed(pipe: bytes) -> _Report | None:
    header, body = pipe[: FRAME_HEADER.size], pipe[FRAME_HEADER.size :]
    if header != FRAME_HEADER.pack(FRAME_MARK, len(body)):
        return None
    try:
        return _REPORT.validate_json(body)
    except ValidationError:
        return None


# What a rendering says it made.

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
