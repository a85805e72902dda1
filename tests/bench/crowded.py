"""Pages that a submit and a sample look at, where half a million jobs are open, and where few are.

A backlog is what a queue is for, so neither the door nor the gauges may get slower with it. Counted
are pages of all that the role says meanwhile, by Postgres itself.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import uuid4

from imagefleet.jobs.model import Lane
from imagefleet.maintenance.sampler import Sampler
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.bench import posting
from tests.bench.counting import calls_of, count_calls
from tests.bench.ground import Ground
from tests.bench.processes import TENANT, started, unlimited_key
from tests.bench.rounds import Asked, Figure, Measure, Measured, Row, Sides
from tests.support.database import Database, driver_of
from tests.support.fleet import Place
from tests.support.queues import FakeQueue

FEW: Final = 1_000
MANY: Final = 500_000
FILLED_WITHIN: Final = 1_800.0  # seconds
# As accepted long ago, each waiting for tomorrow.
JOBS: Final = f"""
INSERT INTO jobs (id, tenant_id, type, lane, run_at, correlation_id, created_by)
SELECT gen_random_uuid(), '{TENANT}', 'noop', 'general', now() + interval '1 day', 'bench', 'bench'
  FROM generate_series(1, $1::bigint)
"""  # noqa: S608 - a name of ours
RINGS: Final = """
INSERT INTO rings (job_id, lane, tenant_id, type, priority, next_at)
SELECT jobs.id, jobs.lane, jobs.tenant_id, jobs.type, jobs.priority, jobs.run_at FROM jobs
"""


async def fill(database: Database, jobs: int) -> None:
    async with database.connect("superuser") as superuser:
        driver = driver_of(superuser)
        await driver.execute("SET statement_timeout = 0")
        await driver.execute(JOBS, jobs, timeout=FILLED_WITHIN)
        await driver.execute(RINGS, timeout=FILLED_WITHIN)
        await driver.execute("VACUUM ANALYZE", timeout=FILLED_WITHIN)


async def pages(ground: Ground, place: Place, key: str, jobs: int, requests: int) -> Measured:
    """Of a submit, at load, and of a sample that is not the first."""
    database = place.database
    async with started(place, "api", ground.folder) as api:
        port = int(api.url.rpartition(":")[2])
        await posting.asked(posting.ONE, port, key, posting.CONNECTIONS)
        before = await calls_of(database.server, "api", database.name)
        await posting.asked(posting.ONE, port, key, requests)
        submits = (await calls_of(database.server, "api", database.name)).since(before)
    async with database.pool("maintenance") as pool:
        queues = {Lane.FAST: FakeQueue().as_queue()}
        metrics = MaintenanceMetrics(job_types=("noop",))
        sampler = Sampler(pool, queues, uuid4(), metrics, interval=timedelta(0), within=60)
        await sampler.run_once()
        before = await calls_of(database.server, "maintenance", database.name)
        assert (await sampler.run_once()).sampled
        sample = (await calls_of(database.server, "maintenance", database.name)).since(before)
        await sampler.resign()  # the next round has another
    return {
        f"submit, {jobs:,} open": submits.buffers / requests,
        f"sample, {jobs:,} open": float(sample.buffers),
    }


@asynccontextmanager
async def sides(ground: Ground, asked: Asked) -> AsyncIterator[Sides]:
    made: dict[str, Measure] = {}
    async with AsyncExitStack() as stack:
        for jobs in (FEW // 10, MANY // 10) if asked.quick else (FEW, MANY):
            place = await stack.enter_async_context(ground.place())
            key = await unlimited_key(place.database)
            await fill(place.database, jobs)
            await count_calls(place.database)
            requests = max(1, asked.jobs_of(ROW))
            made[f"{jobs:,} open"] = partial(pages, ground, place, key, jobs, requests)
        yield made


ROW: Final = Row(
    name="crowded",
    about="pages that a submit and a sample look at, among half a million open jobs",
    figures=[
        Figure(
            title=f"{what}, {many:,} open jobs",
            unit="",
            ours=f"{name}, {many:,} open",
            other=f"{name}, {few:,} open",
        )
        for few, many in ((FEW, MANY), (FEW // 10, MANY // 10))
        for name, what in (("submit", "pages a POST /v1/jobs"), ("sample", "pages a sample"))
    ],
    open=sides,
    jobs=1_000,
)
