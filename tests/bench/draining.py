"""Jobs that do nothing, over SQS: how fast one worker gets through a backlog of messages.

Both sides begin alike: every message is in the queue before the worker starts, so that sends count
for neither, and the emulator has as long a queue for both. Timed is from the first job that began
to the last that was over, by the clock of those who ran them.

Celery has the pool that is best for it here: prefork and threads, with 8, 16 and 32 slots each, are
tried with a part of the jobs, and the best three again with all of them. By its documentation short
tasks want messages fetched ahead; so that is tried too. It deletes a message before the task runs,
which is its default and its best: a worker that dies then has lost the task. Ours deletes it after
the end was written to Postgres. Beside them stands the queue alone, received and deleted by tens:
nobody gets beyond that here.
"""

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final
from uuid import uuid4

import boto3  # type: ignore[import-untyped]  # stubs are of the asynchronous one

from imagefleet.jobs.model import Lane
from tests.bench.ground import Ground, submitted, until_over
from tests.bench.images import another, photo, seconds_of
from tests.bench.processes import ended, started, tree_of
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides
from tests.support.emulators import CREDENTIALS, REGION
from tests.support.factories import a_submission

OURS: Final = "imagefleet"
FORTY_SLOTS: Final = "imagefleet, 40 slots a lane"
CELERY: Final = "Celery + SQS"
ALONE: Final = "SQS alone"
RECEIVERS: Final = 4
ONE: Final = "one worker"
TWO: Final = "two workers"
WITHIN: Final = 300.0  # seconds
MICROSECONDS: Final = 1e6  # of a second
POOLS: Final = ("prefork", "threads")
SLOTS: Final = (8, 16, 32)
BEST: Final = 3  # ways that are tried again, with as many messages as are to be drained
AHEAD: Final = (4, 16)  # messages fetched for each slot; 4 is Celery's default
FORTY: Final = {"WORKER_FAST_SLOTS": "40", "WORKER_GENERAL_SLOTS": "40"}
SECONDS: Final = """
SELECT count(*) AS jobs,
       extract(epoch FROM max(attempts.ended_at) - min(attempts.claimed_at))::float8 AS seconds
  FROM attempts WHERE attempts.outcome = 'completed'
"""


@dataclass(frozen=True, slots=True)
class Way:
    """One of Celery's ways to run tasks."""

    pool: str
    slots: int
    prefetch: int

    def __str__(self) -> str:
        return f"{self.pool} {self.slots} x {self.prefetch}"


async def ours(
    ground: Ground, jobs: int, environment: Mapping[str, str], workers: int = 1
) -> tuple[float, float]:
    """Jobs a second of so many workers together, and what they computed for one."""
    async with ground.place() as place:
        ids = await submitted(place.database, jobs)
        await place.ring_all([a_submission(job_id=job_id) for job_id in ids])
        async with AsyncExitStack() as stack:
            async with asyncio.TaskGroup() as group:
                openings = [
                    started(place, "worker", ground.folder, environment) for _ in range(workers)
                ]
                ready = [group.create_task(stack.enter_async_context(each)) for each in openings]
            pids = [pid for each in ready for pid in each.result().tree()]
            before = seconds_of(pids)
            await until_over(place.database, within=WITHIN)
            computed = seconds_of(pids) - before
        async with place.database.connect("owner") as owner:
            row = await owner.fetchrow(SECONDS)
        assert row is not None
        assert row["jobs"] == jobs, f"{row['jobs']} of {jobs} jobs were done once"
        return jobs / float(row["seconds"]), MICROSECONDS * computed / jobs


