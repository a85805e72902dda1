"""From a submit to its claim, where nothing else is to be done, beside SQS's own delivery.

The API writes the job down and rings, a worker waits in a long poll, hears it and claims: what this
takes beyond a message's way through the same emulator is ours. By Postgres' clock on both ends; the
message's by that of one process, which waits in a long poll before it sends. The emulator looks
every tenth of a second whether something came for a poll that waits. So both sides spread what they
send evenly over such a tenth, and averages are compared. Between two jobs the fleet comes to rest:
faster ones would wait for the dispatcher's next look, as the API rings only so many by itself.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Final

import aiohttp

from imagefleet.aws.queue import Message, Queue
from imagefleet.jobs.model import Lane
from tests.bench.ground import Ground, until_over
from tests.bench.posting import JOB
from tests.bench.processes import started, unlimited_key
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides

REST: Final = 0.6  # seconds: a dispatcher that finds nothing looks twice a second
WAITING: Final = 0.1  # seconds until a receive waits
TICK: Final = 0.1  # seconds between two looks of the emulator
OURS: Final = "imagefleet"
DELIVERY: Final = "the emulator's delivery"
WAITED: Final = """
SELECT 1000 * extract(epoch FROM jobs.claimed_at - jobs.created_at)::float8 AS ms FROM jobs
"""


def _told(name: str, waits: list[float]) -> Measured:
    return {name: statistics.mean(waits), f"{name}, p95": statistics.quantiles(waits, n=20)[-1]}


async def ours(ground: Ground, jobs: int) -> Measured:
    """Milliseconds from a job's row to its claim."""
    async with ground.place() as place:
        key = await unlimited_key(place.database)
        async with (
            started(place, "maintenance", ground.folder),
            started(place, "api", ground.folder) as api,
            started(place, "worker", ground.folder),
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http,
        ):
            for number in range(jobs + 1):
                await asyncio.sleep(REST + TICK * number / jobs)
                async with http.post(f"{api.url}/v1/jobs", json=JOB) as answer:
                    assert answer.status == 202, await answer.text()
            await until_over(place.database)
        async with place.database.connect("owner") as owner:
            rows = await owner.fetch(WAITED + "ORDER BY jobs.created_at OFFSET 1")  # a cold one
        assert len(rows) == jobs
        return _told(OURS, [row["ms"] for row in rows])


async def delivery(ground: Ground, messages: int) -> Measured:
    """Milliseconds from the beginning of a send to the answer of the receive that waited for it."""
    async with ground.place() as place:
        queue = await place.queue(Lane.FAST)
        await _delivered(queue, 0)
        return _told(
            DELIVERY, [await _delivered(queue, number / messages) for number in range(messages)]
        )


async def _delivered(queue: Queue, phase: float) -> float:
    async with asyncio.TaskGroup() as group:
        receiving = group.create_task(queue.receive(most=10, wait=timedelta(seconds=20)))
        await asyncio.sleep(WAITING + TICK * phase)
        begun = time.perf_counter()
        sent = group.create_task(queue.send([Message(body="{}", group="bench")]))
        (received,) = await receiving
        waited = time.perf_counter() - begun
        await sent
    await queue.delete([received.receipt])
    return 1000 * waited


@asynccontextmanager
async def sides(ground: Ground, asked: Asked) -> AsyncIterator[Sides]:
    jobs = max(2, asked.jobs_of(ROW))
    yield {OURS: partial(ours, ground, jobs), DELIVERY: partial(delivery, ground, jobs)}


ROW: Final = Row(
    name="pickup",
    about="idle: from a submit to its claim, beyond the emulator's own delivery",
    figures=[
        Figure(
            title="idle submit to claimed, average",
            unit="ms",
            ours=OURS,
            other=DELIVERY,
            compare="difference",
            at_most=9,
        ),
        Figure(
            title="idle submit to claimed, p95",
            unit="ms",
            ours=f"{OURS}, p95",
            other=f"{DELIVERY}, p95",
            compare="difference",
        ),
    ],
    open=sides,
    jobs=30,
)
