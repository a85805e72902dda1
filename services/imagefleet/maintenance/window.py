"""How many messages a lane holds, what may be one of them, and whose turn it is.

Postgres schedules, SQS delivers. What stands in SQS keeps its order, whoever comes after, so as
little stands there as the workers can take until the next look: their free slots, and what they
finish in the meantime. What waits in Postgres takes turns by start-time fair queueing: each tenant
has a virtual time that rises with every job it was given, and whose is lowest is next. A tenant
that had nothing waiting comes in just before the others, by one turn, and cannot save turns up.

What lost: turns for each type, by which a tenant with five types has five. And one span to tell the
pace by: the last five seconds let a lane of quick jobs take three to come up, and the last second
takes slots that all end at once for a quick lane, so it is whichever says more, less one such wave.
"""

import asyncio
import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from imagefleet.jobs.model import Lane, Ring
from imagefleet.settings.in_force import AS_BUILT, Horizon
from imagefleet.store.database import Pool
from imagefleet.store.jobs.dispatching import (
    Holds,
    LaneFleet,
    Level,
    Manners,
    Place,
    TypeRoom,
    read_manners,
)
from imagefleet.store.jobs.rings import URGENT

LONG: Final = 5.0  # seconds: bridges the gaps between jobs that end together
LATELY: Final = timedelta(minutes=10)  # at the most, in a lane of jobs that take as long
MANNERS_ARE_GOOD_FOR: Final = 30.0  # seconds
MOST_TENANTS: Final = 20_000  # remembered; who was served longest ago is as good as new


class Window:
    """The pace of one lane, and how many of its jobs may be announced and unclaimed at a time."""

    def __init__(self, horizon: Callable[[], Horizon] = lambda: AS_BUILT) -> None:
        """Announce as far ahead as is said at each look."""
        self._ahead = horizon
        self._finished: deque[tuple[float, int]] = deque()
        self._looked_at: float | None = None
        self._gap = 0.0
        self.size = horizon().spare
        self.rate = 0.0
        """Jobs that the lane's workers finish a second."""

    @property
    def lately(self) -> timedelta:
        """What was announced longer ago takes no place any more: it is lost, or stuck."""
        if self.rate == 0:
            return LATELY
        seconds = 3 * max(self._horizon, self.size / self.rate)
        return min(LATELY, timedelta(seconds=seconds))

    @property
    def _horizon(self) -> float:
        ahead = self._ahead()
        least, most = ahead.shortest.total_seconds(), ahead.longest.total_seconds()
        return min(most, max(least, ahead.looks * self._gap))

    def look(self, now: float, *, announced: int, held: int, free: int, finished: int) -> int:
        """Take what a look found; how many more may be announced now.

        Finished is what ran and ended within the last second. What was claimed tells nothing: a
        batch of slow jobs that fills the slots would look quick, and so would what had no room.
        """
        if self._looked_at is not None:
            self._gap = max(now - self._looked_at, 0.8 * self._gap)
        self._looked_at = now
        self._finished.append((now, finished))
        while self._finished[0][0] <= now - LONG:
            self._finished.popleft()
        long = sum(jobs for _, jobs in self._finished) / len(self._finished)
        # All slots may have ended their jobs together: that alone is no quick lane.
        self.rate = max(long, finished - (held + free))
        self.size = free + math.ceil(self._horizon * self.rate) + self._ahead().spare
        return max(0, self.size - announced)


