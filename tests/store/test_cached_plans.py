"""A worker's statements are planned once for all values, and such a plan is not kept for long."""

from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import pytest
import pytest_asyncio

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, WorkerId, new_job_id
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store import database as connecting
from imagefleet.store.database import Connection, Pool, open_pool
from imagefleet.store.jobs.claims import CLAIM_JOBS, claim_jobs
from imagefleet.store.jobs.endings import COMPLETE_JOBS, FREE_TARGETS, LOCK_CLAIMS
from imagefleet.store.jobs.submissions import submit_job
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

PLANNED: Final = """
SELECT statement, generic_plans, custom_plans FROM pg_prepared_statements
"""
ROWS_READ: Final = """
SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relname = 'jobs'
"""
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
