"""The lanes of a worker: how many jobs at once, and what was heard of each.

Slots are reserved before a receive is sent, never more than are free. Operators may have fewer of
them used, of a lane or of a job type, while the worker runs.

A suspect has its worker to itself: while one runs there, that worker begins nothing else. Whoever
died with a killer is a suspect as well, so a crash may only be blamed on a job that had its worker
to itself. Before a suspect is claimed this worker stops beginning jobs and lets those that run come
to their end. It does not wait for long ones at first, and longer each time. Nor do suspects,
however many wait, take more than half of a worker's time from all the others.

What came, and what did not, is told with the beat: by it dispatchers know what is lost. A long poll
that brings nothing says that no message was there to be had since it began. A message by which a
job was claimed says that those announced well before it should have come through too.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from imagefleet.jobs.model import JobMessage, Lane
from imagefleet.settings import Worker
from imagefleet.settings.in_force import Overlay
from imagefleet.store.jobs.leases import Heard
from imagefleet.telemetry.metrics import WorkerMetrics

QUARANTINE_SLOTS: Final = 1  # a suspect is to have its worker to itself
ANSWERED_WITHIN: Final = 0.5  # seconds: a claim takes some milliseconds, but one may hang
OWED_FOR: Final = 1.0  # seconds once there is room: a dispatcher announces again within a fifth
GATHER: Final = 0.02  # seconds: jobs that end together are replaced by one receive, not by several
FIRST_PATIENCE: Final = timedelta(minutes=1)  # most jobs take seconds
LONGEST_PATIENCE: Final = timedelta(hours=2)  # longer than any job may take by itself
NO_BOUNDS: Final[Mapping[str, int]] = {}
TURN: Final = timedelta(seconds=1)  # after a suspect, for others to begin something


class Slots:
    """The slots of one lane, each free, reserved by a receive on its way, or busy with a job."""

    def __init__(
        self, total: int, *, changed: Callable[["Slots"], object] = lambda _: None
    ) -> None:
        self.total = total
        self.in_use = total
        """Of all of them; what runs or is on its way may be more for a while, after a change."""
        self.reserved = 0
        self.busy = 0
        self._changed = changed
        self._event = asyncio.Event()
        changed(self)

    @property
    def free(self) -> int:
        """How many somebody may use and nobody does."""
        return max(0, self.in_use - self.reserved - self.busy)

    @property
    def surplus(self) -> int:
        """How many are used, or reserved, that should not be any more."""
        return max(0, self.reserved + self.busy - self.in_use)

    def use(self, most: int) -> None:
        """Use no more than so many from now on; jobs that run finish."""
        self.in_use = min(most, self.total)
        self._tell()

    async def reserve(self, most: int) -> int:
        """Wait until at least one is free and take up to `most`; how many were taken."""
        taken = 0
        while not taken:  # fewer may be in use by the time that some are free
            await self._until_free(1)
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER):
                    await self._until_free(min(most, self.in_use))
            taken = min(most, self.free)
        self.reserved += taken
        self._tell()
        return taken

    def give_back(self, count: int) -> None:
        """Free reserved slots for which nothing came."""
        self.reserved -= count
        self._tell()

    def occupy(self) -> None:
        """Make a reserved slot a busy one."""
        self.reserved -= 1
        self.busy += 1
        self._tell()

    def leave(self) -> None:
        """Free a busy slot."""
        self.busy -= 1
        self._tell()

    async def all_free(self) -> None:
        """Return when nothing is reserved or busy."""
        while self.reserved or self.busy:
            await self._changes()

    async def _until_free(self, count: int) -> None:
        while self.free < max(count, 1):
            await self._changes()

    async def _changes(self) -> None:
        self._event.clear()
        await self._event.wait()

    def _tell(self) -> None:
        self._event.set()
        self._changed(self)


class RoomOwed(NamedTuple):
    """A lane that is owed room for these types, until then by the loop's clock if there is some."""

    types: frozenset[str]
    until: float | None = None


