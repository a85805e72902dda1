"""Real workers, Postgres and SQS: the same course, with every duration divided by one factor."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg
import boto3  # type: ignore[import-untyped]  # stubs are of the asynchronous one

from imagefleet.aws.session import open_session
from imagefleet.embedded.bootstrap import Endpoints, apply
from imagefleet.jobs.model import Lane
from imagefleet.store.database import Connection
from imagefleet.store.jobs.submissions import submit_jobs
from tests.scaling.autoscaler import Values
from tests.scaling.course import Load
from tests.scaling.manifests import POSTGRES, Scaled, Trigger
from tests.support.aws import a_name, settings_for
from tests.support.database import copied_database, migrated_template, own_server
from tests.support.emulators import CREDENTIALS, REGION, Emulator, running_ministack
from tests.support.eventually import eventually
from tests.support.factories import a_submission
from tests.support.fleet import Place, running

AT_ONCE: Final = 500  # jobs submitted in one statement
VISIBLE: Final = "ApproximateNumberOfMessages"
STARTS_WITHIN: Final = 120.0  # seconds; twenty do so at once, on two cores
ENDS_WITHIN: Final = 60.0
IN_FLIGHT: Final = "ApproximateNumberOfMessagesNotVisible"
HELD: Final = """
SELECT count(*)
  FROM jobs
  JOIN workers ON workers.id = jobs.locked_by AND workers.pid = $1
 WHERE jobs.state = 'processing'
"""
# In one attempt each, whatever became of the workers.
ENDS: Final = """
SELECT count(*) AS jobs, count(*) FILTER (WHERE jobs.state = 'completed') AS completed,
       count(*) FILTER (WHERE jobs.attempts > 1) AS charged_more
  FROM jobs
"""
OUTCOMES: Final = """
SELECT attempts.outcome || CASE WHEN attempts.charged THEN '' ELSE ', not charged' END AS outcome,
       count(*) AS attempts
  FROM attempts GROUP BY 1 ORDER BY 1
"""


@dataclass(slots=True, kw_only=True)
class Worker:
    """One process, from its start to its end."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    held: int = 0
    """Jobs that it ran when it was told to go."""
    ready: bool = False
    code: int | None = None