class TenantTurns:
    """Whose turn it is among the tenants that wait in a lane."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}
        self._now = 0.0  # the highest start of a turn that was served
        self._places: dict[str, int] = {}
        self._present: set[str] = set()
        self._before: set[str] = set()
        self._arrivals = 0

    def arrive(self, tenants: Iterable[str], *, complete: bool) -> None:
        """Take whom a look found waiting; `complete`: together with earlier looks, everybody.

        Who was not there before is the newest: of those who are level, the newest goes first. Else
        a crowd that all came at once would stand before whoever comes after it.
        """
        for tenant in tenants:
            if tenant not in self._before and tenant not in self._present:
                self._arrivals += 1
                self._places[tenant] = self._arrivals
            self._present.add(tenant)
        if complete:
            self._before, self._present = self._present, set()
            if len(self._places) > 2 * len(self._before) + MOST_TENANTS:
                self._places = {tenant: self._places[tenant] for tenant in self._before}

    def share(self, weights: Mapping[str, int], turns: int) -> dict[str, int]:
        """How many of the next turns each tenant has, if all have enough that waits."""
        heap = [
            (self._start(tenant, weight), -self._places.get(tenant, 0), tenant)
            for tenant, weight in weights.items()
        ]
        heapq.heapify(heap)
        shares: dict[str, int] = {}
        for _ in range(turns if heap else 0):
            start, place, tenant = heap[0]
            shares[tenant] = shares.get(tenant, 0) + 1
            heapq.heapreplace(heap, (start + 1 / weights[tenant], place, tenant))
        return shares

    def served(self, jobs: Iterable[tuple[str, int, int]]) -> None:
        """Count what was announced: tenant, weight, and how many jobs."""
        starts = []
        for tenant, weight, count in jobs:
            end = self._start(tenant, weight) + count / weight
            self._ends[tenant] = end
            starts.append(end - 1 / weight)
        self._now = max((self._now, *starts))
        if len(self._ends) > MOST_TENANTS:
            self._ends = {tenant: end for tenant, end in self._ends.items() if end > self._now - 1}

    def _start(self, tenant: str, weight: int) -> float:
        return max(self._ends.get(tenant, -math.inf), self._now - 1 / weight)


class Chooser:
    """Which of what waits may be announced now, and how much of it."""

    def __init__(self, pool: Pool) -> None:
        self._rooms: dict[tuple[Lane, str], int] = {}
        self._shut: frozenset[tuple[Lane, str]] = frozenset()
        self._waited: set[tuple[Lane, str]] = set()
        self._pool = pool
        self._manners: dict[str, tuple[Manners, float]] = {}

    def told(self, types: Collection[TypeRoom]) -> None:
        """Take how many more are announced of types that have fewer slots.

        Lanes in which such a type waited at the last look share its room: else the flood of one
        would leave nothing to the other. A suspect is alone where it runs, and asks nobody.
        """
        lanes = Counter(name for _, name in self._waited)
        self._waited.clear()
        self._rooms = {
            (room.lane, room.type): min(room.room, math.ceil(room.shared / (lanes[room.type] or 1)))
            for room in types
            if room.lane is not Lane.QUARANTINE
        }
        self._shut = frozenset((room.lane, room.type) for room in types if not room.slots)

    async def ready(
        self, lane: Lane, levels: Sequence[Level], fleet: LaneFleet, holds: Holds
    ) -> tuple[list[Level], list[Level], dict[Place, int]]:
        """Those that are due, that nothing holds back, and that somebody can do.

        Those for which all workers that can do them have no room. And of which only so many are
        announced at a time: by one job those that try a service whose breaker is half open; as far
        as workers have slots left those of a type that has fewer. Without any worker the first few
        are announced all the same, whatever their type.
        """
        due = [level for level in levels if level.due]
        manners = await self._manners_of(due) if holds else {}
        ready: list[Level] = []
        full: list[Level] = []
        most_of: dict[Place, int] = {}
        tried: set[str] = set()
        for level in due:
            its = manners.get(level.type)
            if level.priority != URGENT:
                if fleet.types and level.type not in fleet.types:
                    continue
                if its is not None and _held(lane, level, its, holds):
                    continue
                if (lane, level.type) in self._shut:
                    continue
                room = self._rooms.get((lane, level.type))
                if room is not None:
                    self._waited.add((lane, level.type))
                    if room <= 0:
                        full.append(level)
                        continue
                    most_of[level.place] = room
                if its is not None and (half_open := its.services & holds.half_open):
                    if half_open & tried:
                        continue
                    tried |= half_open
                    most_of[level.place] = 1
            ready.append(level)
        return ready, full, most_of

    async def _manners_of(self, levels: Iterable[Level]) -> dict[str, Manners]:
        now = asyncio.get_running_loop().time()
        of_type = {level.type: level.job_id for level in levels}
        unknown = [
            job_id
            for name, job_id in of_type.items()
            if name not in self._manners or self._manners[name][1] < now
        ]
        if unknown:
            async with self._pool.use("read_manners") as connection:
                read = await read_manners(connection, unknown)
            good_until = now + MANNERS_ARE_GOOD_FOR
            self._manners |= {name: (manners, good_until) for name, manners in read.items()}
        return {name: self._manners[name][0] for name in of_type if name in self._manners}

    def has_room(self, lane: Lane, level: Level | None) -> bool:
        """Take a place of its type, whose room all tenants of a look share."""
        if level is None or (lane, level.type) not in self._rooms:
            return True
        self._rooms[lane, level.type] -= 1
        return self._rooms[lane, level.type] >= 0

    def is_full(self, lane: Lane, level: Level) -> bool:
        """Whether what is left of this level waits for room."""
        return self._rooms.get((lane, level.type), 1) <= 0


def _held(lane: Lane, level: Level, manners: Manners, holds: Holds) -> bool:
    """Whether a pause or an open breaker holds back this type of this tenant in this lane."""
    paused = (
        holds.everything
        or lane in holds.lanes
        or level.type in holds.types
        or not holds.tenants.isdisjoint(((level.tenant_id, ""), (level.tenant_id, level.type)))
    )
    return (paused and not manners.preempts) or bool(manners.services & holds.open)


def in_turn(
    taken: Iterable[tuple[Level, Ring]], shares: Mapping[str, int], weights: Mapping[str, int]
) -> list[Ring]:
    """Each tenant's most urgent and oldest, as many as it has turns, the tenants alternating."""
    rings: dict[str, list[tuple[int, Ring]]] = defaultdict(list)
    for level, ring in taken:
        rings[ring.tenant_id].append((level.priority, ring))
    placed: list[tuple[float, Ring]] = []
    for tenant, candidates in rings.items():
        candidates.sort(key=lambda candidate: (candidate[0], candidate[1].next_at))
        placed += [
            (place / weights[tenant], ring)
            for place, (_, ring) in enumerate(candidates[: shares[tenant]])
        ]
    placed.sort(key=lambda turn: turn[0])
    return [ring for _, ring in placed]


def with_more(
    waiting: Mapping[str, list[Level]],
    taken: Iterable[tuple[Level, Ring]],
    shares: Mapping[str, int],
    most_of: Mapping[Place, int],
) -> dict[str, list[Level]]:
    """What may have more that waits: every level that gave as many as it was asked for."""
    gave = Counter(level.place for level, _ in taken)
    left = {
        tenant: [
            level
            for level in levels
            if tenant not in shares
            or (gave[level.place] >= shares[tenant] and level.place not in most_of)
        ]
        for tenant, levels in waiting.items()
    }
    return {tenant: levels for tenant, levels in left.items() if levels}
