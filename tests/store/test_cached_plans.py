"""A worker's statements are planned once for all values, and such a plan is not kept for long."""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Final

import pytest
import pytest_asyncio

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, Ring, WorkerId, new_job_id
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store import database as connecting
from imagefleet.store.database import Connection, Pool, open_pool
from imagefleet.store.jobs.claims import CLAIM_JOBS, claim_jobs
from imagefleet.store.jobs.endings import COMPLETE_JOBS, FREE_TARGETS, LOCK_CLAIMS
from imagefleet.store.jobs.rings import confirm_rings
from imagefleet.store.jobs.submissions import submit_job, submit_jobs
from imagefleet.store.letters.faults import GROUP_LETTERS, group_dead_letters
from imagefleet.store.settling import Settled, Settlement, settle_jobs
from tests.conftest import OpenConnection
from tests.support.database import Database
from tests.support.eventually import eventually
from tests.support.factories import ALL_LANES, TYPES, a_submission, a_worker, claim_job

HOT: Final[Mapping[str | None, Sequence[str]]] = MappingProxyType(
    {
        None: (CLAIM_JOBS, COMPLETE_JOBS),
        "photo": (CLAIM_JOBS, LOCK_CLAIMS, COMPLETE_JOBS, FREE_TARGETS),
    }
)
ROUNDS: Final = 7  # more than the five after which Postgres would judge by itself

HISTORY: Final = 3_000
FEW: Final = 100
BACKLOG: Final = 1_000

PLANNED: Final = """
SELECT statement, generic_plans, custom_plans FROM pg_prepared_statements
"""
ROWS_READ: Final = """
SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relname = 'jobs'
"""
READ_IN: Final = """
SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname = ANY ($1))
       + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = ANY ($1))
"""
LOAD_ALIASES: Final = f"""
INSERT INTO idempotency_aliases (tenant_id, idempotency_key, fingerprint, job_id)
SELECT 'acme', 'alias-' || number, '', $1 FROM generate_series(1, {HISTORY}) AS number
"""  # noqa: S608 - a number of ours
LOAD: Final = f"""
SET LOCAL session_replication_role = replica;
INSERT INTO jobs (id, tenant_id, type, state, lane, claim_no, attempts, correlation_id, created_by,
                  finished_at, result_reason)
SELECT gen_random_uuid(), 'acme', 'noop', 'completed', 'fast', 1, 1, 'load', 'load', now(), 'done'
  FROM generate_series(1, {HISTORY})
"""  # noqa: S608 - a number of ours


@pytest_asyncio.fixture
async def as_a_worker(database: Database) -> AsyncIterator[Pool]:
    async with open_pool(
        database.url("worker"), process="test-worker", max_size=1, generic_plans=True
    ) as pool:
        yield pool


@pytest.mark.parametrize("batch", [1, 10])
@pytest.mark.parametrize("target", HOT)
async def test_a_worker_plans_no_hot_statement_for_its_values(
    target: str | None, batch: int, as_a_worker: Pool, api: Connection
) -> None:
    async with as_a_worker.connection() as connection:
        worker_id = await a_worker(connection)
        for _ in range(ROUNDS):
            await work_on(
                connection, worker_id, [await submitted(api, target) for _ in range(batch)]
            )
        plans = {
            row["statement"]: (row["generic_plans"], row["custom_plans"])
            for row in await connection.fetch(PLANNED)
        }

    used = {statement: plans.get(statement) for statement in HOT[target]}
    assert used == dict.fromkeys(HOT[target], (ROUNDS, 0))


async def test_an_operators_question_is_planned_for_its_values_each_time(
    database: Database,
) -> None:
    """One filter or none, of what is rare or frequent: no plan is good for all of them."""
    async with (
        open_pool(
            database.url("operator"), process="test-operator", max_size=1, custom_plans=True
        ) as pool,
        pool.connection() as connection,
    ):
        for _ in range(ROUNDS):
            await group_dead_letters(connection)
        (plans,) = [
            (row["generic_plans"], row["custom_plans"])
            for row in await connection.fetch(PLANNED)
            if row["statement"] == GROUP_LETTERS
        ]

    assert (0, ROUNDS) == plans


