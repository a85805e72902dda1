"""Pages that a claim and its settle look at, in a table of ten thousand jobs and of many more.

What was done stays for a month: a job must not cost more because of those that are over. Counted
are pages of all statements of the worker's role, by Postgres itself, with the plans of a worker.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

from tests.bench.claiming import ended, of_a_worker
from tests.bench.counting import calls_of, count_calls
from tests.bench.ground import Ground, submitted
from tests.bench.rounds import Asked, Figure, Measure, Measured, Row, Sides
from tests.support.database import Database, driver_of
from tests.support.factories import a_worker

BATCH: Final = 10
FEW: Final = 10_000
MANY: Final = 1_000_000
VERY_MANY: Final = 10_000_000
FILLED_WITHIN: Final = 3_600.0  # seconds
# Over for up to four weeks, half of them about an image; with triggers off, as nobody counts them.
FILL: Final = """
SET LOCAL session_replication_role = replica;
INSERT INTO jobs (id, tenant_id, type, state, lane, target, target_seq, claim_no, attempts,
                  correlation_id, created_by, created_at, run_at, claimed_at, finished_at,
                  updated_at, result_reason, payload)
SELECT (lpad(to_hex((extract(epoch FROM made.at) * 1000)::bigint), 12, '0') || '7'
        || substr(md5(made.n::text), 1, 3) || '8' || substr(md5(made.n::text), 4, 15))::uuid,
       'acme', 'process_image', 'completed', 'general',
       CASE WHEN made.n % 2 = 0 THEN 'image:' || made.n END,
       CASE WHEN made.n % 2 = 0 THEN 1 END, 1, 1, 'request-' || made.n, 'bench', made.at, made.at,
       made.at, made.at, made.at, 'done', '{{}}'
  FROM (SELECT numbers.n, now() - interval '28 days' * (numbers.n::float8 / {rows}) AS at
          FROM generate_series(1, {rows}) AS numbers (n)) AS made;
INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, ended_at,
                      duration, queue_time, charged, outcome, why)
SELECT jobs.id, 1, 'acme', jobs.type, jobs.lane, gen_random_uuid(), jobs.created_at,
       jobs.created_at, '1 s', '1 s', true, 'completed', 'done'
  FROM jobs;
"""
INDEXES: Final = """
SELECT indexrelid::regclass::text AS name, pg_get_indexdef(indexrelid) AS definition
  FROM pg_index
 WHERE indrelid IN ('jobs'::regclass, 'attempts'::regclass)
   AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
"""


async def fill(database: Database, rows: int) -> None:
    """Rows first and indexes after, which takes a fraction of the time."""
    async with database.connect("superuser") as superuser:
        driver = driver_of(superuser)
        await driver.execute("SET statement_timeout = 0; SET maintenance_work_mem = '512MB'")
        indexes = await driver.fetch(INDEXES)
        async with superuser.transaction():
            for index in indexes:
                await driver.execute(f"DROP INDEX {index['name']}")
            await driver.execute(FILL.format(rows=rows), timeout=FILLED_WITHIN)
            for index in indexes:
                await driver.execute(index["definition"], timeout=FILLED_WITHIN)
        await driver.execute("VACUUM ANALYZE", timeout=FILLED_WITHIN)


async def pages(database: Database, rows: int, jobs: int) -> Measured:
    """A job's share of all pages that were looked at; the connection is warm."""
    ids = await submitted(database, jobs + BATCH)
    async with of_a_worker(database) as pool, pool.connection() as worker:
        worker_id = await a_worker(worker)
        await ended(worker, ids[:BATCH], worker_id=worker_id)
        before = await calls_of(database.server, "worker", database.name)
        for at in range(BATCH, len(ids), BATCH):
            await ended(worker, ids[at : at + BATCH], worker_id=worker_id)
        calls = (await calls_of(database.server, "worker", database.name)).since(before)
    return {f"{rows:,} rows": calls.buffers / jobs}


@asynccontextmanager
async def sides(ground: Ground, asked: Asked) -> AsyncIterator[Sides]:
    jobs = max(BATCH, asked.jobs_of(ROW))
    sizes = [FEW, 10 * FEW if asked.quick else MANY, *([VERY_MANY] if asked.long else [])]
    async with AsyncExitStack() as stack:
        made: dict[str, Measure] = {}
        for rows in sizes:
            database = await stack.enter_async_context(ground.database())
            await fill(database, rows)
            await count_calls(database)
            made[f"{rows:,} rows"] = partial(pages, database, rows, jobs)
        yield made


ROW: Final = Row(
    name="buffers",
    about="pages that claim and settle of a job look at, by the size of the table",
    figures=[
        Figure(
            title=f"pages a job, claim + settle, {rows:,} rows",
            unit="",
            ours=f"{rows:,} rows",
            other=f"{FEW:,} rows",
            at_most=1.2,
        )
        for rows in (10 * FEW, MANY, VERY_MANY)
    ],
    open=sides,
    jobs=1_000,
)
