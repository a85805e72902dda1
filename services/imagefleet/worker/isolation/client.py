"""Have pictures rendered, and other work done, in children that have nothing to lose.

What may come out, besides a result: InputRejected, which the child found and which ends the job;
Child…, which say how the child came to its end; Unavailable, when no child could be had. A crash is
held against the job: a library that dies of a picture dies of it again.

Originals and variants on their way lie in a folder of this worker's own, and nothing outlives it.
A worker that is killed leaves its folder behind, with somebody's pictures in it. So folders lie
side by side in one place of this user, each is locked for as long as its worker lives, and whoever
starts removes those that nobody holds any more.
"""

import asyncio
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final, Self

import structlog
from structlog.typing import FilteringBoundLogger

from imagefleet.errors import Misconfigured
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Recipe
from imagefleet.jobs.images import Focal
from imagefleet.jobs.model import JsonObject
from imagefleet.runtime import in_thread
from imagefleet.worker.isolation.child import SOURCE_FILE, file_name
from imagefleet.worker.isolation.nursery import Child, Nursery
from imagefleet.worker.isolation.report import (
    GENERAL_MEMORY_BYTES,
    Allowance,
    ChildCancelled,
    ChildCrashed,
    ChildFailed,
    Ending,
    Killed,
    RenderedFiles,
    Spent,
    UntrueError,
    checked,
    no_child,
    remove,
    result_of,
)
from imagefleet.worker.isolation.sandbox import hide_this_process

log: Final[FilteringBoundLogger] = structlog.get_logger()

_OWN_ALONE: Final = 0o700
_LOCK: Final = "lock"
_PROBE: Final = "imagefleet.worker.isolation.child:probe"
_RENDER: Final = "imagefleet.worker.isolation.child:render_variants"


