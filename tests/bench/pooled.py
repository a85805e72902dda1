"""What PgBouncer costs: the same statements directly, unprepared, and by way of it.

In transaction mode, as many sessions behind it as the direct side has connections. What is the
pooler's own is the difference between the unprepared side and that one. One of 1.21 or newer
(TEST_PGBOUNCER names a program) is measured with prepared statements as well.
"""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

from imagefleet.settings.values import Pooler
from imagefleet.store.database import Pool, open_pool
from imagefleet.store.jobs.submissions import submit_jobs
from tests.bench.claiming import CONNECTIONS, ended, until_all_ended
from tests.bench.ground import Ground, submitted
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides
from tests.support.database import Database, Role
from tests.support.factories import a_submission, a_worker
from tests.support.poolers import PREPARES, pgbouncer, version

BATCH: Final = 10
DIRECT: Final = "direct"
UNPREPARED: Final = "unprepared"
POOLED: Final = "pgbouncer"
PREPARED: Final = "pgbouncer, prepared"
SAYS: Final[Mapping[str, Pooler]] = {
    DIRECT: "none",
    UNPREPARED: "pgbouncer",
    POOLED: "pgbouncer",
    PREPARED: "pgbouncer-prepared",
}


@asynccontextmanager
async def reached(database: Database, role: Role, side: str) -> AsyncIterator[Pool]:
    """Connections of this role, as a process has them on that side."""
    async with AsyncExitStack() as stack:
        url = database.url(role)
        if side in {POOLED, PREPARED}:
            running = pgbouncer(database, pool_size=CONNECTIONS, prepares=side == PREPARED)
            url = (await stack.enter_async_context(running)).url(database, role)
        yield await stack.enter_async_context(
            open_pool(
                url,
                process="bench",
                min_size=CONNECTIONS,
                max_size=CONNECTIONS,
                pooler=SAYS[side],
                generic_plans=role == "worker",
            )
        )


async def claims(ground: Ground, jobs: int, side: str) -> Measured:
    async with ground.database() as database:
        ids = await submitted(database, jobs + BATCH * CONNECTIONS)
        async with reached(database, "worker", side) as pool:
            async with pool.connection() as connection:
                end = partial(ended, worker_id=await a_worker(connection))
            await until_all_ended(pool, ids[jobs:], BATCH, end)
            begun = time.perf_counter()
            await until_all_ended(pool, ids[:jobs], BATCH, end)
            return {side: jobs / (time.perf_counter() - begun)}


async def submits(ground: Ground, jobs: int, side: str) -> Measured:
    """One at a time, as requests that nobody shares a commit with."""

    async def submit(connection: object, ids: object) -> int:
        del ids
        return len(await submit_jobs(connection, [a_submission()]))  # type: ignore[arg-type]

    async with ground.database() as database, reached(database, "api", side) as pool:
        places: list[object] = [None] * (jobs + CONNECTIONS)
        await until_all_ended(pool, places[jobs:], 1, submit)  # type: ignore[arg-type]
        begun = time.perf_counter()
        await until_all_ended(pool, places[:jobs], 1, submit)  # type: ignore[arg-type]
        return {side: jobs / (time.perf_counter() - begun)}


@asynccontextmanager
async def sides(ground: Ground, asked: Asked, *, of: str) -> AsyncIterator[Sides]:
    jobs, work = asked.jobs_of(ROWS[of]), {"claims": claims, "submits": submits}[of]
    measured = [side for side in SAYS if side != PREPARED or version() >= PREPARES]
    yield {side: partial(work, ground, jobs, side) for side in measured}


def _row(of: str, about: str, jobs: int) -> Row:
    return Row(
        name=f"pooled-{of}",
        about=f"{about}, directly and by way of PgBouncer, {CONNECTIONS} connections",
        figures=[
            Figure(title=f"{about}, {ours}", unit="jobs/s", ours=ours, other=DIRECT)
            for ours in (PREPARED, POOLED, UNPREPARED)
        ],
        open=partial(sides, of=of),
        jobs=jobs,
    )


ROWS: Final = {
    "claims": _row("claims", f"claim + settle, {BATCH} at a time", 4_000),
    "submits": _row("submits", "submit, one at a time", 2_000),
}
