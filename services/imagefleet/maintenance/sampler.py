"""Samples for gauges: read by one elected process, shown to every scrape of it.

Reading is not for scrapes, of which there are a dozen a minute. Whoever holds the office `sampler`
reads once an interval; the others show no sampled series at all. Each sample stands alone: one that
fails, or takes too long, shows nothing until it succeeds again, and costs no other its turn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Final, TypeAlias
from uuid import UUID

import structlog

from imagefleet.aws.queue import Queue, QueueDepth
from imagefleet.errors import FleetError, Unavailable
from imagefleet.jobs.model import Lane
from imagefleet.live import Live
from imagefleet.maintenance.duties import Office
from imagefleet.maintenance.sweeper import WALK_EVERY
from imagefleet.runtime import tell_missed
from imagefleet.store.database import Connection, Pool
from imagefleet.store.edge.reports import sample_invalidations
from imagefleet.store.fleet.breakers import list_breakers
from imagefleet.store.fleet.ledger import read_ledger, sample_depths, sample_oldest
from imagefleet.store.fleet.statistics import (
    ExpectedMessages,
    count_stuck,
    expect_messages,
    sample_behind,
)
from imagefleet.store.images.sweeping import read_walk
from imagefleet.store.letters.letters import count_unacknowledged
from imagefleet.telemetry.maintenance import MaintenanceMetrics

OFFICE: Final = "sampler"
RENEW_EVERY: Final = timedelta(seconds=2)  # the office is free ten seconds after its last renewal
SAMPLE_WITHIN: Final = 2.0  # seconds; all of them together are less than a step may take

Take: TypeAlias = Callable[[Connection], Awaitable[None]]
"""Reads, and then shows without awaiting anything: no scrape sees half of it."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sampled:
    """What one look did."""

    elected: bool
    sampled: bool = False
    failed: tuple[str, ...] = ()
    """The samples that are not shown now."""


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
        within: float = SAMPLE_WITHIN,
        live: Live | None = None,
    ) -> None:
        """Without an edge there is nobody to owe it to: then debts are not read."""
        self._live = live or Live()
        self._pool = pool
        self._queues = queues
        self._office = Office(OFFICE, pool, holder)
        self._metrics = metrics
        self._configured = interval
        self._within = within
        self._sampled_at: float | None = None
        self._expected: Mapping[Lane, ExpectedMessages] = {}
        self._samples: dict[str, Take] = {
            "depths": self._take_depths,
            "oldest": self._take_oldest,
            "stuck": self._take_stuck,
            "rings": self._take_rings,
            "letters": self._take_letters,
            "walk": self._take_walk,
            "breakers": self._take_breakers,
            "ledger": self._take_ledger,
            "behind": self._take_behind,
        }
        if has_edge:
            self._samples["edge"] = self._take_edge

    @property
    def _interval(self) -> float:
        now = self._live.now
        return now.seconds("sampling.gauges_seconds", self._configured).total_seconds()

    async def run_once(self) -> Sampled:
        """Renew the office; sample if it is ours and time for it. Call it every two seconds."""
        try:
            return await self._run_once()
        except BaseException:
            self._metrics.unelected()  # whether it is still ours is not known
            self._sampled_at = None
            raise

    async def resign(self) -> None:
        """Leave the office, and show no samples any more."""
        self._metrics.unelected()
        await self._office.resign()

    async def _run_once(self) -> Sampled:
        if not await self._office.held():
            self._metrics.unelected()
            self._sampled_at = None
            return Sampled(elected=False)
        now = asyncio.get_running_loop().time()
        if self._sampled_at is not None and now < self._sampled_at + self._interval:
            return Sampled(elected=True)
        self._expected = {}
        failed = [name for name, take in self._samples.items() if not await self._took(name, take)]
        await self._sample_queues()
        self._sampled_at = now
        return Sampled(elected=True, sampled=True, failed=tuple(failed))

    async def _took(self, name: str, take: Take) -> bool:
        try:
            async with asyncio.timeout(self._within):
                async with self._pool.use(f"sample_{name}") as connection:
                    await take(connection)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are to be shown
            self._metrics.unsampled(name)
            if isinstance(error, FleetError):
                tell_missed(error, "sample.failed", sample=name)
            else:
                log.warning("sample.failed", sample=name, code=type(error).__name__)
            return False
        return True

    async def _take_depths(self, connection: Connection) -> None:
        depths = await sample_depths(connection)
        self._metrics.depths_sampled((depth.type, depth.state, depth.jobs) for depth in depths)

    async def _take_oldest(self, connection: Connection) -> None:
        self._metrics.ages_sampled(await sample_oldest(connection))

    async def _take_stuck(self, connection: Connection) -> None:
        self._metrics.stuck_sampled(await count_stuck(connection))

    async def _take_rings(self, connection: Connection) -> None:
        self._expected = await expect_messages(connection)
        for lane, expected in self._expected.items():
            self._metrics.rings_sampled(
                lane,
                announced=expected.announced,
                window=expected.window,
                waited=expected.waited,
                silence=expected.unattended_for,
            )

    async def _take_letters(self, connection: Connection) -> None:
        self._metrics.dead_letters_sampled(await count_unacknowledged(connection))

    async def _take_edge(self, connection: Connection) -> None:
        self._metrics.invalidations_sampled(*await sample_invalidations(connection))

    async def _take_walk(self, connection: Connection) -> None:
        walk = await read_walk(connection)
        self._metrics.unsampled("walk")
        if walk is not None:
            self._metrics.missing_sampled(walk.progress.all_missing)

    async def _take_breakers(self, connection: Connection) -> None:
        breakers = await list_breakers(connection)
        self._metrics.unsampled("breakers")
        for breaker in breakers:
            self._metrics.breaker_sampled(
                breaker.service, is_open=breaker.state == "open", trips=breaker.trips
            )

    async def _take_ledger(self, connection: Connection) -> None:
        ledger = await read_ledger(connection)
        self._metrics.unsampled("ledger")
        if ledger is not None:
            self._metrics.ledger_sampled(asdict(ledger) | {"missing": ledger.missing})

    async def _take_behind(self, connection: Connection) -> None:
        self._metrics.behind_sampled(await sample_behind(connection, walk_within=WALK_EVERY))

    async def _sample_queues(self) -> None:
        """What SQS says of each lane, and how far that is from what Postgres expects."""
        depths = {lane: await self._depth(lane, queue) for lane, queue in self._queues.items()}
        self._metrics.unsampled("queues")
        for lane, depth in depths.items():
            if depth is not None:
                expected = self._expected.get(lane)
                self._metrics.lane_sampled(
                    lane,
                    due=None if expected is None else expected.expected,
                    visible=depth.visible,
                    in_flight=depth.in_flight,
                )

    async def _depth(self, lane: Lane, queue: Queue) -> QueueDepth | None:
        try:
            async with asyncio.timeout(self._within):
                return await queue.depth()
        except (Unavailable, TimeoutError) as error:
            code = error.code if isinstance(error, Unavailable) else "sqs_timeout"
            log.warning("sample.incomplete", lane=lane, code=code)
            return None
