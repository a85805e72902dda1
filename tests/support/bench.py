"""The parts of a worker around one attempt, on a real database and without queues."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, cast

from imagefleet.aws.objects import Objects
from imagefleet.doorbell import Doorbell
from imagefleet.jobs.kinds import JobKind, Noop
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import Claim, ClaimAnswer, JobMessage, Lane, Submission, WorkerId
from imagefleet.live import Live
from imagefleet.store.database import Connection, Pool
from imagefleet.store.images.recipes import StoredRecipes
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.telemetry.metrics import WorkerMetrics
from imagefleet.telemetry.tracing import Tracing
from imagefleet.worker.attempt import Attempt, RunningAttempts, Surroundings
from imagefleet.worker.breakers import BreakerReports
from imagefleet.worker.handling import Equipment, Handler, JobContext, Room
from imagefleet.worker.isolation.client import Renderer
from imagefleet.worker.isolation.report import QUARANTINE_MEMORY_BYTES
from imagefleet.worker.messages import Delivery, Messages, Unclaimed
from imagefleet.worker.settler import Settler
from tests.support.database import Database
from tests.support.factories import a_submission, a_worker, claim_job
from tests.support.queues import FakeQueue, a_ringing
from tests.support.recipes import RECIPES

Run: TypeAlias = Callable[[JobContext], Awaitable[Completed]]

NOOP = JobKind(name="noop", payload=Noop, lane=Lane.FAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    database: Database
    pool: Pool
    worker: Connection
    worker_id: WorkerId
    equipment: Equipment
    settler: Settler
    messages: Messages
    queue: FakeQueue

    def attempt(self, claim: Claim, run: Run, kind: JobKind = NOOP) -> Attempt:
        return Attempt(claim, Handler(kind=kind, run=run), self.delivery(claim), self.around)

    @property
    def around(self) -> Surroundings:
        return Surroundings(
            equipment=self.equipment,
            settler=self.settler,
            messages=self.messages,
            tracing=Tracing(),
        )

    def delivery(self, claim: Claim) -> Delivery:
        """The message by which the job was claimed."""
        return Delivery(
            queue=self.queue.as_queue(),
            received=a_ringing(claim.job_id),
            message=JobMessage(job_id=claim.job_id),
        )

    def attempts(self, run: Run) -> RunningAttempts:
        handlers = {"noop": Handler(kind=NOOP, run=run)}
        return RunningAttempts(handlers, self.around)

    def unclaimed(self, dead_letters: FakeQueue) -> Unclaimed:
        return Unclaimed(
            self.messages,
            dead_letters.as_queue(),
            {NOOP.name: NOOP},
            self.pool,
            self.equipment.doorbell,
            self.equipment.metrics,
        )

    async def submit(self, submission: Submission | None = None) -> Submission:
        wanted = submission or a_submission()
        await submit_job(self.worker, wanted)
        return wanted

    async def ask(self, submission: Submission) -> ClaimAnswer:
        return await claim_job(self.worker, submission.job_id, self.worker_id)

    async def claim(self, submission: Submission | None = None) -> Claim:
        answer = await self.ask(await self.submit(submission))
        assert answer.claim is not None, answer
        return answer.claim


def needing(*services: str) -> JobKind:
    return replace(NOOP, services=services)


@asynccontextmanager
async def timed(
    opening: AbstractAsyncContextManager[Pool], metrics: WorkerMetrics
) -> AsyncIterator[Pool]:
    async with opening as pool:
        yield pool.timed_by(metrics.query)


@asynccontextmanager
async def a_bench(database: Database, worker: Connection, scratch: Path) -> AsyncIterator[Bench]:
    metrics = WorkerMetrics(job_types=("noop",))
    worker_id = await a_worker(worker)
    nowhere = cast("Objects", None)  # no handler here asks for an object
    queue = FakeQueue()
    async with (
        timed(database.pool("worker"), metrics) as pool,
        Doorbell(pool, {}).open() as doorbell,
        BreakerReports(pool, metrics, Live(), {}).open() as breakers,
        Settler(pool, worker_id, doorbell, metrics).open() as settler,
        Messages({queue.as_queue(): await queue.visibility()}, deletes_linger=0).open() as messages,
    ):
        equipment = Equipment(
            pool=pool,
            originals=nowhere,
            outputs=nowhere,
            renderer=Renderer(),
            room=Room(1, QUARANTINE_MEMORY_BYTES),
            recipes=RECIPES,
            stored_recipes=StoredRecipes(pool),
            doorbell=doorbell,
            breakers=breakers,
            metrics=metrics,
            scratch=scratch,
        )
        yield Bench(
            database=database,
            pool=pool,
            worker=worker,
            worker_id=worker_id,
            equipment=equipment,
            settler=settler,
            messages=messages,
            queue=queue,
        )


async def never(job: JobContext) -> Completed:
    await asyncio.Event().wait()
    return Completed()


async def done(job: JobContext) -> Completed:
    return Completed()


def raising(error: BaseException) -> Run:
    async def run(job: JobContext) -> Completed:
        raise error

    return run
