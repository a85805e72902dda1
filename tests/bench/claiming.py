"""Claim and settle, in the database alone: what the statements of a job cost, and how many go.

Every side has as many connections, each of which takes a batch and writes down its end, again and
again until nothing is left. The others do less: pgqueuer deletes the row and asks for its id alone,
procrastinate takes one job at a time and calls it done by its id, bare SQL is two statements. Ours
locks, judges and fences each job, and writes its row of `attempts` and what the ledger counts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, TypeAlias

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, WorkerId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection, Pool, open_pool
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.settling import Settled, Settlement, settle_jobs
from tests.bench import bare_sql
from tests.bench.ground import Ground, submitted
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides
from tests.support.database import Database, Role
from tests.support.factories import ALL_LANES, TYPES, a_worker

CONNECTIONS: Final = 4
OURS: Final = "imagefleet"
BARE: Final = "bare SQL"
End: TypeAlias = Callable[[Connection, Sequence[JobId]], Awaitable[int]]
"""Claims a batch and settles it; how many those were."""


async def ended(connection: Connection, ids: Sequence[JobId], *, worker_id: WorkerId) -> int:
    """Claim these and settle what was claimed; how many were."""
    answers = await claim_jobs(connection, ids, worker_id=worker_id, lanes=ALL_LANES, types=TYPES)
    settlements = [
        Settlement.of(answer.claim, Completed(), RetryPolicy())
        for answer in answers
        if answer.claim is not None
    ]
    report = await settle_jobs(connection, worker_id, settlements)
    return sum(receipt.settled is Settled.WRITTEN for receipt in report.receipts)


def of_a_worker(
    database: Database, connections: int = 1, *, role: Role = "worker"
) -> AbstractAsyncContextManager[Pool]:
    """Connections as a worker opens them: its statements are planned once."""
    return open_pool(
        database.url(role),
        process="bench-worker",
        min_size=connections,
        max_size=connections,
        generic_plans=True,
    )


async def until_all_ended(
    pool: Pool, ids: Sequence[JobId], batch: int, end: End, *, connections: int = CONNECTIONS
) -> None:
    """A batch after another, on each connection one at a time."""
    batches = iter([ids[at : at + batch] for at in range(0, len(ids), batch)])

    async def drain() -> int:
        async with pool.connection() as connection:
            return sum([await end(connection, some) for some in batches])

    async with asyncio.TaskGroup() as group:
        parts = [group.create_task(drain()) for _ in range(connections)]
    done = sum(part.result() for part in parts)
    assert done == len(ids), f"{done} of {len(ids)} jobs were ended"


async def ours(database: Database, jobs: int, *, batch: int) -> Measured:
    """Jobs a second, every connection warm."""
    ids = await submitted(database, jobs + batch * CONNECTIONS)
    async with of_a_worker(database, CONNECTIONS) as pool:
        async with pool.connection() as connection:
            end = partial(ended, worker_id=await a_worker(connection))
        await until_all_ended(pool, ids[jobs:], batch, end)
        begun = time.perf_counter()
        await until_all_ended(pool, ids[:jobs], batch, end)
        return {OURS: jobs / (time.perf_counter() - begun)}


@asynccontextmanager
async def sides(ground: Ground, asked: Asked, *, batch: int) -> AsyncIterator[Sides]:
    row = ROWS[batch]
    jobs = asked.jobs_of(row)

    async def measured_ours() -> Measured:
        async with ground.database() as database:
            return await ours(database, jobs, batch=batch)

    async def bare() -> Measured:
        async with ground.database() as database:
            return {
                BARE: await bare_sql.claimed_and_settled(
                    database, jobs, batch=batch, connections=CONNECTIONS
                )
            }

    async def of_peers(program: str) -> Measured:
        async with ground.database() as database:
            wanted = {
                "dsn": database.url("superuser"),
                "jobs": jobs,
                "batch": batch,
                "connections": CONNECTIONS,
            }
            answer = await ground.peers.ask(f"{program}_claims", wanted)
            return {program: jobs / answer["seconds"]}

    theirs: Sides = {name: partial(of_peers, name) for name in ("pgqueuer", "procrastinate")}
    yield {OURS: measured_ours, BARE: bare, **(theirs if asked.peers else {})}


def _row(batch: int, jobs: int, goals: dict[str, float]) -> Row:
    return Row(
        name=f"claims-{batch}",
        about=f"claim and settle in the database, {batch} at a time, {CONNECTIONS} connections",
        figures=[
            Figure(
                title=f"claim + settle, batch {batch}",
                unit="jobs/s",
                ours=OURS,
                other=other,
                at_least=goals.get(other),
            )
            for other in ("pgqueuer", "procrastinate", BARE)
        ],
        open=partial(sides, batch=batch),
        jobs=jobs,
    )


ROWS: Final = {
    10: _row(10, 20_000, {"pgqueuer": 1.0, BARE: 0.6}),
    1: _row(1, 5_000, {BARE: 0.6}),
}
