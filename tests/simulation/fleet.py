"""A fleet in one process: the product's dispatcher and its statements, over a bad queue.

Jobs are real rows, claimed and settled by the statements of the store; only their work is a pause.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import uuid4

from imagefleet.aws.queue import Received
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import (
    Claim,
    JobId,
    Lane,
    Submission,
    TenantId,
    Verdict,
    WorkerId,
    parse_message,
)
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.maintenance.dispatcher import Dispatcher
from imagefleet.store.database import Pool
from imagefleet.store.fleet.workers import WorkerCard, register_worker
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.leases import renew_claims
from imagefleet.store.jobs.submissions import submit_jobs
from imagefleet.store.settling import Settlement, settle_jobs
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from imagefleet.worker.slots import Hearing
from tests.simulation.queue import BadQueue
from tests.support.database import Database
from tests.support.factories import a_submission

LANE: Final = Lane.GENERAL
BEAT_EVERY: Final = 0.5  # seconds; the product's is 2 s, and tests have less time
LOOK_EVERY: Final = 0.2
WAIT: Final = timedelta(seconds=2)


@dataclass
class Story:
    """What became of each job."""

    submitted: dict[JobId, float] = field(default_factory=dict)
    claimed: dict[JobId, float] = field(default_factory=dict)
    done: set[JobId] = field(default_factory=set)
    tenants: dict[JobId, TenantId] = field(default_factory=dict)

    def waits(self, tenant: str | None = None) -> list[float]:
        """Seconds from submit to claim, shortest first."""
        return sorted(
            at - self.submitted[job_id]
            for job_id, at in self.claimed.items()
            if tenant is None or self.tenants[job_id] == tenant
        )


class Fleet:
    """Workers with slots, and one dispatcher that may be killed."""

    def __init__(self, database: Database, queue: BadQueue, *, slots: int, work: float) -> None:
        self.database = database
        self.queue = queue
        self.story = Story()
        self.dispatchers_killed = 0
        self._slots = slots
        self._work = work
        self._done = asyncio.Event()

    @asynccontextmanager
    async def open(self, *, killed_in: float = 0.0, dice: random.Random) -> AsyncIterator["Fleet"]:
        """Run until the end of the context; a dispatcher dies in this share of its looks."""
        async with AsyncExitStack() as stack:
            workers = await stack.enter_async_context(self.database.pool("worker", max_size=12))
            upkeep = await stack.enter_async_context(self.database.pool("maintenance"))
            self._api = await stack.enter_async_context(self.database.pool("api"))
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._consume(workers)),
                    group.create_task(self._dispatch(upkeep, killed_in, dice)),
                ]
                try:
                    yield self
                finally:
                    for task in tasks:
                        task.cancel()

    async def submit(self, count: int, *, tenant: str = "acme") -> None:
        jobs = [a_submission(lane=LANE, tenant_id=TenantId(tenant)) for _ in range(count)]
        async with self._api.connection() as connection:
            await submit_jobs(connection, jobs)
        self._tell(jobs)

    def _tell(self, jobs: Sequence[Submission]) -> None:
        now = time.monotonic()
        for job in jobs:
            self.story.submitted[job.job_id] = now
            self.story.tenants[job.job_id] = job.tenant_id

    async def all_done(self, within: float) -> None:
        async with asyncio.timeout(within):
            while len(self.story.done) < len(self.story.submitted):
                self._done.clear()
                await self._done.wait()

    async def _dispatch(self, pool: Pool, killed_in: float, dice: random.Random) -> None:
        """A dispatcher after the other: one that dies does so amid a look, and resigns nothing."""
        while True:
            dispatcher = Dispatcher(
                pool,
                {lane: self.queue.as_queue() for lane in Lane},
                uuid4(),
                MaintenanceMetrics(()),
                batch=1000,
                idle_interval=timedelta(seconds=LOOK_EVERY),
            )
            with suppress(TimeoutError):
                while True:
                    dies = dice.random() < killed_in
                    async with asyncio.timeout(dice.random() * 0.05 if dies else None):
                        await dispatcher.run_once()
                    await asyncio.sleep(LOOK_EVERY)
            self.dispatchers_killed += 1

    async def _consume(self, pool: Pool) -> None:
        me = WorkerId(uuid4())
        async with pool.connection() as connection:
            await register_worker(
                connection,
                WorkerCard(
                    worker_id=me,
                    host="simulation",
                    pid=1,
                    version="0",
                    types=("noop",),
                    slots={LANE: self._slots},
                    type_slots={},
                ),
            )
        hearing = Hearing([LANE])
        free = asyncio.Semaphore(self._slots)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat(pool, me, hearing))
            clock = asyncio.get_running_loop().time
            while True:
                await free.acquire()
                reserved = 1
                while reserved < 10 and not free.locked():
                    await free.acquire()
                    reserved += 1
                began = clock()
                received = await self.queue.receive(most=reserved, wait=WAIT)
                if not received:
                    hearing.silence(LANE, began)
                taken = 0
                if received:
                    messages = [parse_message(message.body) for message in received]
                    async with pool.connection() as connection:
                        answers = await claim_jobs(
                            connection,
                            [message.job_id for message in messages],
                            worker_id=me,
                            lanes=[LANE],
                            types=["noop"],
                        )
                    for one, message, answer in zip(received, messages, answers, strict=True):
                        if answer.claim is not None:
                            taken += 1
                            hearing.claimed(LANE, message)
                            self.story.claimed.setdefault(message.job_id, time.monotonic())
                            group.create_task(self._work_on(pool, me, answer.claim, one, free))
                        elif answer.verdict in {Verdict.BUSY, Verdict.CONTENDED}:
                            later = timedelta(seconds=5)
                            await self.queue.change_visibility([(one.receipt, later)])
                        else:
                            await self.queue.delete([one.receipt])
                for _ in range(reserved - taken):
                    free.release()

    async def _work_on(
        self, pool: Pool, me: WorkerId, claim: Claim, received: Received, free: asyncio.Semaphore
    ) -> None:
        await asyncio.sleep(self._work)
        settlement = Settlement.of(claim, Completed(), RetryPolicy())
        async with pool.connection() as connection:
            await settle_jobs(connection, me, [settlement])
        self.story.done.add(claim.job_id)
        self._done.set()
        free.release()
        await self.queue.delete([received.receipt])

    async def _beat(self, pool: Pool, me: WorkerId, hearing: Hearing) -> None:
        while True:
            async with pool.connection() as connection:
                await renew_claims(connection, me, [], hearing.told())
            await asyncio.sleep(BEAT_EVERY)
