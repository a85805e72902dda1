"""What comes back over the border: how a child ended, and what it says about that.

The kernel's word comes first: a child that a signal ended has not finished, whatever it wrote
before. Its own word counts after that, and only if it is exactly one well-formed report.
"""

import math
import os
import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, Field, JsonValue, TypeAdapter, ValidationError

from imagefleet.errors import FleetError, InputRejected, Unavailable
from imagefleet.jobs.lifecycle import failure_sentence
from imagefleet.jobs.model import USED, JsonObject
from imagefleet.worker.isolation.child import (
    FRAME_HEADER,
    FRAME_MARK,
    LONGEST_ERROR,
    NEEDS_MEMORY,
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
