"""Keeping what was claimed: the beat, and what it tells this worker to let go.

Every two seconds, on a connection of its own, the worker names what it holds. The answer says which
jobs somebody wants cancelled, which claims are lost, and which are locked by this worker although
it does not name them: claims whose answer never arrived. Those come back uncharged after a second
look.

A worker that cannot beat stops its own work 20 s after it *sent* the last beat that was
acknowledged, well before a rescuer can give the jobs to others (30 s of silence), and by its own
monotonic clock.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import structlog

from imagefleet.errors import ClaimLost
from imagefleet.jobs.lifecycle import Released
from imagefleet.jobs.model import JobId, WorkerId
from imagefleet.jobs.retry import RetryPolicy
from imagefleet.runtime import Drain
from imagefleet.store.database import connect
from imagefleet.store.leases import Beat, renew_claims
from imagefleet.store.settlements import Settlement
from imagefleet.worker.attempt import Attempt, Stop
from imagefleet.worker.settler import Settler

BEAT_EVERY: Final = 2.0  # seconds
BEAT_WITHIN: Final = 4.0  # a beat that takes longer is given up, and its connection with it
FRESH_FOR: Final = 5.0  # with an older beat nothing new is received
STOP_AFTER: Final = 20.0  # see above; must stay well under the rescuer's patience

log = structlog.get_logger()


class Lease:
    """The beat of one worker process."""

    def __init__(
        self, dsn: str, worker_id: WorkerId, held: Mapping[tuple[JobId, int], Attempt]
    ) -> None:
        self._dsn = dsn
        self._worker_id = worker_id
        self._held = held
        self._strays: frozenset[tuple[JobId, int]] = frozenset()
        self._acknowledged_at = asyncio.get_running_loop().time()
        self._beaten = asyncio.Event()
        self.dead = False

    @property
    def age(self) -> float:
        """Seconds since the last acknowledged beat was sent."""
        return asyncio.get_running_loop().time() - self._acknowledged_at

    async def fresh(self) -> None:
        """Return when the last beat is young enough to receive anything new."""
        while self.age > FRESH_FOR:
            self._beaten.clear()
            await self._beaten.wait()

    @asynccontextmanager
    async def keep(self, settler: Settler, drain: Drain) -> AsyncIterator[None]:
        """Beat until the end of the context; a worker that was declared dead is asked to end."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._beat(settler, drain), name="beat"),
                group.create_task(self._watch(), name="beat-watch"),
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def _beat(self, settler: Settler, drain: Drain) -> None:
        while True:
            try:
                await self._beat_while_connected(settler)
            except ClaimLost:
                self.dead = True
                self._stop_all(Stop.LOST)
                drain.request("declared dead: its jobs belong to others")
                return
            except Exception as error:  # noqa: BLE001 - the database is away; the watch counts
                log.warning("beat.failed", error=repr(error))
                await asyncio.sleep(BEAT_EVERY / 2)

    async def _beat_while_connected(self, settler: Settler) -> None:
        async with connect(
            self._dsn,
            process="worker-beat",
            connect_within=BEAT_WITHIN,
            statement_within=BEAT_WITHIN,
        ) as connection:
            while True:
                sent_at = asyncio.get_running_loop().time()
                holds = [attempt.hold for attempt in self._held.values()]
                async with asyncio.timeout(BEAT_WITHIN):
                    beat = await renew_claims(connection, self._worker_id, holds)
                if not beat.alive:
                    raise ClaimLost.of_worker(self._worker_id)
                self._acknowledged_at = sent_at
                self._beaten.set()
                await self._obey(beat, settler)
                await asyncio.sleep(BEAT_EVERY)

    async def _obey(self, beat: Beat, settler: Settler) -> None:
        for (job_id, _), attempt in list(self._held.items()):
            if job_id in beat.lost:
                attempt.stop(Stop.LOST)
            elif job_id in beat.cancelled:
                attempt.stop(Stop.CANCELLED)
        twice = {stray for stray in beat.strays & self._strays if stray not in self._held}
        self._strays = beat.strays - twice
        for job_id, claim_no in twice:
            log.warning("job.stray", job_id=str(job_id), claim_no=claim_no)
            await settler.settle(
                Settlement(
                    job_id=job_id,
                    claim_no=claim_no,
                    outcome=Released(why="stray"),
                    policy=RetryPolicy(),
                )
            )

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(max(0.1, STOP_AFTER - self.age))
            if self.age >= STOP_AFTER and self._held:
                log.error("beat.lost", seconds=round(self.age, 1), jobs=len(self._held))
                self._stop_all(Stop.BEAT_LOST)

    def _stop_all(self, why: Stop) -> None:
        for attempt in list(self._held.values()):
            attempt.stop(why)
