"""Rings what is due: jobs whose message was lost, whose retry has come, whose pause was lifted.

The due times are pushed forward first and the messages sent after, so any number of dispatchers may
run, and one that dies in between has only made its jobs wait for their next due time. A look that
finds nothing due is one statement and no request to SQS.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from imagefleet.aws.queue import Queue
from imagefleet.doorbell import ring_jobs
from imagefleet.errors import FleetError
from imagefleet.jobs.model import Lane, Ring
from imagefleet.store.database import Pool, acquire
from imagefleet.store.rings import find_expired, look_at_due_rings, take_due_rings
from imagefleet.telemetry.upkeep import MaintenanceMetrics

DEPTH_IS_GOOD_FOR: Final = 15.0  # seconds: queue depths are estimates, and cost a request

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Dispatched:
    """What one look did."""

    due: int
    sent: int


class Dispatcher:
    """Announces due jobs, lane by lane."""

    def __init__(
        self, pool: Pool, queues: Mapping[Lane, Queue], metrics: MaintenanceMetrics, *, batch: int
    ) -> None:
        self._pool = pool
        self._queues = queues
        self._metrics = metrics
        self._batch = batch
        self._silent: dict[Lane, tuple[bool, float]] = {}
        self.unreached: str | None = None
        """Why SQS did not take what was sent to it last; None while it does."""

    async def run_once(self) -> Dispatched:
        """Ring up to a batch of due jobs in every lane."""
        with self._metrics.query("look_at_due_rings"):
            async with acquire(self._pool) as connection:
                lanes = await look_at_due_rings(connection, limit=self._batch)
        due = sent = 0
        for lane, has_repeats in lanes.items():
            queue = self._queues[lane]
            rings = await self._take(lane, repeats=has_repeats and await self._is_silent(lane))
            taken = await ring_jobs({lane: queue}, rings)
            due, sent = due + len(rings), sent + len(taken)
            if rings:
                self.unreached = None if taken else "nothing was taken"
                log.info("job.rung", lane=lane, due=len(rings), sent=len(taken))
        return Dispatched(due=due, sent=sent)

    async def ring_expired(self) -> Dispatched:
        """Ring jobs whose worker is gone and was not rescued; call it every minute."""
        with self._metrics.query("find_expired"):
            async with acquire(self._pool) as connection:
                rings = await find_expired(connection, limit=self._batch)
        taken = await ring_jobs(self._queues, rings)
        if rings:
            log.warning("job.expired", due=len(rings), sent=len(taken))
        return Dispatched(due=len(rings), sent=len(taken))

    async def _take(self, lane: Lane, *, repeats: bool) -> list[Ring]:
        with self._metrics.query("take_due_rings"):
            async with acquire(self._pool) as connection:
                return await take_due_rings(connection, lane, limit=self._batch, repeats=repeats)

    async def _is_silent(self, lane: Lane) -> bool:
        """Whether nothing waits in the queue: else a job rung before is likely still in it."""
        now = asyncio.get_running_loop().time()
        silent, until = self._silent.get(lane, (False, 0.0))
        if now < until:
            return silent
        try:
            silent = (await self._queues[lane].depth()).visible == 0
        except FleetError as error:
            self.unreached, silent = error.code, False
        self._silent[lane] = (silent, now + DEPTH_IS_GOOD_FOR)
        return silent
