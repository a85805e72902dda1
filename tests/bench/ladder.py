"""What each promise of a claim and a settle costs: from bare SQL to ours, one more on each side.

Told is what Postgres' processes computed for a batch, by /proc: on two cores, which clients take as
well, a time of the clock says little. Every side has its statements planned once, as a worker has,
and all but the first go over the product's own tables; whom they claim is told by ids, as messages
do. The last but one settles by our own statement: that is the fence, and what those below write.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Final

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, WorkerId, new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.endings import complete_jobs
from tests.bench import bare_sql
from tests.bench.claiming import (
    BARE,
    CONNECTIONS,
    OURS,
    ended,
    of_a_worker,
    until_all_ended,
)
from tests.bench.ground import Ground, submitted
from tests.bench.images import seconds_of
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides
from tests.support.database import Database, Role
from tests.support.factories import ALL_LANES, TYPES, a_worker

BATCH: Final = 10
NOTHING: Final = "imagefleet, nothing to do"
# Triggers and foreign keys do not fire, and so nothing is counted and no move is judged.
WITHOUT_TRIGGERS: Final = "ALTER DATABASE {name} SET session_replication_role = replica"
BACKENDS: Final = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE '%bench-worker%'
"""
_CLAIMED: Final = """
   SET state = 'processing', claim_no = jobs.claim_no + 1, claim_charged = true,
       attempts = jobs.attempts + 1, locked_by = $2, locked_at = now(), claimed_at = now(),
       updated_at = now()
"""
SETTLE: Final = """
UPDATE jobs
   SET state = 'completed', result_reason = 'done', finished_at = now(), locked_by = NULL,
       locked_at = NULL, updated_at = now()
 WHERE jobs.id = ANY ($1::uuid[])
"""
CLAIM: Final = f"""
UPDATE jobs {_CLAIMED}
 WHERE jobs.id = ANY ($1::uuid[]) AND jobs.finished_at IS NULL
RETURNING jobs.id, jobs.claim_no, jobs.payload
"""
CLAIM_AND_UNRING: Final = f"""
WITH rung AS (DELETE FROM rings WHERE rings.job_id = ANY ($1::uuid[]))
{CLAIM}
"""  # noqa: S608 - of constants
SETTLE_AND_RECORD: Final = f"""
WITH written AS (
    {SETTLE}
    RETURNING jobs.*
)
INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, duration,
                      queue_time, charged, outcome, why)
SELECT written.id, written.claim_no, written.tenant_id, written.type, written.lane, $2,
       written.claimed_at, now() - written.claimed_at,
       greatest(written.claimed_at - written.run_at, interval '0'), written.claim_charged,
       'completed', 'done'
  FROM written
"""  # noqa: S608 - of constants
# By a living worker, of rows that are as they were seen, and jobs before rings, each in order.
CLAIM_FENCED: Final = f"""
WITH me AS MATERIALIZED (
    SELECT workers.id FROM workers WHERE workers.id = $2 AND workers.dead_at IS NULL FOR KEY SHARE
),
seen AS MATERIALIZED (
    SELECT jobs.id, jobs.state, jobs.claim_no FROM jobs
     WHERE jobs.id = ANY ($1::uuid[]) AND jobs.finished_at IS NULL AND EXISTS (SELECT FROM me)
),
job AS MATERIALIZED (
    SELECT jobs.id FROM jobs JOIN seen ON seen.id = jobs.id
     WHERE jobs.state = seen.state AND jobs.claim_no = seen.claim_no
     ORDER BY jobs.id
       FOR UPDATE OF jobs SKIP LOCKED
),
bell AS MATERIALIZED (
    SELECT rings.job_id FROM rings
     WHERE rings.job_id = ANY (ARRAY (SELECT job.id FROM job))
     ORDER BY rings.job_id
       FOR UPDATE
),
rung AS (
    DELETE FROM rings USING bell
     WHERE rings.job_id = ANY (ARRAY (SELECT bell.job_id FROM bell))
       AND rings.job_id = bell.job_id
)
UPDATE jobs {_CLAIMED}
  FROM job
 WHERE jobs.id = job.id
RETURNING jobs.id, jobs.claim_no, jobs.payload
"""  # noqa: S608 - of constants


async def bare(connection: Connection, ids: Sequence[JobId], *, worker_id: WorkerId) -> int:
    """As many as were asked for, whichever."""
    rows = await connection.fetch(bare_sql.CLAIM, len(ids), worker_id)
    await connection.fetch(bare_sql.SETTLE, [row["id"] for row in rows])
    return len(rows)


