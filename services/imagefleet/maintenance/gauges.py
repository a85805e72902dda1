"""Samples for gauges: read by one elected process, shown to every scrape of it.

Counting is not for scrapes: a dozen of them a minute would each read every open job. Whoever holds
the office `sampler` reads once an interval; the others show no sampled series at all.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

import structlog

from imagefleet.aws.queue import Depth, Queue
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import JobState, Lane
from imagefleet.store.breakers import Breaker, list_breakers
from imagefleet.store.database import Connection, Pool, acquire
from imagefleet.store.deadletters import count_unacknowledged
from imagefleet.store.edge import InvalidationSample, sample_invalidations
from imagefleet.store.elections import hold_election, resign
from imagefleet.store.rings import ExpectedMessages, expect_messages
from imagefleet.store.upkeep import Depth as JobDepth
from imagefleet.store.upkeep import Ledger, count_stuck, read_ledger, sample_depths
from imagefleet.store.walks import Walk, read_walk
from imagefleet.telemetry.upkeep import MaintenanceMetrics

OFFICE: Final = "sampler"
RENEW_EVERY: Final = timedelta(seconds=2)  # the office is free ten seconds after its last renewal

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sampled:
    """What one look did."""

    elected: bool
    sampled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One look at the database."""

    open: Sequence[JobDepth]
    stuck: int
    messages: Mapping[Lane, ExpectedMessages]
    ledger: Ledger
    breakers: Sequence[Breaker]
    unacknowledged: int
    invalidations: InvalidationSample | None
    walk: Walk | None


class Sampler:
    """Holds the office if it can, and samples once an interval while it does."""

    def __init__(
        self,
        pool: Pool,
        queues: Mapping[Lane, Queue],
        holder: UUID,
        metrics: MaintenanceMetrics,
        *,
        interval: timedelta,
        has_edge: bool = True,
    ) -> None:
        """Without an edge there is nobody to owe it to: then debts are not read."""
        self._pool = pool
        self._queues = queues
        self._holder = holder
        self._metrics = metrics
        self._interval = interval.total_seconds()
        self._has_edge = has_edge
        self._next = 0.0

    async def run_once(self) -> Sampled:
        """Renew the office; sample if it is ours and time for it. Call it every two seconds."""
        try:
            return await self._run_once()
        except BaseException:
            self._metrics.unelected()  # a sample that failed half way is none
            self._next = 0.0
            raise

    async def resign(self) -> None:
        """Leave the office, if it is ours, so that somebody else need not wait until it is free."""
        self._metrics.unelected()
        with self._metrics.query("resign"):
            async with acquire(self._pool) as connection:
                await resign(connection, OFFICE, self._holder)

    async def _run_once(self) -> Sampled:
        async with acquire(self._pool) as connection:
            if await hold_election(connection, OFFICE, self._holder) is None:
                self._metrics.unelected()
                self._next = 0.0
                return Sampled(elected=False)
            now = asyncio.get_running_loop().time()
            if now < self._next:
                return Sampled(elected=True)
            with self._metrics.query("sample"):
                facts = await _facts(connection, has_edge=self._has_edge)
        depths = await self._depths()
        self._show(facts, depths)  # nothing is awaited in there: no scrape sees half of it
        self._next = now + self._interval
        return Sampled(elected=True, sampled=True)

    async def _depths(self) -> dict[Lane, Depth]:
        depths: dict[Lane, Depth] = {}
        for lane, queue in self._queues.items():
            try:
                depths[lane] = await queue.depth()
            except Unavailable as error:
                log.warning("sample.incomplete", lane=lane, code=error.code)
        return depths

    def _show(self, facts: Facts, depths: Mapping[Lane, Depth]) -> None:
        self._metrics.unelected()  # what is not there any more is not to be shown any more
        self._metrics.depths_sampled(_waiting(facts.open))
        self._metrics.states_sampled(
            (depth.type, depth.state, depth.jobs, depth.oldest_age) for depth in facts.open
        )
        self._metrics.stuck_sampled(facts.stuck)
        for lane, one in facts.messages.items():
            self._metrics.rings_sampled(
                lane,
                announced=one.announced,
                window=one.window,
                waited=one.waited,
                silence=one.unattended_for,
            )
        self._metrics.dead_letters_sampled(facts.unacknowledged)
        if (edge := facts.invalidations) is not None:
            self._metrics.invalidations_sampled(
                edge.owed, edge.oldest_age, edge.in_flight, edge.month_paths
            )
        if facts.walk is not None:
            self._metrics.missing_sampled(facts.walk.progress.all_missing)
        self._metrics.ledger_sampled(asdict(facts.ledger) | {"missing": facts.ledger.missing})
        for breaker in facts.breakers:
            self._metrics.breaker_sampled(
                breaker.service, is_open=breaker.state == "open", trips=breaker.trips
            )
        for lane, depth in depths.items():
            expected = facts.messages[lane].expected
            self._metrics.lane_sampled(
                lane, due=expected, visible=depth.visible, in_flight=depth.in_flight
            )


def _waiting(depths: Sequence[JobDepth]) -> Counter[str]:
    waiting: Counter[str] = Counter()
    for depth in depths:
        if depth.state != JobState.PROCESSING:
            waiting[depth.type] += depth.jobs
    return waiting


async def _facts(connection: Connection, *, has_edge: bool) -> Facts:
    return Facts(
        open=await sample_depths(connection),
        stuck=await count_stuck(connection),
        messages=await expect_messages(connection),
        ledger=await read_ledger(connection),
        breakers=await list_breakers(connection),
        unacknowledged=await count_unacknowledged(connection),
        invalidations=await sample_invalidations(connection) if has_edge else None,
        walk=await read_walk(connection),
    )
