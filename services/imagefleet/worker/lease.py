"""Keeping what was claimed: the beat, and what it tells this worker to let go.

Every two seconds, on a connection of its own, the worker names what it holds. The answer says which
jobs somebody wants cancelled, which claims are lost, and which are locked by this worker although
it does not name them: claims whose answer never arrived. Those come back uncharged after a second
look. It also says whether an operator asks this worker to drain, which is then the same as a
signal.

A worker that cannot beat stops its own work 20 s after it *sent* the last beat that was
acknowledged, well before a rescuer can give the jobs to others (30 s of silence), and by its own
monotonic clock.

With the beat goes what this worker has heard of each lane.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import structlog

from imagefleet.errors import ClaimLost, FleetError
from imagefleet.jobs.lifecycle import Released
from imagefleet.jobs.model import Fence, WorkerId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.runtime import Drain, tell_missed
from imagefleet.settings import Database
from imagefleet.store.database import Connection, connect
from imagefleet.store.jobs.leases import Beat, renew_claims
from imagefleet.store.settling import Settlement
from imagefleet.telemetry.health import Pulse
from imagefleet.telemetry.metrics import WorkerMetrics
from imagefleet.worker.attempt import RunningAttempts, Stop
from imagefleet.worker.messages import Messages
from imagefleet.worker.settler import Settler
from imagefleet.worker.slots import Hearing

BEAT_EVERY: Final = 2.0  # seconds
BEAT_WITHIN: Final = 4.0  # a beat that takes longer is given up, and its connection with it
FRESH_FOR: Final = 5.0  # with an older beat nothing new is received
STOP_AFTER: Final = 20.0  # see above; must stay well under the rescuer's patience
ASKED_TO_DRAIN: Final = "an operator asked for it"
LONGEST_SILENCE: Final = timedelta(seconds=60)  # between two tries to beat: this loop is stuck

log = structlog.get_logger()


class Lease:
    """The beat of one worker process."""

    def __init__(
        self,
        database: Database,
        worker_id: WorkerId,
        attempts: RunningAttempts,
        messages: Messages,
        settler: Settler,
        hearing: Hearing,
        metrics: WorkerMetrics,
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._attempts = attempts
        self._messages = messages
        self._settler = settler
        self._hearing = hearing
        self._metrics = metrics
        self._strays: frozenset[Fence] = frozenset()
        self._releases: set[asyncio.Task[None]] = set()
        self._acknowledged_at = asyncio.get_running_loop().time()
        self._beaten = asyncio.Event()
        self.dead = False
        self.pulse = Pulse(LONGEST_SILENCE)
        """Felt with every try to beat, whatever the database says to it."""

    @property
    def age(self) -> float:
        """Seconds since the last acknowledged beat was sent."""
        return asyncio.get_running_loop().time() - self._acknowledged_at

    @property
    def fresh(self) -> bool:
        """Whether the last beat is young enough to receive anything new."""
        return self.age <= FRESH_FOR

    def stale(self) -> str | None:
        """Why nothing new may be received, if so."""
        return None if self.fresh else f"last beat {self.age:.0f} s ago"

    async def until_fresh(self) -> None:
        """Return when something new may be received."""
        while not self.fresh:
            self._beaten.clear()
            await self._beaten.wait()

    @asynccontextmanager
    async def keep(self, drain: Drain) -> AsyncIterator[None]:
        """Beat until the end of the context; a worker that was declared dead is asked to end."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._beat(group, drain), name="beat"),
                group.create_task(self._watch(), name="beat-watch"),
            ]
            try:
                yield
            finally:
                for task in (*tasks, *self._releases):
                    task.cancel()

    async def _beat(self, group: asyncio.TaskGroup, drain: Drain) -> None:
        while True:
            try:
                await self._beat_while_connected(group, drain)
            except ClaimLost:
                self.dead = True
                self._attempts.stop_all(Stop.LOST)
                drain.request("declared dead: its jobs belong to others")
                return
            except FleetError as error:  # the database is away; the watch counts
                tell_missed(error, "beat.failed", age_seconds=round(self.age, 1))
                await self._rest()
            except Exception as error:  # noqa: BLE001 - the watch counts
                log.warning("beat.failed", error=repr(error), age_seconds=round(self.age, 1))
                await self._rest()

    async def _rest(self) -> None:
        self.pulse.felt()
        await asyncio.sleep(BEAT_EVERY / 2)

    async def _beat_while_connected(self, group: asyncio.TaskGroup, drain: Drain) -> None:
        async with connect(
            self._database.url.get_secret_value(),
            process="worker-beat",
            pooler=self._database.pooler,
            connect_within=BEAT_WITHIN,
            statement_within=BEAT_WITHIN,
        ) as connection:
            try:
                while True:
                    beat = await self._beat_once(connection)
                    self._obey(beat, group)
                    if beat.drains:
                        drain.request(ASKED_TO_DRAIN)
                    await asyncio.sleep(BEAT_EVERY)
            except (FleetError, TimeoutError):
                connection.terminate()  # an orderly goodbye could take longer than there is
                raise

    async def _beat_once(self, connection: Connection) -> Beat:
        sent_at = asyncio.get_running_loop().time()
        named = dict(self._attempts.running)
        renewals = [attempt.renewal for attempt in named.values()]
        with self._metrics.query("beat"):
            async with asyncio.timeout(BEAT_WITHIN):
                beat = await renew_claims(
                    connection, self._worker_id, renewals, self._hearing.told()
                )
        if not beat.alive:
            raise ClaimLost.of_worker(self._worker_id)
        self.pulse.felt()
        self._acknowledged_at = sent_at
        self._beaten.set()
        standing = named.keys() & self._attempts.running.keys() - beat.lost
        self._messages.renew(named[fence].delivery for fence in standing)
        return beat

    def _obey(self, beat: Beat, group: asyncio.TaskGroup) -> None:
        for fence, attempt in list(self._attempts.running.items()):
            if fence in beat.lost:
                attempt.stop(Stop.LOST)
            elif fence in beat.cancelled:
                attempt.stop(Stop.CANCELLED)
        seen_twice = (beat.strays & self._strays).difference(self._attempts.running)
        self._strays = beat.strays - seen_twice
        for stray in seen_twice:
            release = group.create_task(self._release(stray))  # the next beat does not wait for it
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)

    async def _release(self, stray: Fence) -> None:
        job_id, claim_no = stray
        log.warning("job.stray", job_id=str(job_id), claim_no=claim_no)
        settlement = Settlement(
            job_id=job_id,
            claim_no=claim_no,
            outcome=Released(why="stray"),
            policy=RetryPolicy(),
        )
        try:
            await self._settler.settle(settlement)
        except Exception:
            log.exception("stray.unsettled", job_id=str(job_id))  # it will be seen again

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(max(0.1, STOP_AFTER - self.age))
            if self.age < STOP_AFTER:
                continue
            log.error("beat.lost", seconds=round(self.age, 1), jobs=len(self._attempts.running))
            self._attempts.stop_all(Stop.BEAT_LOST)
            self._beaten.clear()
            await self._beaten.wait()