class TypeSlots:
    """How many jobs of a type run at once: of those that compute, and those that were turned.

    What a claim may take is taken out before it is sent, and what it did not take comes back with
    its answer: claims of several lanes are on their way at once, and share what there is. A lane
    that had no room is owed the next: its message has gone, so whoever took room last would be the
    first to claim again, and keep out all other lanes for as long as it has work.
    """

    def __init__(self, own: Mapping[str, int] = NO_BOUNDS) -> None:
        """Bind these types unless operators say something else; all others have every slot."""
        self.own = own
        self._most = own
        self._taken: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        """Those of them that claims on their way may need, or not."""
        self._owed: dict[Lane, RoomOwed] = {}
        """In the order in which they came."""
        self._more = asyncio.Event()
        self._now = asyncio.get_running_loop().time

    def use(self, turned: Mapping[str, int]) -> None:
        """Use no more than so many of these types from now on, and of others what they had."""
        self._most = {**self.own, **turned}
        self._more.set()

    @property
    def rooms(self) -> dict[str, int]:
        """How many more jobs of each of these types may begin."""
        return {name: max(0, most - self._taken[name]) for name, most in self._most.items()}

    def rooms_of(self, lane: Lane) -> dict[str, int]:
        """How many of this lane may: room that others were owed before it is theirs for a while."""
        rooms = self.rooms
        for other, debt in list(self._owed.items()):
            if other is lane:
                break
            if debt.until is None and any(rooms.get(name) for name in debt.types):
                self._owed[other] = debt._replace(until=self._now() + OWED_FOR)
            elif debt.until is not None and self._now() > debt.until:
                del self._owed[other]
                continue
            rooms = {name: max(0, room - (name in debt.types)) for name, room in rooms.items()}
        return rooms

    def full(self, lane: Lane) -> frozenset[str]:
        """Of which of them none of this lane may."""
        return frozenset(name for name, room in self.rooms_of(lane).items() if not room)

    def found(self, lane: Lane, begun: Collection[str], *, no_room: bool) -> None:
        """Of this lane jobs of these types began; whether others had no room, and are owed some."""
        if lane in self._owed and not self._owed[lane].types.isdisjoint(begun):
            del self._owed[lane]
        if no_room and lane not in self._owed and (full := self.full(lane)):
            self._owed[lane] = RoomOwed(full)
        self._more.set()

    async def more(self, lane: Lane, types: Collection[str], within: float, *, most: int) -> int:
        """Return how much room this lane has for these as soon as there is any.

        And `most` if it took too long, or where one of them is not bound any more.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self.full(lane).issuperset(types):
                    self._more.clear()
                    await self._more.wait()
        rooms = self.rooms_of(lane)
        return min(sum(rooms.get(name, most) for name in types), most) or most

    async def answered(self) -> None:
        """Return when no claim on its way keeps the last room of a type, or after a while.

        Most take little of what they keep: who did not wait for a quick lane would never have any.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWERED_WITHIN):
                while any(self._kept[name] for name, room in self.rooms.items() if not room):
                    self._more.clear()
                    await self._more.wait()

    @contextmanager
    def kept(self, lane: Lane, most: int) -> Iterator[dict[str, int]]:
        """Keep room for a claim of so many, until it is answered and what it took is counted."""
        rooms = {name: min(room, most) for name, room in self.rooms_of(lane).items()}
        self._taken.update(rooms)
        self._kept.update(rooms)
        try:
            yield rooms
        finally:
            self._taken.subtract(rooms)
            self._kept.subtract(rooms)
            self._more.set()

    def occupy(self, job_type: str) -> None:
        """Count one that was claimed."""
        self._taken[job_type] += 1

    def leave(self, job_type: str) -> None:
        """Count one less."""
        self._taken[job_type] -= 1
        self._more.set()