@pytest.mark.breaks_invariants
async def test_a_plan_made_on_empty_tables_does_not_go_on_reading_through_full_ones(
    database: Database, superuser: OpenConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "PLANNED_FOR", 2)
    await superuser.execute("VACUUM (ANALYZE) jobs")
    async with (
        open_pool(
            database.url("worker"), process="test-worker", max_size=1, generic_plans=True
        ) as pool,
        pool.connection() as connection,
    ):
        worker_id = await a_worker(connection)

        async def rows_read() -> int:
            before = await superuser.fetchval(ROWS_READ)
            await claim_job(connection, new_job_id(), worker_id)
            await connection.execute("SELECT pg_stat_force_next_flush()")
            return int(await superuser.fetchval(ROWS_READ) - before)

        async def few() -> bool:
            return await rows_read() < FEW

        await rows_read()
        async with superuser.transaction():
            await superuser.execute(LOAD)
        assert await rows_read() >= HISTORY, "that plan does no harm: this proves nothing"
        await eventually(few, within=10)


@pytest.mark.breaks_invariants
@pytest.mark.parametrize(("target", "tables"), [(None, ["jobs", "rings"]), ("photo", ["rings"])])
async def test_nobody_reads_through_what_came_after_statistics_of_an_idle_moment(
    target: str | None, tables: list[str], database: Database, superuser: OpenConnection
) -> None:
    """Whoever analyzed had found no ring and no open job, and a burst comes before the next one."""

    def as_a_worker() -> AbstractAsyncContextManager[Pool]:
        url = database.url("worker")
        return open_pool(url, process="test-worker", max_size=1, generic_plans=True)

    async with as_a_worker() as pool, pool.connection() as connection:
        worker_id = await a_worker(connection)
        elders_first = await a_burst(connection, 50, target)
        await work_on(connection, worker_id, elders_first[:25])
        await work_on(connection, worker_id, elders_first[25:])
    async with superuser.transaction():
        await superuser.execute(LOAD)
    await superuser.execute("ANALYZE")
    async with as_a_worker() as pool, pool.connection() as connection:
        job_ids = await a_burst(connection, BACKLOG, target)
        held = job_ids[10:210]  # by others, as far as a settle is concerned
        await claim_jobs(connection, held, worker_id=worker_id, lanes=ALL_LANES, types=TYPES)
        taken = "SELECT job_id, lane, tenant_id, next_at FROM rings WHERE job_id = ANY ($1)"
        rows = await connection.fetch(taken, job_ids[:10])
        rings = [Ring(announced_at=row["next_at"], **dict(row)) for row in rows]

        async def rows_read(work: Awaitable[object]) -> int:
            before = await superuser.fetchval(READ_IN, tables)
            await work
            await connection.execute("SELECT pg_stat_force_next_flush()")
            return int(await superuser.fetchval(READ_IN, tables) - before)

        await connection.execute("SELECT pg_stat_force_next_flush()")
        assert await rows_read(confirm_rings(connection, rings)) < BACKLOG / 4
        assert await rows_read(work_on(connection, worker_id, job_ids[:10])) < BACKLOG / 4


async def test_a_key_is_never_looked_for_through_all_aliases(
    superuser: OpenConnection, api: OpenConnection
) -> None:
    """A session keeps the plan within the function, whatever it forgets of its own statements."""

    async def rows_read() -> int:
        before = await superuser.fetchval(READ_IN, ["idempotency_aliases"])
        await submit_job(api, a_submission(idempotency_key=str(new_job_id())))
        await api.execute("SELECT pg_stat_force_next_flush()")
        return int(await superuser.fetchval(READ_IN, ["idempotency_aliases"]) - before)

    first = await submit_job(superuser, a_submission())
    await superuser.execute("VACUUM (ANALYZE) idempotency_aliases")
    for _ in range(ROUNDS):
        await rows_read()
    await superuser.execute(LOAD_ALIASES, first.job_id)

    assert await rows_read() < FEW


async def a_burst(connection: Connection, count: int, target: str | None) -> list[JobId]:
    """One job of a target, or two of which the second is rung when the first has ended."""
    names = [target and f"{target}-{new_job_id()}" for _ in range(count // 2)]
    submissions = [a_submission(target=name) for name in names * 2]
    await submit_jobs(connection, submissions)
    return [submission.job_id for submission in submissions]


async def submitted(api: Connection, target: str | None) -> JobId:
    submission = a_submission(target=target and f"{target}-{new_job_id()}")
    await submit_job(api, submission)
    return submission.job_id


async def work_on(connection: Connection, worker_id: WorkerId, job_ids: Sequence[JobId]) -> None:
    answers = await claim_jobs(
        connection, job_ids, worker_id=worker_id, lanes=ALL_LANES, types=TYPES
    )
    claims = [answer.claim for answer in answers if answer.claim is not None]
    settlements = [Settlement.of(claim, Completed(), RetryPolicy()) for claim in claims]
    report = await settle_jobs(connection, worker_id, settlements)
    assert [Settled.WRITTEN] * len(job_ids) == [receipt.settled for receipt in report.receipts]
