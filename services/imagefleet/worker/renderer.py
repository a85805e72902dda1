"""Have pictures rendered, and other work done, in children that have nothing to lose.

What may come out, besides a result: InputRejected, which the child found and which ends the job;
Child…, which say how the child came to its end; Unavailable, when no child could be had. A crash is
held against the job: a library that dies of a picture dies of it again.
"""

import asyncio
import json
import math
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Annotated, Final, Literal, Self, TypeAlias

import structlog
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from imagefleet.errors import FleetError, InputRejected, Misconfigured, Unavailable
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import RECIPES, Recipe
from imagefleet.jobs.lifecycle import failure_sentence
from imagefleet.jobs.model import JsonObject
from imagefleet.worker.child import FRAME_HEADER, FRAME_MARK, SOURCE_FILE, file_name
from imagefleet.worker.child_nursery import Nursery
from imagefleet.worker.child_output import RenderedFiles, UntrueError, checked, remove
from imagefleet.worker.children import Child, Ending, Killed, Usage
from imagefleet.worker.sandbox import Confinement, hide_this_process

log: Final[FilteringBoundLogger] = structlog.get_logger()

_MIB: Final = 2**20
GENERAL_MEMORY_BYTES: Final = 512 * _MIB  # 50 megapixels decoded at once, and as much again
QUARANTINE_MEMORY_BYTES: Final = 1024 * _MIB  # the only one at a time, so it may have more
LONGEST_OUTPUT: Final = 32 * _MIB  # some ten times the largest variant of any recipe
LONGEST_REPORT: Final = 256 * 1024  # bytes; that of a rendering has some 3,000

_PROBE: Final = "imagefleet.worker.child:probe"
_RENDER: Final = "imagefleet.worker.child_render:render_variants"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a task returned: JSON, and otherwise anything. What it cost is the kernel's word."""

    value: JsonObject
    usage: Usage | None


class _Done(BaseModel):
    kind: Literal["done"]
    value: dict[str, JsonValue]


class _Rejected(BaseModel):
    kind: Literal["rejected"]
    code: str = Field(pattern=r"\A[a-z][a-z_]{0,39}\Z")
    public_message: str = Field(pattern=r"\A[ -~]{1,200}\Z")  # the producer reads it
    detail: str | None


class _Failed(BaseModel):
    kind: Literal["failed"]
    error: str


_Report: TypeAlias = Annotated[_Done | _Rejected | _Failed, Field(discriminator="kind")]
_REPORT: Final[TypeAdapter[_Report]] = TypeAdapter(_Report)


class Renderer:
    """Owns the zygote. Any number of calls may run at once; how many is for the slots to say."""

    def __init__(self, *, preload: Sequence[str] = ()) -> None:
        self._preload = (_RENDER.partition(":")[0], *preload)
        self._nursery: Nursery | None = None
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Start it, and try it: where decoding cannot be isolated, nothing is decoded."""
        hide_this_process()
        try:
            await self.run_isolated(_PROBE, {}, {}, Allowance(deadline_seconds=30))
        except BaseException as error:
            await self._close()
            if isinstance(error, ChildCrashed | ChildFailed):
                raise Misconfigured(error.detail or str(error)) from error
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    @property
    def zygote_pid(self) -> int | None:
        """The process that children are forked from; None while there is none."""
        return self._nursery.pid if self._nursery is not None and self._nursery.alive else None

    async def render(
        self,
        source: Path | int,
        recipe_name: str,
        limits: Limits,
        *,
        deadline_seconds: float,
        scratch: Path,
        memory_bytes: int = GENERAL_MEMORY_BYTES,
        cancel: asyncio.Event | None = None,
    ) -> RenderedFiles:
        """Every variant of the recipe, as checked files in a folder of their own under `scratch`.

        The caller discards them; whenever this raises, there is nothing left to discard.
        """
        recipe = RECIPES.get(recipe_name)
        if recipe is None:  # a newer API knows it, and so will a newer worker
            raise Unavailable("unknown_recipe", failure_sentence("unavailable"), recipe_name)
        order: JsonObject = {"recipe": recipe.name, "limits": asdict(limits)}
        allowance = Allowance(deadline_seconds=deadline_seconds, memory_bytes=memory_bytes)
        with _scratch_folder(scratch) as folder, _opened(source, recipe, folder) as files:
            done = await self.run_isolated(_RENDER, order, files, allowance, cancel)
            try:
                return await _in_thread(
                    checked, done.value, recipe, files[SOURCE_FILE], folder, done.usage
                )
            except UntrueError as error:
                raise ChildCrashed(f"not what it says: {error}") from error

    async def run_isolated(
        self,
        task: str,
        argument: JsonObject,
        files: Mapping[str, int],
        allowance: Allowance,
        cancel: asyncio.Event | None = None,
    ) -> Finished:
        """Run `module:function` on the argument and these open files in a child of its own.

        However this ends, the child is dead: nothing it held changes any more.
        """
        if cancel is not None and cancel.is_set():
            raise ChildCancelled
        child = await self._start(task, argument, files, allowance)
        timer = asyncio.get_running_loop().call_later(
            allowance.deadline_seconds, child.kill, Killed.DEADLINE
        )
        try:
            ending = await _ending_of(child, cancel or asyncio.Event())
        finally:
            timer.cancel()
        return result_of(ending, allowance)

    async def _start(
        self, task: str, argument: JsonObject, files: Mapping[str, int], allowance: Allowance
    ) -> Child:
        for _ in range(2):  # the first zygote may be found dead only by asking it
            nursery = await self._warm_nursery()
            with suppress(ConnectionError):
                return await nursery.start_child(
                    task,
                    argument,
                    files,
                    longest_report=allowance.report_bytes,
                    confinement=allowance.confinement(),
                )
        raise _no_child("the decoding process ends as soon as it is started")

    async def _warm_nursery(self) -> Nursery:
        async with self._starting:
            if self._nursery is None or not self._nursery.alive:
                if self._nursery is not None:
                    log.warning("zygote.lost", pid=self._nursery.pid)
                    await self._close()
                self._nursery = nursery = Nursery(self._preload)
                await nursery.ready()
                log.info("zygote.started", pid=nursery.pid)
            return self._nursery

    async def _close(self) -> None:
        if self._nursery is not None:
            await self._nursery.close()
