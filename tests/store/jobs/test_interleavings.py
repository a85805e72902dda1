"""No interleaving of those who write about a target leaves an open job without a due ring."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from imagefleet.jobs.lifecycle import Completed, Outcome, Released, Retry
from imagefleet.jobs.model import Claim, JobId, PauseScope, WorkerId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import Pause, pause, resume
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.rings import confirm_rings
from imagefleet.store.jobs.submissions import submit_jobs
from imagefleet.store.settling import Settled, Settlement, settle_jobs
from tests.support.database import INVARIANTS, Database, driver_of
from tests.support.eventually import eventually
from tests.support.factories import (
    ALL_LANES,
    TENANT,
    TYPES,
    a_submission,
    a_worker,
    due_rings,
)
from tests.support.races import many_connections, no_deadlocks

HOUR = timedelta(hours=1)


# The interleaver. Each actor has a connection and at most one transaction, which it may hold open
# for as long as the dice say. Nothing runs beside anything unseen: after every step each operation
# is either over or waits for a lock, so that a run is a schedule, and its seed nearly always finds
# it again.
ACTORS = 5
STEPS = 220
SEEDS = [int(seed) for seed in os.environ.get("INTERLEAVINGS", "1 2 3 4").split()]  # noqa: TID251

WAITING = """
SELECT coalesce(wait_event_type = 'Lock', false) FROM pg_stat_activity WHERE pid = $1
"""
# A second is what a claim defers by. Who is parked rightly is what the invariants know.
LATE = """
SELECT jobs.id, jobs.state, rings.next_at - now() AS next_in
  FROM jobs
  JOIN rings ON rings.job_id = jobs.id
 WHERE jobs.state IN ('queued', 'failed_retryable')
   AND rings.next_at > greatest(jobs.run_at, now()) + interval '2 seconds'
   AND rings.next_at < 'infinity'
"""
PLACES = [f"photo-{n}" for n in range(3)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What an operation leaves to the later ones, once it is committed."""

    jobs: tuple[JobId, ...] = ()
    claims: tuple[tuple[WorkerId, Claim], ...] = ()


Operation = Callable[[Connection], Awaitable[Made]]


class Interleaver:
    def __init__(self, watcher: Connection, actors: Sequence[Connection], seed: int) -> None:
        self.watcher = watcher
        self.dice = random.Random(seed)
        self.idle = list(actors)
        self.busy: dict[Connection, asyncio.Task[Made]] = {}
        self.held: list[tuple[Connection, Made]] = []
        self.open = {actor: driver_of(actor).transaction() for actor in actors}
        self.workers: list[WorkerId] = []
        self.jobs: list[JobId] = []
        self.claims: list[tuple[WorkerId, Claim]] = []
        self.committed = 0

    async def run(self, group: asyncio.TaskGroup, steps: int) -> None:
        self.workers = [await a_worker(self.watcher) for _ in range(3)]
        for _ in range(steps):
            if self.idle and (not self.held or self.dice.random() < 0.55):
                connection = self.idle.pop(self.dice.randrange(len(self.idle)))
                self.busy[connection] = group.create_task(self._begin(connection))
            elif self.held:
                await self._commit(*self.held.pop(self.dice.randrange(len(self.held))))
            await self._settle_down()
            await self._check()
        while self.busy or self.held:
            if self.held:
                await self._commit(*self.held.pop())
            await self._settle_down()
            await self._check()

    async def _begin(self, connection: Connection) -> Made:
        self.open[connection] = driver_of(connection).transaction()
        await self.open[connection].start()
        return await self._choose()(connection)

    async def _commit(self, connection: Connection, made: Made) -> None:
        await self.open[connection].commit()
        self.committed += 1
        self.jobs += made.jobs
        self.claims += made.claims
        self.idle.append(connection)

    async def _settle_down(self) -> None:
        """Until every operation is over or waits for a lock of somebody else."""

        async def stands_still() -> bool:
            for connection, task in list(self.busy.items()):
                if task.done():
                    self.held.append((connection, task.result()))
                    del self.busy[connection]
                elif not await self.watcher.fetchval(
                    WAITING, driver_of(connection).get_server_pid()
                ):
                    return False
            return True

        await eventually(stands_still, within=10)

    async def _check(self) -> None:
        for invariant in INVARIANTS:
            await invariant(self.watcher)
        assert [dict(row) for row in await self.watcher.fetch(LATE)] == []

    def _choose(self) -> Operation:
        return self.dice.choices(
            [self._submit, self._claim, self._settle, self._pause, self._resume, self._ring],
            weights=[4, 7, 7, 1, 2, 2],
        )[0]

    async def _submit(self, connection: Connection) -> Made:
        jobs = [
            a_submission(
                job_id=JobId(UUID(int=self.dice.getrandbits(128), version=4)),
                target=self.dice.choice(PLACES),
                preempts=self.dice.random() < 0.1,
                max_attempts=2,
                run_at=datetime.now(UTC) + HOUR if self.dice.random() < 0.1 else None,
            )
            for _ in range(self.dice.randint(1, 3))
        ]
        await submit_jobs(connection, jobs)
        return Made(jobs=tuple(job.job_id for job in jobs))

    async def _claim(self, connection: Connection) -> Made:
        wanted = self.dice.sample(self.jobs, min(len(self.jobs), self.dice.randint(1, 6)))
        me = self.dice.choice(self.workers)
        answers = await claim_jobs(connection, wanted, worker_id=me, lanes=ALL_LANES, types=TYPES)
        return Made(
            claims=tuple((me, answer.claim) for answer in answers if answer.claim is not None)
        )

    async def _settle(self, connection: Connection) -> Made:
        if self.claims:
            me = self.dice.choice(self.claims)[0]
            mine = [claim for claim in self.claims if claim[0] == me][: self.dice.randint(1, 4)]
            self.claims = [claim for claim in self.claims if claim not in mine]
            settled = [Settlement.of(claim, self._outcome(), RetryPolicy()) for _, claim in mine]
            report = await settle_jobs(connection, me, settled)
            assert {receipt.settled for receipt in report.receipts} == {Settled.WRITTEN}
        return Made()

    def _outcome(self) -> Outcome:
        return self.dice.choice(
            (Completed(), Retry(code="unavailable", message="later"), Released(why="drain"))
        )

    def _place(self) -> Pause:
        return Pause(scope=PauseScope.TARGET, name=self.dice.choice(PLACES), tenant_id=TENANT)

    async def _pause(self, connection: Connection) -> Made:
        await pause(connection, self._place(), by="tests", reason="a test")
        return Made()

    async def _resume(self, connection: Connection) -> Made:
        await resume(connection, self._place())
        return Made()

    async def _ring(self, connection: Connection) -> Made:
        rings = await due_rings(connection)
        await confirm_rings(connection, self.dice.sample(rings, min(len(rings), 3)))
        return Made()


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_interleaving_leaves_an_open_job_without_a_due_ring(
    database: Database, seed: int
) -> None:
    async with (
        no_deadlocks(database),
        many_connections(database, "superuser", ACTORS) as actors,
        database.connect("superuser") as watcher,
    ):
        interleaver = Interleaver(watcher, actors, seed)
        async with asyncio.TaskGroup() as group:
            await interleaver.run(group, STEPS)
    assert interleaver.committed > STEPS / 4
    assert len(interleaver.jobs) > 10
