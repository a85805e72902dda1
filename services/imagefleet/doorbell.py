"""Ringing right after commit: job messages in batches, then the ring rows pushed forward.

Nothing is promised here. A ring row says that its job waits, and the dispatcher rings whatever was
not confirmed in time; this is only why a job usually starts within milliseconds. So when SQS is
away, or more rings wait than memory should hold, they are simply left to their rows.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from itertools import islice
from typing import Final

import structlog

from imagefleet.aws.queue import Queue, ringing
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import Lane, Ring
from imagefleet.store.database import Pool, acquire
from imagefleet.store.rings import confirm_rings

LINGER: Final = 0.005  # seconds; enough for the requests of one moment to share a call
MOST_WAITING: Final = 10_000
MOST_AT_ONCE: Final = 200
CLOSE_WITHIN: Final = 5.0  # seconds for the last rings; what is left is the dispatcher's

log = structlog.get_logger()


async def ring_jobs(queues: Mapping[Lane, Queue], rings: Sequence[Ring]) -> list[Ring]:
    """Send one message for each ring, lane by lane; those that SQS has taken."""
    sent: list[Ring] = []
    for lane, queue in queues.items():
        of_lane = [ring for ring in rings if ring.lane is lane]
        if not of_lane:
            continue
        try:
            failures = await queue.send([ringing(ring) for ring in of_lane])
        except Unavailable as error:
            log.warning("ring.failed", lane=lane, jobs=len(of_lane), code=error.code)
            continue
        sent += [ring for ring, failure in zip(of_lane, failures, strict=True) if failure is None]
    return sent


class Doorbell:
    """Takes rings from whoever committed them and sends them from one place, a few at a time."""

    def __init__(
        self,
        pool: Pool,
        queues: Mapping[Lane, Queue],
        *,
        confirming: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Ring for this pool's rows; `confirming` surrounds each use of it, to be timed."""
        self._pool = pool
        self._queues = queues
        self._confirming = confirming
        self._waiting: list[Ring] = []
        self._wake = asyncio.Event()
        self._closed = False

    def ring(self, rings: Iterable[Ring]) -> None:
        """Send these soon. Never waits, never fails: what is too much is left to the dispatcher."""
        room = MOST_WAITING - len(self._waiting)
        self._waiting += islice(rings, max(0, room))
        self._wake.set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Doorbell"]:
        """Ring until the end of the context, and send the last ones before it."""
        async with asyncio.TaskGroup() as group:
            ringing_on = group.create_task(self._run(), name="doorbell")
            try:
                yield self
            except asyncio.CancelledError:  # now means now
                ringing_on.cancel()
                raise
            finally:
                self._closed = True
                self._wake.set()
                await asyncio.wait([ringing_on], timeout=CLOSE_WITHIN)
                ringing_on.cancel()

    async def _run(self) -> None:
        while self._waiting or not self._closed:
            await self._wake.wait()
            if not self._closed:
                await asyncio.sleep(LINGER)
            self._wake.clear()
            while self._waiting:
                batch, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
                await self._send(batch)

    async def _send(self, rings: Sequence[Ring]) -> None:
        try:
            sent = await ring_jobs(self._queues, rings)
            if sent:
                with self._confirming():
                    async with acquire(self._pool) as connection:
                        await confirm_rings(connection, sent)
        except Unavailable as error:
            log.warning("ring.unconfirmed", jobs=len(rings), code=error.code)
        except Exception:
            # This loop rings for every request of the process: a bug in one batch must not end it.
            log.exception("ring.broken", jobs=len(rings))