class Solitude:
    """Whether this worker runs whatever comes, or one job alone; of one event loop."""

    def __init__(self, *, shared: bool = True) -> None:
        """Not `shared` is a worker that has no other lane."""
        self.patience = FIRST_PATIENCE
        """How long the next suspect waits for what runs."""
        self._shared = shared
        self.others = 0
        """How many jobs run that are no suspects, and claims on their way."""
        self._begun_since = 0
        self._shut_at: float | None = None
        self._shut_for = 0.0
        self._changed = asyncio.Event()
        self._now = asyncio.get_running_loop().time

    @property
    def is_shut(self) -> bool:
        """Whether nothing else may be begun."""
        return self._shut_at is not None

    async def opened(self) -> None:
        """Return when anything may be begun."""
        while self.is_shut:
            await self._until_changed()

    def enter(self) -> None:
        """Count a job that is no suspect, or the claim of some, until it leaves."""
        self.others += 1
        self._begun_since += 1

    def leave(self) -> None:
        """End what entered."""
        self.others -= 1
        self._changed.set()

    async def begin(self) -> bool:
        """Shut out all others and wait until none is left; False: they take too long, try again.

        Whoever got True ends it.
        """
        self._shut_at = self._now()
        try:
            async with asyncio.timeout(self.patience.total_seconds()):
                while self.others:
                    await self._until_changed()
        except BaseException as error:
            self.end()
            if not isinstance(error, TimeoutError):
                raise
            self.patience = min(self.patience * 2, LONGEST_PATIENCE)
            return False
        self.patience = FIRST_PATIENCE
        return True

    def end(self) -> None:
        """Let others begin again."""
        assert self._shut_at is not None  # noqa: S101 - ended once, by who began
        self._shut_for, self._shut_at = self._now() - self._shut_at, None
        self._begun_since = 0
        self._changed.set()

    async def others_had_their_turn(self) -> None:
        """Return when the next suspect may come: if others have work, after as long as the last."""
        if not self._shared or not self._shut_for:
            return
        turn = min(self._shut_for, TURN.total_seconds())
        await asyncio.sleep(turn)
        if self._begun_since:
            await asyncio.sleep(self._shut_for - turn)
        self._shut_for = 0.0

    async def _until_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Hearing:
    """The newest silence and the newest announcement, by lane."""

    def __init__(self, lanes: Iterable[Lane]) -> None:
        """Listen to these lanes; what is told of them is told in their order."""
        self._now = asyncio.get_running_loop().time
        self._silent: dict[Lane, float | None] = dict.fromkeys(lanes)
        self._heard: dict[Lane, datetime | None] = dict.fromkeys(self._silent)

    def silence(self, lane: Lane, began: float) -> None:
        """Take it that a long poll which began then, by this loop's clock, brought nothing."""
        self._silent[lane] = max(began, self._silent[lane] or began)

    def claimed(self, lane: Lane, message: JobMessage) -> None:
        """Take it that this message came through."""
        if message.announced_at is not None:
            newest = self._heard[lane] or message.announced_at
            self._heard[lane] = max(message.announced_at, newest)

    def told(self) -> Heard:
        """All of it. A span, as no clock of ours is to be compared with the database's."""
        now = self._now()
        return Heard(
            silent_for=[
                None if began is None else timedelta(seconds=now - began)
                for began in self._silent.values()
            ],
            heard_at=[*self._heard.values()],
        )


def slots_of(settings: Worker, metrics: WorkerMetrics) -> dict[Lane, Slots]:
    """The slots of each lane that this worker listens to."""
    totals = {
        Lane.FAST: settings.fast_slots,
        Lane.GENERAL: settings.general_slots,
        Lane.QUARANTINE: QUARANTINE_SLOTS,
    }

    def shown(lane: Lane) -> Callable[[Slots], None]:
        return lambda slots: metrics.slots_changed(
            lane, free=slots.free, reserved=slots.reserved, busy=slots.busy
        )

    return {
        lane: Slots(totals[lane], changed=shown(lane))
        for lane in settings.lanes
        if totals[lane] > 0
    }


def use_slots(now: Overlay, slots: Mapping[Lane, Slots], type_slots: TypeSlots) -> None:
    """Use as many as are to be used from now on."""
    for lane, own in slots.items():
        own.use(now.slots(lane, own.total))
    type_slots.use(now.slots_of_types())
