"""Announces what waits, lane by lane: as much as the workers can take, and everybody in turn.

One dispatcher at a time holds a lane, by a lease of two seconds. It sends first and marks after: if
it dies in between, a message is sent twice, which is harmless; none is ever believed to exist that
was not sent. Where nothing waits, those who submit ring by themselves in the room that it tells.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

import structlog

from imagefleet.aws.queue import MOST_ENTRIES, Queue
from imagefleet.doorbell import ring_jobs
from imagefleet.jobs.model import JobId, Lane, Ring
from imagefleet.live import Live
from imagefleet.maintenance.window import Chooser, TenantTurns, Window, in_turn, with_more
from imagefleet.settings.in_force import Horizon
from imagefleet.store.database import Pool
from imagefleet.store.jobs.dispatching import (
    FIRST_PLACE,
    Holds,
    LaneFleet,
    Level,
    Place,
    count_announced,
    find_levels,
    hold_lanes,
    leave_lanes,
    look_at_fleet,
    look_at_holds,
    look_at_types,
    publish_room,
    take_rings,
)
from imagefleet.store.jobs.rings import (
    adopt_rings,
    confirm_rings,
    find_expired,
    forget_lost,
    ring_heads,
)
from imagefleet.telemetry.maintenance import MaintenanceMetrics

LOOK_EVERY: Final = timedelta(milliseconds=200)  # while something waits or is announced
LEVELS: Final = 256  # of one page
PAGES: Final = 40  # of one look: ten thousand tenants in some 50 ms; more take turns by looks
ROUNDS: Final = 8  # of one look, until the room is used by those who have something
FORGET_LOST_EVERY: Final = 1.0  # seconds
LOST_AT_ONCE: Final = 500  # of each number of sends
REST_AFTER_REFUSAL: Final = 1.0  # seconds without a look, when SQS took nothing
SEND_WITHIN: Final = 10.0  # seconds; what was not confirmed by then is sent again
HEADS: Final = 500  # parked rows of one page
HEADS_WITHIN: Final = 1.0  # seconds of one step
NO_JOB: Final = JobId(UUID(int=0))

log = structlog.get_logger()


@dataclass(slots=True)
class LaneWork:
    """What this dispatcher remembers of a lane between its looks."""

    window: Window = field(default_factory=Window)
    turns: TenantTurns = field(default_factory=TenantTurns)
    behind: Place = FIRST_PLACE
    busy: bool = False
    """Something waits or is announced."""
    rests_until: float = 0.0
    forget_lost_at: float = 0.0


class Dispatcher:
    """Announces due jobs in the lanes that it holds."""

    def __init__(
        self,
        pool: Pool,
        queues: Mapping[Lane, Queue],
        holder: UUID,
        metrics: MaintenanceMetrics,
        *,
        batch: int,
        idle_interval: timedelta,
        live: Live | None = None,
    ) -> None:
        """Send at most `batch` jobs a look and lane; look less often while nothing waits."""
        self._live = live or Live()
        self._pool = pool
        self._queues = queues
        self._holder = holder
        self._metrics = metrics
        self._configured_batch = batch
        self._idle_interval = idle_interval.total_seconds()
        self._now = asyncio.get_running_loop().time
        self._works: defaultdict[Lane, LaneWork] = defaultdict(
            lambda: LaneWork(window=Window(self._horizon))
        )
        self._chooser = Chooser(pool)
        self._look_at = 0.0
        self._walked_to = NO_JOB
        self.unreached: str | None = None
        """Why SQS did not take what was sent to it last; None while it does."""

    def _horizon(self) -> Horizon:
        return self._live.now.horizon()

    @property
    def _batch(self) -> int:
        return self._live.now.count("window.batch_jobs", self._configured_batch)

    async def run_once(self) -> int:
        """Look at every lane that is ours, if it is time, and send; call it every LOOK_EVERY."""
        if self._now() < self._look_at:
            return 0
        in_use, of_types = self._live.now.slots_of_lanes(), self._live.now.slots_of_types()
        async with self._pool.use("look_at_lanes") as connection:
            lanes = await hold_lanes(connection, self._holder)
            fleets = await look_at_fleet(connection, in_use) if lanes else {}
            holds = await look_at_holds(connection) if lanes else None
            adopted = await adopt_rings(connection, limit=self._batch) if lanes else 0
            self._chooser.told(await look_at_types(connection, of_types) if lanes else ())
        for lane in self._works.keys() - lanes:  # whoever has it now knows its pace and its turns
            del self._works[lane]
        sent = 0
        if holds is not None:
            looks = (self._look(lane, fleets[lane], holds) for lane in lanes)
            for answer in await asyncio.gather(*looks, return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer
                sent += answer
        busy = adopted > 0 or any(work.busy for work in self._works.values())
        self._look_at = 0.0 if busy else self._now() + self._idle_interval
        return sent

    async def leave(self) -> None:
        """Leave the lanes to others, at the end."""
        async with self._pool.connection() as connection:
            await leave_lanes(connection, self._holder)

    async def ring_expired(self) -> int:
        """Ring jobs whose worker is gone and was not rescued; call it every minute."""
        async with self._pool.use("find_expired") as connection:
            rings = await find_expired(connection, limit=self._batch)
        taken = await ring_jobs(self._queues, rings)
        if rings:
            log.warning("job.expired", due=len(rings), sent=len(taken))
        return len(taken)

    async def ring_heads(self) -> int:
        """Go on through what waits behind targets, and ring who stands first at a free one.

        Who frees a target rings its head, so this finds the few behind a job that was flagged and
        has not ended yet, and what was forgotten at a wrong moment. Call it every few seconds.
        """
        until, rung = self._now() + HEADS_WITHIN, 0
        while self._now() < until:
            async with self._pool.use("ring_heads") as connection:
                page = await ring_heads(connection, self._walked_to, limit=HEADS)
            rung += page.rung
            self._walked_to = NO_JOB if page.last is None else page.last
            if page.looked_at < HEADS:
                self._walked_to = NO_JOB
                break
        if rung:
            log.info("ring.forgotten", jobs=rung)
        return rung

    async def _look(self, lane: Lane, fleet: LaneFleet, holds: Holds) -> int:
        work = self._works[lane]
        if self._now() < work.rests_until:
            return 0
        window = work.window
        await self._forget_lost(lane, fleet, work)
        async with self._pool.use("count_announced") as connection:
            announced = await count_announced(
                connection, lane, within=window.lately, limit=4 * window.size + self._batch
            )
        room = window.look(
            self._now(),
            announced=announced,
            held=fleet.held,
            free=fleet.free,
            finished=fleet.finished,
        )
        levels = await self._find_levels(lane, work)
        ready, full, most_of = await self._chooser.ready(lane, levels, fleet, holds)
        everybody = work.behind == FIRST_PLACE
        work.turns.arrive({level.tenant_id: None for level in ready}, complete=everybody)
        most = min(room, self._batch)
        if most > MOST_ENTRIES:  # what is left of a request is for the next look
            most -= most % MOST_ENTRIES
        sent, waiting = await self._announce(lane, work, ready, most, most_of)
        full += [level for level in ready if self._chooser.is_full(lane, level)]
        work.busy = announced > 0 or bool(ready or full)
        waiting = waiting or bool(full) or not everybody
        async with self._pool.connection() as connection:
            await publish_room(
                connection,
                lane,
                self._holder,
                0 if waiting else room - sent,
                window=window.size,
                waited=max((level.waited for level in (*ready, *full)), default=None)
                if waiting
                else None,
            )
        return sent

    async def _forget_lost(self, lane: Lane, fleet: LaneFleet, work: LaneWork) -> None:
        if self._now() < work.forget_lost_at:
            return
        work.forget_lost_at = self._now() + FORGET_LOST_EVERY
        silent, heard = fleet.silent_at, fleet.heard_at
        # Where there were messages since, what was not heard may only stand deep: as many are given
        # up as the lane may hold, and not rows by the thousand that are announced much later.
        is_empty = silent is not None and (heard is None or silent > heard)
        limit = LOST_AT_ONCE if is_empty else min(LOST_AT_ONCE, work.window.size)
        async with self._pool.use("forget_lost") as connection:
            lost = await forget_lost(connection, lane, silent=silent, heard=heard, limit=limit)
        if lost:
            log.warning("ring.lost", lane=lane, jobs=lost)

    async def _find_levels(self, lane: Lane, work: LaneWork) -> list[Level]:
        """What waits in a lane; where there is more than one look reads, the next one goes on."""
        levels: list[Level] = []
        for _ in range(PAGES):
            async with self._pool.use("find_levels") as connection:
                page = await find_levels(connection, lane, work.behind, limit=LEVELS)
            levels += page
            work.behind = page[-1].place if len(page) == LEVELS else FIRST_PLACE
            if work.behind == FIRST_PLACE:
                break
        return levels

    async def _announce(
        self,
        lane: Lane,
        work: LaneWork,
        ready: Sequence[Level],
        room: int,
        most_of: Mapping[Place, int],
    ) -> tuple[int, bool]:
        """Send what there is room for, in turn; how many, and whether anything still waits."""
        waiting: dict[str, list[Level]] = defaultdict(list)
        for level in ready:
            waiting[level.tenant_id].append(level)
        sent = 0
        for _ in range(ROUNDS):
            if not waiting or sent == room:
                break
            weights = {tenant: levels[0].weight for tenant, levels in waiting.items()}
            shares = work.turns.share(weights, room - sent)
            async with self._pool.use("take_rings") as connection:
                taken = await take_rings(
                    connection,
                    lane,
                    (
                        (level, min(share, most_of.get(level.place, share)))
                        for tenant, share in shares.items()
                        for level in waiting[tenant]
                    ),
                )
            bounded = {ring.job_id: level for level, ring in taken if level.place in most_of}
            chosen = [
                ring
                for ring in in_turn(taken, shares, weights)
                if self._chooser.has_room(lane, bounded.get(ring.job_id))
            ]
            took = await self._send(lane, work, chosen)
            sent += len(took)
            served = Counter(ring.tenant_id for ring in took)
            work.turns.served((name, weights[name], count) for name, count in served.items())
            if len(took) < len(chosen):
                return sent, True
            waiting = with_more(waiting, taken, shares, most_of)
        return sent, bool(waiting)

    async def _send(self, lane: Lane, work: LaneWork, rings: Sequence[Ring]) -> list[Ring]:
        """Send and mark; what SQS took."""
        if not rings:
            return []
        took: list[Ring] = []
        try:
            async with asyncio.timeout(SEND_WITHIN):
                took = await ring_jobs({lane: self._queues[lane]}, rings)
        except TimeoutError:
            log.warning("ring.failed", lane=lane, jobs=len(rings), code="timeout")
        if took:
            async with self._pool.use("confirm_rings") as connection:
                await confirm_rings(connection, took)
        else:
            work.rests_until = self._now() + REST_AFTER_REFUSAL
        self.unreached = None if took else "nothing was taken"
        log.info("job.rung", lane=lane, due=len(rings), sent=len(took))
        return took
