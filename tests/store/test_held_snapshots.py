"""What an old snapshot keeps makes nothing dearer that is done for every job.

While anybody looks at an old snapshot (a backup, a report, a forgotten session) no row that is
written over goes away, and an index of what is open or runs is full of what was. Whoever looks for
rows by such an index reads all of that again and again.
"""

import asyncio
from typing import Final

import pytest

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import WorkerId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.submissions import submit_jobs
from imagefleet.store.settling import Settlement, settle_jobs
from tests.conftest import OpenConnection
from tests.store.plans.work import PlanMode, watching
from tests.support.database import Database
from tests.support.factories import ALL_LANES, TYPES, a_submission, a_worker, finish_many

JOBS: Final = 1000
MOST: Final = 1.2


async def pages(database: Database, worker_id: WorkerId, mode: PlanMode) -> tuple[int, int]:
    """Of the claim of ten jobs, and of their end; all is undone."""
    async with watching(database, "worker", mode) as (connection, work):

        async def so_far() -> int:
            await connection.execute("SELECT")  # ends the last statement, which tells its plan
            await asyncio.sleep(0)  # listeners are called by the loop, in their turn
            return work.pages

        asked = [a_submission() for _ in range(10)]
        await submit_jobs(connection, asked)
        before = await so_far()
        ids = [job.job_id for job in asked]
        answers = await claim_jobs(
            connection, ids, worker_id=worker_id, lanes=ALL_LANES, types=TYPES
        )
        claimed = await so_far()
        claims = [answer.claim for answer in answers if answer.claim is not None]
        completed = [Settlement.of(claim, Completed(), RetryPolicy()) for claim in claims]
        await settle_jobs(connection, worker_id, completed)
        settled = await so_far()
    assert len(claims) == len(asked)
    return claimed - before, settled - claimed


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_an_old_snapshot_makes_no_claim_and_no_end_dearer(
    mode: PlanMode,
    database: Database,
    worker: OpenConnection,
    operator: OpenConnection,
    superuser: OpenConnection,
) -> None:
    worker_id = await a_worker(worker)
    await finish_many(worker, worker_id, JOBS)
    await superuser.execute("VACUUM (ANALYZE)")
    claim, end = await pages(database, worker_id, mode)

    await operator.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await operator.fetch("SELECT FROM fleet")
    await finish_many(worker, worker_id, JOBS)
    claim_beside, end_beside = await pages(database, worker_id, mode)
    await operator.execute("ROLLBACK")

    assert claim_beside <= MOST * claim
    assert end_beside <= MOST * end
