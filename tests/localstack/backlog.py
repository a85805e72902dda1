"""A backlog that was submitted while no worker was there, and how fast it is drained."""

import asyncio
import time
from typing import Final

import asyncpg

from tests.localstack.fleet import WORKERS, Fleet
from tests.localstack.redriving import depth, emptied
from tests.support.eventually import eventually

CLIENTS: Final = 4
LANES: Final = ("fast", "general", "quarantine")
ENOUGH: Final = 1000  # jobs; of fewer the idle polls are too large a part
SENT_WITHIN: Final = 120.0  # seconds
DRAINED_WITHIN: Final = 900.0
MOST_REQUESTS: Final = 0.45  # to SQS, for a job from sending to deleting

MOST_AHEAD: Final = 100  # messages while nobody listens; the others wait in Postgres
RINGS: Final = "SELECT count(*) FROM rings"
# By the database's clock, from the first claim to the last end.
MEASURE: Final = """
SELECT count(*) AS jobs, count(DISTINCT worker_id) AS workers, max(claim_no) AS claims,
       extract(epoch FROM max(ended_at) - min(claimed_at))::float8 AS seconds
  FROM attempts
 WHERE job_id = ANY ($1::uuid[]) AND outcome = 'completed'
"""


async def drained(fleet: Fleet, *, jobs: int) -> str:
    """Every job once, and nothing left in the queues; the figures."""
    for worker in WORKERS:
        await fleet.stop(worker)
    before = await fleet.sqs_requests()
    begun = time.monotonic()
    ids = await submitted(fleet, jobs)
    accepting = time.monotonic() - begun
    await waiting(fleet, jobs)

    for worker in WORKERS:
        fleet.start(worker)
    await fleet.ready()
    await fleet.nothing_open(within=DRAINED_WITHIN)
    await emptied(fleet, *LANES)
    requests = await fleet.sqs_requests() - before
    each = requests.total() / jobs

    measured = await measure(fleet, ids)
    assert measured["jobs"] == jobs, f"{measured['jobs']} of {jobs} completed"
    assert measured["workers"] == len(WORKERS), "one worker did it all"
    assert measured["claims"] == 1, f"a job was claimed {measured['claims']} times"
    assert jobs < ENOUGH or each <= MOST_REQUESTS, f"{each:.2f} requests a job: {dict(requests)}"
    return (
        f"accepted at {jobs / accepting:.0f} jobs/s, drained at "
        f"{jobs / measured['seconds']:.0f}; {each:.2f} SQS requests a job"
    )


async def submitted(fleet: Fleet, jobs: int) -> list[str]:
    """By some clients at once; their ids."""
    shares = [jobs // CLIENTS + (number < jobs % CLIENTS) for number in range(CLIENTS)]

    async def client(share: int) -> list[str]:
        async with fleet.producer() as producer:
            return await producer.submit_many(share)

    async with asyncio.TaskGroup() as group:
        clients = [group.create_task(client(share)) for share in shares]
    return [job for client in clients for job in client.result()]


async def waiting(fleet: Fleet, jobs: int) -> None:
    """Every job has its ring, and SQS a few messages: nobody listens yet."""

    async def all_there() -> bool:
        there = await asyncio.to_thread(depth, fleet, *LANES)
        rings = await fleet.ask(RINGS)
        assert rings >= jobs, f"{rings} rings of {jobs} jobs"
        assert 0 < there <= MOST_AHEAD, f"{there} messages of {jobs} jobs"
        return True

    await eventually(all_there, within=SENT_WITHIN)


async def measure(fleet: Fleet, ids: list[str]) -> asyncpg.Record:
    connection = await asyncpg.connect(fleet.facts.database_urls["owner"])
    try:
        row = await connection.fetchrow(MEASURE, ids)
    finally:
        await connection.close()
    assert row is not None
    return row