async def in_the_table(connection: Connection, ids: Sequence[JobId], *, worker_id: WorkerId) -> int:
    """The row of the job alone."""
    rows = await connection.fetch(CLAIM, ids, worker_id)
    await connection.fetch(SETTLE, [row["id"] for row in rows])
    return len(rows)


async def with_rows(connection: Connection, ids: Sequence[JobId], *, worker_id: WorkerId) -> int:
    """And what else is kept of it."""
    rows = await connection.fetch(CLAIM_AND_UNRING, ids, worker_id)
    await connection.fetch(SETTLE_AND_RECORD, [row["id"] for row in rows], worker_id)
    return len(rows)


async def fenced(connection: Connection, ids: Sequence[JobId], *, worker_id: WorkerId) -> int:
    """And nobody else's meanwhile."""
    rows = await connection.fetch(CLAIM_FENCED, ids, worker_id)
    outcomes = {(row["id"], row["claim_no"]): Completed() for row in rows}
    return len(await complete_jobs(connection, worker_id, outcomes))


async def nothing(connection: Connection, ids: Sequence[JobId], *, worker_id: WorkerId) -> int:
    """Our two statements, about jobs that there are not."""
    unknown = [new_job_id() for _ in ids]
    await claim_jobs(connection, unknown, worker_id=worker_id, lanes=ALL_LANES, types=TYPES)
    await complete_jobs(connection, worker_id, {(job_id, 1): Completed() for job_id in unknown})
    return len(ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One side, and what it does that the one below does not."""

    name: str
    adds: str
    end: Callable[..., Awaitable[int]]
    role: Role = "superuser"
    triggers: bool = True


LADDER: Final = (
    Rung(name=BARE, adds="", end=bare),
    Rung(
        name="our table",
        adds="its columns, CHECKs and indexes",
        end=in_the_table,
        triggers=False,
    ),
    Rung(name="our rows", adds="the attempts row, the ring's end", end=with_rows, triggers=False),
    Rung(name="our triggers", adds="legal moves, letters, the ledger", end=with_rows),
    Rung(name="our fence", adds="fence, locks in order", end=fenced),
    Rung(name=OURS, adds="a verdict for every id", end=ended, role="worker"),
)
IDLE: Final = Rung(name=NOTHING, adds="", end=nothing, role="worker")


async def climbed(database: Database, rung: Rung, jobs: int) -> Measured:
    """Milliseconds of Postgres' processors a batch, and jobs a second; every connection is warm."""
    ids = await submitted(database, jobs + BATCH * CONNECTIONS)
    async with database.connect("superuser") as superuser:
        await superuser.execute(bare_sql.MAKE)
        await superuser.execute(bare_sql.FILL, len(ids))
        await superuser.execute("ANALYZE")
        if not rung.triggers:
            await superuser.execute(WITHOUT_TRIGGERS.format(name=database.name))
        async with of_a_worker(database, CONNECTIONS, role=rung.role) as pool:
            async with pool.connection() as connection:
                end = partial(rung.end, worker_id=await a_worker(connection))
            await until_all_ended(pool, ids[jobs:], BATCH, end)
            pids = [row["pid"] for row in await superuser.fetch(BACKENDS)]
            assert len(pids) == CONNECTIONS
            computed, begun = seconds_of(pids), perf_counter()
            await until_all_ended(pool, ids[:jobs], BATCH, end)
            seconds, computed = perf_counter() - begun, seconds_of(pids) - computed
    return {rung.name: 1000 * computed * BATCH / jobs, f"{rung.name}, jobs/s": jobs / seconds}


@asynccontextmanager
async def sides(ground: Ground, asked: Asked) -> AsyncIterator[Sides]:
    jobs = max(BATCH, asked.jobs_of(ROW))

    async def side(rung: Rung) -> Measured:
        async with ground.database() as database:
            return await climbed(database, rung, jobs)

    yield {rung.name: partial(side, rung) for rung in (*LADDER, IDLE)}


ROW: Final = Row(
    name="ladder",
    about="what each promise of a claim and a settle costs, from bare SQL up to ours",
    figures=[
        *(
            Figure(
                title=f"Postgres' CPU a batch of {BATCH}, + {rung.adds}",
                unit="ms",
                ours=rung.name,
                other=below.name,
                compare="difference",
            )
            for below, rung in pairwise(LADDER)
        ),
        Figure(title=f"Postgres' CPU, claim + settle of {BATCH} unknown", unit="ms", ours=NOTHING),
        *(
            Figure(
                title=f"claim + settle, batch {BATCH}",
                unit="jobs/s",
                ours=f"{OURS}, jobs/s",
                other=f"{rung.name}, jobs/s",
            )
            for rung in LADDER[:-1]
        ),
    ],
    open=sides,
    jobs=5_000,
)