class Renderer:
    """Owns the zygote. Any number of calls may run at once; how many is for the slots to say."""

    def __init__(self, *, preload: Sequence[str] = (), recipes: Iterable[Recipe] = ()) -> None:
        self._recipes = recipes
        self._preload = (_RENDER.partition(":")[0], *preload)
        self._nursery: Nursery | None = None
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Start it, and try it: where decoding cannot be isolated, nothing is decoded.

        Nor with recipes whose watermarks cannot: every job would fail for what is not its fault.
        """
        hide_this_process()
        about, given = "", [(each.name, each.marks) for each in self._recipes if each.marks]
        try:
            for name, marks in [("", []), *given]:
                about = f"the recipe {name} cannot be used: " if name else ""
                await self.run_isolated(
                    _PROBE, {"marks": marks}, {}, Allowance(deadline_seconds=30)
                )
        except BaseException as error:
            await self._close()
            if isinstance(error, ChildCrashed | ChildFailed):
                raise Misconfigured(about + (error.detail or str(error))) from error
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    @property
    def zygote_pid(self) -> int | None:
        """The process that children are forked from; None while there is none."""
        return self._nursery.pid if self._nursery is not None and self._nursery.alive else None

    async def render(
        self,
        source: Path | int,
        recipe: Recipe,
        limits: Limits,
        *,
        focal: Focal | None = None,
        deadline_seconds: float,
        scratch: Path,
        memory_bytes: int = GENERAL_MEMORY_BYTES,
        cancel: asyncio.Event | None = None,
        known: tuple[int, str] | None = None,
        spent: Spent | None = None,
    ) -> RenderedFiles:
        """Every variant of the recipe, as checked files in a folder of their own under `scratch`.

        Length and hash of the source are `known` to who measured it; otherwise they are measured.
        The caller discards them; whenever this raises, there is nothing left to discard.
        """
        order: JsonObject = {
            "recipe": recipe.document(),
            "limits": asdict(limits),
            "focal": list(focal) if focal else None,
        }
        allowance = Allowance(deadline_seconds=deadline_seconds, memory_bytes=memory_bytes)
        with _scratch_folder(scratch) as folder, _opened(source, recipe, folder) as files:
            spent = spent or Spent()
            spent.read_bytes += os.fstat(files[SOURCE_FILE]).st_size
            report = await self.run_isolated(_RENDER, order, files, allowance, cancel, spent)
            try:
                given = known or files[SOURCE_FILE]
                made = await in_thread(partial(checked, report, recipe, given, folder))
            except UntrueError as error:
                detail = f"a false report: {error}"
                raise ChildCrashed(detail) from error
            spent.made_bytes += sum(variant.facts.bytes for variant in made.variants)
            return made

    async def run_isolated(
        self,
        task: str,
        argument: JsonObject,
        files: Mapping[str, int],
        allowance: Allowance,
        cancel: asyncio.Event | None = None,
        spent: Spent | None = None,
    ) -> JsonObject:
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
        if spent is not None and ending.usage is not None:
            spent.add(ending.usage)
        return result_of(ending, allowance)

    async def _start(
        self, task: str, argument: JsonObject, files: Mapping[str, int], allowance: Allowance
    ) -> Child:
        for _ in range(2):  # the first zygote may be found dead only by asking it
            nursery = await self._warm_nursery()
            with suppress(ConnectionError):
                return await nursery.start_child(task, argument, files, allowance)
        detail = "the decoding process ends as soon as it is started"
        raise no_child(detail)

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


async def _ending_of(child: Child, cancel: asyncio.Event) -> Ending:
    """Wait until it is dead, whoever kills it; a cancelled wait kills it first."""

    async def kill_when_cancelled() -> None:
        await cancel.wait()
        child.kill(Killed.CANCELLED)

    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(kill_when_cancelled())
            await asyncio.wait([child.ended])
            watch.cancel()
    except asyncio.CancelledError:
        child.kill(Killed.CANCELLED)
        await asyncio.wait([child.ended])
        raise
    return child.ended.result()


@contextmanager
def _scratch_folder(scratch: Path) -> Iterator[Path]:
    """A folder nobody else has, which stays only if all goes well."""
    folder = Path(tempfile.mkdtemp(prefix="render-", dir=scratch))
    try:
        yield folder
    except BaseException:
        remove(folder)
        raise


@contextmanager
def _opened(source: Path | int, recipe: Recipe, folder: Path) -> Iterator[Mapping[str, int]]:
    """The source for reading and an empty file a variant, open while the child is at work."""
    with ExitStack() as stack:

        def opened(path: Path, flags: int) -> int:
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            return descriptor

        read_only = opened(source, os.O_RDONLY) if isinstance(source, Path) else source
        files = {SOURCE_FILE: read_only}
        for variant in recipe.variants:
            for image_format in variant.formats:
                name = file_name(variant.name, image_format)
                files[name] = opened(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        yield files


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make the folder, and remove it and every abandoned one."""
    place = _place(parent or Path(tempfile.gettempdir()))
    with ExitStack() as stack:
        with _locked(place / _LOCK):
            _remove_abandoned(place)
            folder = Path(tempfile.mkdtemp(prefix="worker-", dir=place))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(_locked(folder / _LOCK))
        yield folder


def _place(parent: Path) -> Path:
    place = parent / f"imagefleet-{os.getuid()}"
    place.mkdir(mode=_OWN_ALONE, exist_ok=True)
    status = place.lstat()
    # Anybody may write to /tmp: a folder that was waiting for us is no place for pictures.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        msg = f"{place} is not a folder of this user alone: remove it, or set TMPDIR"
        raise Misconfigured(msg)
    return place


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_abandoned(place: Path) -> None:
    for folder in place.glob("worker-*"):
        try:
            with (folder / _LOCK).open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue  # its worker lives
        except FileNotFoundError:
            shutil.rmtree(folder, ignore_errors=True)  # killed before it could lock
        log.info("scratch.swept", folder=folder.name)