async def celery(ground: Ground, jobs: int, way: Way) -> tuple[float, float]:
    """The same of one worker of theirs."""
    queue = f"bench-{uuid4().hex}"
    sqs = boto3.client(
        "sqs",
        endpoint_url=ground.emulator.url,
        region_name=REGION,
        aws_access_key_id=CREDENTIALS.key_id,
        aws_secret_access_key=CREDENTIALS.secret,
    )
    made = await asyncio.to_thread(
        sqs.create_queue, QueueName=queue, Attributes={"VisibilityTimeout": "1800"}
    )
    marks = ground.folder / f"{queue}.marks"
    place = ground.emulator.url.removeprefix("http://")
    told = {
        "queue": queue,
        "queue_url": made["QueueUrl"],
        "broker": f"sqs://{CREDENTIALS.key_id}:{CREDENTIALS.secret}@{place}",
        "region": REGION,
        "key_id": CREDENTIALS.key_id,
        "secret": CREDENTIALS.secret,
        "marks": str(marks),
        **asdict(way),
    }
    environment = {"BENCH_CELERY": json.dumps(told)}
    try:
        await ground.peers.ask("celery_tasks", {"jobs": jobs}, **environment)
        return await _celery_drained(ground, jobs, way, marks, environment)
    finally:
        await asyncio.to_thread(sqs.delete_queue, QueueUrl=made["QueueUrl"])


async def _celery_drained(
    ground: Ground, jobs: int, way: Way, marks: Path, environment: dict[str, str]
) -> tuple[float, float]:
    log = marks.with_suffix(".log")
    worker = await ground.peers.start(
        *("-m", "celery", "--app", "celery_tasks", "worker", "--loglevel", "WARNING"),
        *("--pool", way.pool, "--concurrency", str(way.slots)),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        environment=environment,
        log=log,
    )
    try:
        await _until_marked(marks, 1, worker, log)
        pids = tree_of(worker.pid)  # all are there once one has run a task
        before = seconds_of(pids)
        await _until_marked(marks, jobs, worker, log)
        computed = seconds_of(pids) - before
    finally:
        await ended(worker)
    times = _times(marks)
    return jobs / (max(times) - min(times)), MICROSECONDS * computed / jobs


async def _until_marked(
    marks: Path, count: int, worker: asyncio.subprocess.Process, log: Path
) -> None:
    async with asyncio.timeout(WITHIN):
        while len(_times(marks)) < count:
            assert worker.returncode is None, f"Celery ended: {log}"
            await asyncio.sleep(0.01)


def _times(marks: Path) -> Sequence[float]:
    """When each task ran, of those that did."""
    return [ran for (ran,) in struct.iter_unpack("d", marks.read_bytes())]


async def queue_alone(ground: Ground, messages: int) -> Measured:
    """What the queue itself lets through: received and deleted by tens, and nothing done."""
    async with ground.place() as place:
        await place.ring_all([a_submission() for _ in range(messages)])
        queue = await place.queue(Lane.FAST)

        async def drain() -> int:
            done = 0
            while received := await queue.receive(most=10, wait=timedelta()):
                await queue.delete([message.receipt for message in received])
                done += len(received)
            return done

        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(drain()) for _ in range(RECEIVERS)]
        seconds = time.perf_counter() - begun
        done = sum(part.result() for part in parts)
        assert done == messages, f"{done} of {messages} messages came"
        return {ALONE: messages / seconds}


