"""What an old snapshot keeps makes nothing dearer that is done for every job.

While anybody looks at an old snapshot (a backup, a report, a forgotten session) no row that is
written over goes away, and an index of what is open or runs is full of what was. Whoever looks for
rows by such an index reads all of that again and again.
"""

import asyncio
from datetime import timedelta
from types import MappingProxyType
from typing import Final

import pytest

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import WorkerId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.leases import Renewal, report_progress
from imagefleet.store.jobs.submissions import submit_jobs
from imagefleet.store.settling import Settlement, settle_jobs
from tests.conftest import OpenConnection
from tests.store.plans.work import PlanMode, watching
from tests.support.database import Database
from tests.support.factories import ALL_LANES, TYPES, a_submission, a_worker, finish_many

JOBS: Final = 1000
# Times as many pages. Progress where its page is full is an entry in each index, by chance; read
# through what ran it would be eight times as many.
MOST: Final = MappingProxyType({"submit": 1.2, "claim": 1.2, "progress": 4, "end": 1.2})


async def pages(database: Database, worker_id: WorkerId, mode: PlanMode) -> dict[str, int]:
    """Of what is done for ten jobs, by what it is; all is undone."""
    asked = [a_submission() for _ in range(10)]
    counted: dict[str, int] = {}
    async with watching(database, "worker", mode) as (connection, work):

        async def count(name: str) -> None:
            await connection.execute("SELECT")  # ends the last statement, which tells its plan
            await asyncio.sleep(0)  # listeners are called by the loop, in their turn
            counted[name] = work.pages - sum(counted.values())

        await submit_jobs(connection, asked)
        await count("submit")
        answers = await claim_jobs(
            connection,
            [job.job_id for job in asked],
            worker_id=worker_id,
            lanes=ALL_LANES,
            types=TYPES,
        )
        await count("claim")
        claims = [answer.claim for answer in answers if answer.claim is not None]
        for claim in claims:
            renewal = Renewal(job_id=claim.job_id, claim_no=1, renewable_for=timedelta(hours=1))
            await report_progress(connection, renewal, done=1, total=2, cursor=None)
        await count("progress")
        completed = [Settlement.of(claim, Completed(), RetryPolicy()) for claim in claims]
        await settle_jobs(connection, worker_id, completed)
        await count("end")
    assert len(claims) == len(asked)
    return counted


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_an_old_snapshot_makes_nothing_dearer_that_is_done_for_every_job(
    mode: PlanMode,
    database: Database,
    worker: OpenConnection,
    operator: OpenConnection,
    superuser: OpenConnection,
) -> None:
    worker_id = await a_worker(worker)
    await finish_many(worker, worker_id, JOBS)
    await superuser.execute("VACUUM (ANALYZE)")
    before = await pages(database, worker_id, mode)

    await operator.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await operator.fetch("SELECT FROM fleet")
    await finish_many(worker, worker_id, JOBS)
    after = await pages(database, worker_id, mode)
    await operator.execute("ROLLBACK")

    assert {} == {
        name: (before[name], after[name])
        for name in MOST
        if after[name] > MOST[name] * before[name]
    }
