"""Rings what is due: jobs whose message was lost, whose retry has come, whose pause was lifted.

The due times are pushed forward first and the messages sent after, so any number of dispatchers may
run, and one that dies in between has only made its jobs wait for their next due time.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from imagefleet.aws.queue import Queue
from imagefleet.doorbell import ring_jobs
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import Lane
from imagefleet.store.database import Pool, acquire
from imagefleet.store.rings import take_due_rings

DEPTH_IS_GOOD_FOR: Final = 15.0  # seconds: queue depths are estimates, and cost a request

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Dispatched:
    """What one look did."""

    due: int
    sent: int


class Dispatcher:
    """Announces due jobs, lane by lane."""

    def __init__(self, pool: Pool, queues: Mapping[Lane, Queue], *, batch: int) -> None:
        self._pool = pool
        self._queues = queues
        self._batch = batch
        self._silent: dict[Lane, tuple[bool, float]] = {}

    async def run_once(self) -> Dispatched:
        """Ring up to a batch of due jobs in every lane."""
        due = sent = 0
        for lane, queue in self._queues.items():
            repeats = await self._is_silent(lane, queue)
            async with acquire(self._pool) as connection:
                rings = await take_due_rings(connection, lane, limit=self._batch, repeats=repeats)
            if rings:
                taken = await ring_jobs({lane: queue}, rings)
                due, sent = due + len(rings), sent + len(taken)
                log.info("job.rung", lane=lane, due=len(rings), sent=len(taken))
        return Dispatched(due=due, sent=sent)

    async def _is_silent(self, lane: Lane, queue: Queue) -> bool:
        """Whether nothing waits in the queue: else a job rung before is likely still in it."""
        now = asyncio.get_running_loop().time()
        silent, until = self._silent.get(lane, (False, 0.0))
        if now < until:
            return silent
        try:
            silent = (await queue.depth()).visible == 0
        except Unavailable:
            silent = False
        self._silent[lane] = (silent, now + DEPTH_IS_GOOD_FOR)
        return silent