async def best_way(ground: Ground, jobs: int) -> Way:
    """The way in which Celery is fastest here."""
    few = max(100, jobs // 5)
    ways = [Way(*given) for given in product(POOLS, SLOTS, AHEAD)]
    quick = {way: (await celery(ground, few, way))[0] for way in ways}
    best = sorted(ways, key=quick.__getitem__, reverse=True)[:BEST]
    tried = {way: (await celery(ground, jobs, way))[0] for way in best}
    ground.notes.append(
        f"Celery is measured as {max(tried, key=tried.__getitem__)}; "
        f"with {jobs} jobs: {_rates(tried)}; with {few} jobs: {_rates(quick)}."
    )
    return max(tried, key=tried.__getitem__)


def _rates(tried: Mapping[Way, float]) -> str:
    return ", ".join(f"{way}: {rate:.0f}/s" for way, rate in tried.items())


async def rendered(ground: Ground, pictures: int, workers: int) -> float:
    """Pictures a second of so many workers together, each with one child."""
    async with ground.place() as place, AsyncExitStack() as stack:
        content = photo()
        async with place.database.connect("api") as api:
            for _ in range(pictures):
                await place.upload(api, uuid4(), another(content))
        await stack.enter_async_context(started(place, "maintenance", ground.folder))
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                opening = started(place, "worker", ground.folder, {"RENDER_CHILDREN": "1"})
                group.create_task(stack.enter_async_context(opening))
        await until_over(place.database, within=WITHIN)
        async with place.database.connect("owner") as owner:
            row = await owner.fetchrow(SECONDS)
        assert row is not None
        assert row["jobs"] == pictures, f"{row['jobs']} of {pictures} pictures were made"
        return pictures / float(row["seconds"])


@asynccontextmanager
async def sides(ground: Ground, asked: Asked) -> AsyncIterator[Sides]:
    jobs = asked.jobs_of(ROWS["drain"])

    async def with_settings(name: str, environment: Mapping[str, str]) -> Measured:
        rate, computed = await ours(ground, jobs, environment)
        return {name: rate, f"{name}, CPU": computed}

    own: Sides = {
        OURS: partial(with_settings, OURS, {}),
        FORTY_SLOTS: partial(with_settings, FORTY_SLOTS, FORTY),
        ALONE: partial(queue_alone, ground, jobs),
    }
    if not asked.peers:
        yield own
        return
    way = await best_way(ground, jobs)

    async def of_celery() -> Measured:
        rate, computed = await celery(ground, jobs, way)
        return {CELERY: rate, f"{CELERY}, CPU": computed}

    yield {**own, CELERY: of_celery}


@asynccontextmanager
async def sides_of_two(ground: Ground, asked: Asked) -> AsyncIterator[Sides]:
    jobs = asked.jobs_of(ROWS["two-workers"])

    async def so_many(workers: int, name: str) -> Measured:
        return {name: (await ours(ground, jobs, {}, workers))[0]}

    yield {TWO: partial(so_many, 2, TWO), ONE: partial(so_many, 1, ONE)}


@asynccontextmanager
async def sides_of_pictures(ground: Ground, asked: Asked) -> AsyncIterator[Sides]:
    pictures = max(2, asked.jobs_of(ROWS["pictures"]))

    async def so_many(workers: int, name: str) -> Measured:
        return {name: await rendered(ground, pictures, workers)}

    yield {TWO: partial(so_many, 2, TWO), ONE: partial(so_many, 1, ONE)}


_DRAIN: Final = Row(
    name="drain",
    about="a backlog of jobs that do nothing, over SQS, one worker",
    figures=[
        Figure(
            title="no-op jobs over SQS, default settings",
            unit="jobs/s",
            ours=OURS,
            other=CELERY,
            at_least=5,
        ),
        Figure(
            title="no-op jobs over SQS, 40 slots a lane",
            unit="jobs/s",
            ours=FORTY_SLOTS,
            other=CELERY,
            at_least=6,
        ),
        Figure(
            title="no-op jobs over SQS, 40 slots a lane",
            unit="jobs/s",
            ours=FORTY_SLOTS,
            other=ALONE,
        ),
        Figure(
            title="CPU of the worker a no-op job, default settings",
            unit="us",
            ours=f"{OURS}, CPU",
            other=f"{CELERY}, CPU",
        ),
    ],
    open=sides,
    jobs=3_000,
)
_TWO: Final = Row(
    name="two-workers",
    about="the same backlog, two workers beside one",
    figures=[
        Figure(
            title="no-op jobs over SQS, two workers",
            unit="jobs/s",
            ours=TWO,
            other=ONE,
            at_least=1.7,
        ),
    ],
    open=sides_of_two,
    jobs=3_000,
)
_PICTURES: Final = Row(
    name="pictures",
    about="12-megapixel JPEGs, two workers of one child each beside one",
    figures=[
        Figure(
            title="12-megapixel JPEGs, two workers of one child",
            unit="pictures/s",
            ours=TWO,
            other=ONE,
            at_least=2 / 1.15,
        ),
    ],
    open=sides_of_pictures,
    jobs=40,
)
ROWS: Final = {row.name: row for row in (_DRAIN, _TWO, _PICTURES)}
