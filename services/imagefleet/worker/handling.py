"""What a job type is to a worker: its kind, its code, and what that code is given.

A handler needs nothing beyond this module and `imagefleet.jobs.kinds`, where its kind is made; what
`__all__` names is kept for handlers of other packages (docs/job-types.md).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID

from imagefleet.aws.objects import Objects, Stored
from imagefleet.doorbell import Doorbell
from imagefleet.errors import InputRejected, NotFound, Unavailable
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Recipe
from imagefleet.jobs.images import Focal, Original
from imagefleet.jobs.kinds import STANDARD_RETRY, JobKind
from imagefleet.jobs.lifecycle import Completed, failure_sentence
from imagefleet.jobs.limits import LIMITS
from imagefleet.jobs.model import Claim, JobId, JsonObject, Lane, Ring
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.live import Live
from imagefleet.runtime import Drain, container_limit, unless
from imagefleet.settings import Worker
from imagefleet.store.database import Connection, Pool
from imagefleet.store.fleet.workers import find_most_memory
from imagefleet.store.images.originals import find_original
from imagefleet.store.images.recipes import StoredRecipes
from imagefleet.store.jobs.leases import Renewal
from imagefleet.telemetry.metrics import WorkerMetrics
from imagefleet.worker.breakers import BreakerReports
from imagefleet.worker.isolation.client import Renderer
from imagefleet.worker.isolation.report import (
    GENERAL_MEMORY_BYTES,
    QUARANTINE_MEMORY_BYTES,
    Allowance,
    RenderedFiles,
    Spent,
)

__all__ = [
    "Completed",
    "Handler",
    "InputRejected",
    "JobContext",
    "NotFound",
    "Original",
    "Unavailable",
]

_MIB: Final = 2**20
SMALLEST_BYTES: Final = 128 * _MIB  # of a child, however small its picture
BESIDE_CHILDREN: Final = 256 * _MIB  # the worker, what children are forked from, files that wait
ELSEWHERE_IN: Final = timedelta(seconds=5)  # what needs more memory than its worker has
NO_FILES: Final[Mapping[str, int]] = {}


class Postponed(Exception):
    """Nothing is wrong, but nothing can be done yet: the job comes again later, uncharged."""

    def __init__(self, why: str, after: timedelta) -> None:
        super().__init__(why)
        self.why = why
        self.after = after


class Room:
    """Places for children, and what memory they may have together.

    First come, first served: while the first in the line waits for memory nobody passes it, as else
    large pictures would wait for as long as small ones come.
    """

    def __init__(self, children: int, memory_bytes: int) -> None:
        self.memory_bytes: Final = memory_bytes
        """What one child may have at most, and all of them together."""
        self._places = children
        self._free_bytes = memory_bytes
        self._line: dict[asyncio.Future[None], int] = {}
        """The first came first."""

    def allowance(self, foretold_bytes: int | None, *, in_quarantine: bool = False) -> int:
        """What a child may take: an eighth more than was foretold; None: as much as is usual.

        In quarantine no less than there ever was, as nothing is begun beside it.
        """
        wanted = GENERAL_MEMORY_BYTES
        if foretold_bytes is not None:
            wanted = max(SMALLEST_BYTES, foretold_bytes + foretold_bytes // 8)
        if in_quarantine:
            wanted = max(wanted, QUARANTINE_MEMORY_BYTES)
        return min(wanted, self.memory_bytes)

    @asynccontextmanager
    async def place(self, memory_bytes: int) -> AsyncIterator[None]:
        """Have a place and this memory, once everybody who came before has theirs."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line[turn] = memory_bytes
        self._admit()
        try:
            await turn
            yield
        finally:
            if self._line.pop(turn, None) is None:
                self._places += 1
                self._free_bytes += memory_bytes
            self._admit()

    def _admit(self) -> None:
        for turn, wanted in list(self._line.items()):
            if turn.cancelled():
                continue  # it leaves the line by itself
            if not self._places or wanted > self._free_bytes:
                return
            del self._line[turn]
            self._places -= 1
            self._free_bytes -= wanted
            turn.set_result(None)