@dataclass(slots=True, kw_only=True)
class Machine:
    """This one, as a cluster in which a second is worth `factor` of them."""

    place: Place
    scaled: Scaled
    others: Sequence[Scaled]
    load: Load
    factor: float
    scaler: asyncpg.Connection
    owner: asyncpg.Pool
    api: Connection
    group: asyncio.TaskGroup
    sqs: Any
    workers: list[Worker] = field(default_factory=list)
    gone: list[Worker] = field(default_factory=list)
    submitted: int = 0
    strange: set[str] = field(default_factory=set)
    """Triggers of other lanes that saw work."""
    begun: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        return (time.monotonic() - self.begun) * self.factor

    async def rest(self, until: float) -> None:
        await asyncio.sleep(max(0.0, until - self.now()) / self.factor)

    async def ask(self) -> Values:
        for scaled in self.others:
            for trigger in scaled.triggers:
                if await self._ask(trigger) > trigger.activation:
                    self.strange.add(trigger.asks)
        return [await self._ask(trigger) for trigger in self.scaled.triggers]

    async def _ask(self, trigger: Trigger) -> float:
        """As KEDA does: the very query, under that role; of SQS the attributes."""
        if trigger.kind == POSTGRES:
            return float(await self.scaler.fetchval(trigger.asks))
        url = self.place.applied.environment()[trigger.asks]
        names = [VISIBLE, *([IN_FLIGHT] if trigger.in_flight else [])]
        answer = await asyncio.to_thread(
            self.sqs.get_queue_attributes, QueueUrl=url, AttributeNames=names
        )
        return float(sum(int(answer["Attributes"][name]) for name in names))

    async def scale(self, replicas: int) -> None:
        while len(self.workers) > replicas:
            worker = self.workers.pop()  # the newest first, as a ReplicaSet does
            self.gone.append(worker)
            worker.go.set()
        while len(self.workers) < replicas:
            self.workers.append(worker := Worker())
            self.group.create_task(self._live(worker))

    async def _live(self, worker: Worker) -> None:
        told = self.environment
        async with running(self.place, "worker", environment=told, started=False) as run:
            await run.tells("worker.started", within=STARTS_WITHIN)
            worker.ready = True
            await worker.go.wait()
            worker.held = await self.owner.fetchval(HELD, run.process.pid)
            worker.ready = False
            worker.code = await run.drains()

    @property
    def alive(self) -> int:
        """Workers that take something new."""
        return sum(worker.ready for worker in self.workers)

    @property
    def environment(self) -> Mapping[str, str]:
        """What the manifest tells a worker; secrets and addresses are those of this place."""
        told = {
            name: value
            for name, value in self.scaled.environment.items()
            if not name.endswith("_FILE")
        }
        grace = float(told["SHUTDOWN_GRACE_PERIOD_SECONDS"]) / self.factor
        return {**told, "SHUTDOWN_GRACE_PERIOD_SECONDS": f"{grace:g}"}

    async def submit(self, jobs: int) -> None:
        payload = {"milliseconds": round(1000 * self.load.seconds / self.factor)}
        for start in range(0, jobs, AT_ONCE):
            wanted = [
                a_submission(lane=Lane(self.scaled.lane), payload=payload)
                for _ in range(min(AT_ONCE, jobs - start))
            ]
            await submit_jobs(self.api, wanted)
        self.submitted += jobs

    async def settle(self) -> None:
        """Wait until every worker that was told to go has ended."""

        def all_ended() -> bool:
            return all(worker.code is not None for worker in self.gone)

        await eventually(all_ended, within=ENDS_WITHIN)

    async def faults(self) -> list[str]:
        """What was lost or charged, by which end of a worker."""
        ends = await self.owner.fetchrow(ENDS)
        assert ends is not None
        faults = [f"{what} has work of another lane" for what in sorted(self.strange)]
        if (lost := self.submitted - ends["completed"]) != 0:
            faults.append(f"{lost} of {self.submitted} jobs were not completed")
        if ends["charged_more"]:
            faults.append(f"{ends['charged_more']} jobs were charged more than one attempt")
        codes = Counter(worker.code for worker in self.gone if worker.code != 0)
        faults += [f"{count} workers ended with {code}" for code, count in codes.items()]
        if not any(worker.held for worker in self.gone):
            faults.append("no worker was told to go while it ran a job: this shows nothing")
        return faults

    async def outcomes(self) -> dict[str, int]:
        """How attempts ended."""
        return {row["outcome"]: row["attempts"] for row in await self.owner.fetch(OUTCOMES)}


@asynccontextmanager
async def machine(
    scaled: Scaled, others: Sequence[Scaled], load: Load, *, factor: float
) -> AsyncIterator[Machine]:
    """Servers, maintenance, and no worker yet; whatever still runs is killed in the end."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(own_server())
        url = stack.enter_context(running_ministack())
        applied = await apply(
            Endpoints(sqs=url, s3=url, cloudfront=None),
            region=REGION,
            credentials=CREDENTIALS,
            prefix=a_name("scaling"),
        )
        template = await stack.enter_async_context(migrated_template(server))
        database = await stack.enter_async_context(copied_database(server, template))
        settings = settings_for(url, applied)
        session = await stack.enter_async_context(open_session(settings, credentials=CREDENTIALS))
        place = Place(
            database=database,
            emulator=Emulator("ministack", url),
            applied=applied,
            settings=settings,
            session=session,
        )
        await stack.enter_async_context(running(place, "maintenance"))
        scaler = await asyncpg.connect(database.url("scaler"))
        stack.push_async_callback(scaler.close)
        owner = await stack.enter_async_context(asyncpg.create_pool(database.url("owner")))
        made = Machine(
            place=place,
            scaled=scaled,
            others=others,
            load=load,
            factor=factor,
            scaler=scaler,
            owner=owner,
            api=await stack.enter_async_context(database.connect("api")),
            group=await stack.enter_async_context(asyncio.TaskGroup()),
            sqs=boto3.client(
                "sqs",
                endpoint_url=url,
                region_name=REGION,
                aws_access_key_id=CREDENTIALS.key_id,
                aws_secret_access_key=CREDENTIALS.secret,
            ),
        )
        try:
            yield made
        finally:
            await made.scale(0)