def needs_more(foretold_bytes: int, most_bytes: int) -> InputRejected:
    """The refusal of a picture for which no worker has the memory."""
    needed, most = -(-foretold_bytes // _MIB), most_bytes // _MIB
    sentence = f"The image needs {needed:,} MiB of memory, and no worker has more than {most:,}."
    return InputRejected("memory", sentence)


def room_of(settings: Worker) -> Room:
    """What the settings say; where they do not, what the container has, or what is usual."""
    children, memory_bytes = settings.render_children, settings.render_memory
    if memory_bytes is None:
        limit = container_limit()
        memory_bytes = (children + 1) * GENERAL_MEMORY_BYTES
        if limit is not None:
            memory_bytes = max(SMALLEST_BYTES, limit - BESIDE_CHILDREN)
    return Room(children, memory_bytes)


class ReportProgress(Protocol):
    """Writes how far a job is; raises when the job should stop."""

    async def __call__(
        self, done: int, total: int | None = None, cursor: JsonObject | None = None
    ) -> None:
        """Write it, and extend the lock with it; a later attempt finds the cursor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What the handlers of a worker share; each sees it through its JobContext."""

    pool: Pool
    originals: Objects
    outputs: Objects
    renderer: Renderer
    recipes: Mapping[str, Recipe]
    """Those in force, by name."""
    stored_recipes: StoredRecipes
    room: Room
    """For children: they are what needs processors and memory."""
    picture_limits: Limits = field(default_factory=Limits)
    """What one picture may cost."""
    drain: Drain = field(default_factory=Drain)
    """Once it begins, whatever has not come to its first child is for other workers."""
    doorbell: Doorbell
    breakers: BreakerReports
    metrics: WorkerMetrics
    scratch: Path
    live: Live = field(default_factory=Live)
    """What operators have turned."""
    standard_retry: RetryPolicy = STANDARD_RETRY
    """The policy of types that have none of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """One attempt, as its handler sees it: the one door to whatever it needs."""

    claim: Claim
    renewal: Renewal
    """The claim as statements name it, for progress that is part of a larger transaction."""
    payload: Any
    """The payload, as an instance of the kind's own model."""
    deadline: float
    """When the attempt is stopped, on the event loop's clock."""
    progress: ReportProgress
    stopping: asyncio.Event
    """Set when the attempt is being stopped: whatever runs outside this loop must end."""
    _equipment: Equipment
    _computes: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it has had a child."""
    _spent: Spent = field(default_factory=Spent)

    @property
    def job_id(self) -> JobId:
        """The job's id."""
        return self.claim.job_id

    @property
    def correlation_id(self) -> str:
        """What the producer called all that belongs together."""
        return self.claim.correlation_id

    @property
    def attempt(self) -> int:
        """Which charged attempt this is, from 1."""
        return self.claim.attempts

    @property
    def cursor(self) -> JsonObject | None:
        """Where an earlier attempt of the job left off."""
        return self.claim.cursor

    @property
    def originals(self) -> Objects:
        """The bucket of uploaded files."""
        return self._equipment.originals

    @property
    def outputs(self) -> Objects:
        """The bucket of what is published."""
        return self._equipment.outputs

    @property
    def scratch(self) -> Path:
        """The worker's folder for files; an attempt makes one of its own in it, and removes it."""
        return self._equipment.scratch

    @property
    def cancelled(self) -> bool:
        """Whether the attempt is being stopped; awaits are interrupted by it anyway."""
        return self.stopping.is_set()

    @property
    def seconds_left(self) -> float:
        """How long until the deadline."""
        return self.deadline - asyncio.get_running_loop().time()

    @property
    def picture_limits(self) -> Limits:
        """What one picture may cost."""
        return self._equipment.picture_limits

    def database(self, use: str) -> AbstractAsyncContextManager[Connection]:
        """A connection for a moment, which is measured under this name."""
        return self._equipment.pool.use(use)

    def limit(self, name: str) -> int:
        """How much this limit is for the job's tenant, now."""
        turned = self._equipment.live.now.limit(self.claim.tenant_id, name)
        return LIMITS[name].default if turned is None else turned

    def ring(self, rings: Iterable[Ring]) -> None:
        """Announce jobs that were committed a moment ago."""
        self._equipment.doorbell.ring(rings)

    @asynccontextmanager
    async def room_for_a_child(self, foretold_bytes: int | None = None) -> AsyncIterator[int]:
        """A place among the children that may work at once, and how much memory belongs to it.

        What needs more than this worker has is Postponed, for one that has it; InputRejected where
        none does. Postponed, too, where the worker ends before this attempt's first child.
        """
        drain, room = self._equipment.drain, self._equipment.room
        if foretold_bytes and foretold_bytes > (most := await self.pass_on(foretold_bytes)):
            raise needs_more(foretold_bytes, most)
        in_quarantine = self.claim.lane is Lane.QUARANTINE
        memory_bytes = room.allowance(foretold_bytes, in_quarantine=in_quarantine)
        async with AsyncExitStack() as stack:
            if self._computes.is_set():
                await self._enter(stack, memory_bytes)
            elif drain.requested or not await unless(drain, self._enter(stack, memory_bytes)):
                raise Postponed("drain", timedelta())
            self._computes.set()
            yield memory_bytes

    async def pass_on(self, foretold_bytes: int) -> int:
        """Postponed where another worker has so much memory for a child, and this one has not.

        Else what one has at most.
        """
        own = self._equipment.room.memory_bytes
        if foretold_bytes <= own:
            return own
        async with self.database("find_most_memory") as connection:
            most = await find_most_memory(connection, self.claim.lane, self.claim.type)
        if foretold_bytes <= most:
            raise Postponed("memory", ELSEWHERE_IN)
        return max(own, most)

    async def _enter(self, stack: AsyncExitStack, memory_bytes: int) -> bool:
        await stack.enter_async_context(self._equipment.room.place(memory_bytes))
        return True

    async def recipe(self, name: str, version: str | None = None) -> Recipe:
        """The recipe of this name in the version with this hash, or else the one in force here.

        Unavailable where nobody has it: a newer process knows it, and so will a newer worker.
        """
        own = self._equipment.recipes.get(name)
        if own is not None and version in {None, own.hash}:
            return own
        stored = version and await self._equipment.stored_recipes.find(name, version)
        if stored:
            return stored
        asked = f"{name}@{version or 'any'}"
        raise Unavailable("unknown_recipe", failure_sentence("unavailable"), asked)

    async def render(
        self,
        source: Path,
        recipe: Recipe,
        limits: Limits,
        *,
        focal: Focal | None = None,
        memory_bytes: int,
        known: Stored,
    ) -> RenderedFiles:
        """Every variant of the recipe, made by a child for which there is room.

        They lie beside the source, of which it is known what was stored there.
        """
        return await self._equipment.renderer.render(
            source,
            recipe,
            limits,
            focal=focal,
            deadline_seconds=self.seconds_left,
            memory_bytes=memory_bytes,
            scratch=source.parent,
            cancel=self.stopping,
            known=(known.bytes, known.sha256),
            spent=self._spent,
        )

    async def fetch_original(self, image_id: UUID, target: Path, *, max_bytes: int) -> Original:
        """Copy the newest original of an image to a file, and tell what it is.

        Only of an image that is the job's own tenant's: of others, of deleted ones, and where it
        is not kept any more, NotFound, which fails the job. InputRejected when it is larger.
        """
        async with self.database("find_original") as connection:
            original = await find_original(connection, image_id, self.claim.tenant_id)
        await self.originals.fetch_to_file(
            original.key, target, max_bytes=max_bytes, expected_etag=original.etag
        )
        return original

    async def run_isolated(
        self, task: str, argument: JsonObject, files: Mapping[str, int] = NO_FILES
    ) -> JsonObject:
        """Run `module:function` in a child that has nothing but this argument and these files.

        For whatever needs a processor or reads what strangers sent. The handler names its tasks in
        `Handler.isolated`.
        """
        async with self.room_for_a_child() as memory_bytes:
            allowance = Allowance(deadline_seconds=self.seconds_left, memory_bytes=memory_bytes)
            return await self._equipment.renderer.run_isolated(
                task, argument, files, allowance, self.stopping, self._spent
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A job type that this worker can do."""

    kind: JobKind
    run: Callable[[JobContext], Awaitable[Completed]]
    isolated: tuple[str, ...] = ()
    """The `module:function` tasks it runs in children; their modules are loaded beforehand."""
    renders: bool = False
    """Its work is that of a child too: see `type_slots_of`."""


Handlers = Mapping[str, Handler]


def kinds_of(handlers: Handlers) -> dict[str, JobKind]:
    """The rules by which each of them runs."""
    return {name: handler.kind for name, handler in handlers.items()}


def type_slots_of(handlers: Handlers, children: int) -> dict[str, int]:
    """Slots are for what waits, children for what computes: of that one more is begun than works.

    So the next is here and fetched when a child is done, and whatever else came is for others.
    """
    return {
        name: children + 1
        for name, handler in handlers.items()
        if handler.renders or handler.isolated
    }


def modules_of(handlers: Handlers) -> tuple[str, ...]:
    """What the process that children are forked from has to load."""
    tasks = (task for handler in handlers.values() for task in handler.isolated)
    return tuple(dict.fromkeys(task.partition(":")[0] for task in tasks))
