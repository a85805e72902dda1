"""Which writes of a job and around it go into no index: those of nothing that an index names.

An index names what it is keyed by and what its predicate asks for. Where nothing of that changes,
the row's page alone is written (HOT), as long as it has room; else every index of the table gets a
new entry. Why so many do is told in docs/decisions/0015.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import MappingProxyType
from typing import Final, TypeAlias

import pytest

from imagefleet.jobs.lifecycle import Completed, Released
from imagefleet.jobs.model import JobState, PauseScope
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import Pause, pause
from imagefleet.store.jobs.leases import Renewal, renew_claims, report_progress
from tests.conftest import OpenConnection
from tests.support.factories import (
    CORRUPT,
    UNAVAILABLE,
    MadeJob,
    a_job,
    a_submission,
    announce,
    claim_job,
    settle_job,
)

# By key or by predicate; the columns of a constraint are those of its index.
NAMED: Final = """
SELECT DISTINCT columns.attname
  FROM pg_index AS indexes
  LEFT JOIN pg_depend AS needs
    ON needs.classid = 'pg_class'::regclass AND needs.objid = indexes.indexrelid
   AND needs.refclassid = 'pg_class'::regclass AND needs.refobjid = indexes.indrelid
  JOIN pg_attribute AS columns
    ON columns.attrelid = indexes.indrelid
   AND (columns.attnum = needs.refobjsubid OR columns.attnum = ANY (indexes.indkey))
   AND columns.attnum > 0
 WHERE indexes.indrelid = $1::text::regclass
"""
UPDATED: Final = """
SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = $1
"""

Step: TypeAlias = Callable[[Connection, MadeJob], Awaitable[object]]


async def claim(worker: Connection, job: MadeJob) -> None:
    assert (await claim_job(worker, job.job_id, job.worker_id)).claim is not None


async def put_off(worker: Connection, job: MadeJob) -> None:
    assert (await claim_job(worker, job.job_id, job.worker_id)).claim is None


def renewal(job: MadeJob) -> Renewal:
    hour = timedelta(hours=1)
    return Renewal(job_id=job.job_id, claim_no=job.claim_no, renewable_for=hour)


async def beat(worker: Connection, job: MadeJob) -> None:
    await renew_claims(worker, job.worker_id, [renewal(job)])


async def tell_progress(worker: Connection, job: MadeJob) -> None:
    await report_progress(worker, renewal(job), done=1, total=2, cursor={"page": 1})


QUEUED, PROCESSING, _, RETRYABLE, _ = JobState

# The table, the state before, the step, and what the step writes of what indexes name.
STEPS: Final = MappingProxyType(
    {
        "claim": ("jobs", QUEUED, claim, {"state", "locked_by"}),
        "claim again": ("jobs", RETRYABLE, claim, {"state", "locked_by"}),
        "beat": ("jobs", PROCESSING, beat, set[str]()),
        "progress": ("jobs", PROCESSING, tell_progress, set[str]()),
        "complete": (
            "jobs",
            PROCESSING,
            lambda worker, job: settle_job(worker, job, Completed()),
            {"state", "locked_by", "finished_at"},
        ),
        "fail": (
            "jobs",
            PROCESSING,
            lambda worker, job: settle_job(worker, job, CORRUPT),
            {"state", "locked_by", "finished_at", "failure_code"},
        ),
        "retry": (
            "jobs",
            PROCESSING,
            lambda worker, job: settle_job(worker, job, UNAVAILABLE),
            {"state", "locked_by", "run_at", "failure_code"},
        ),
        "release": (
            "jobs",
            PROCESSING,
            lambda worker, job: settle_job(worker, job, Released(why="drain")),
            {"state", "locked_by", "run_at"},
        ),
        "confirm": (
            "rings",
            QUEUED,
            lambda worker, job: announce(worker, job.job_id),
            {"sent_at", "sends"},
        ),
        "put off": ("rings", QUEUED, put_off, {"next_at"}),
        "take a target": ("targets", QUEUED, claim, set[str]()),
        "free a target": (
            "targets",
            PROCESSING,
            lambda worker, job: settle_job(worker, job, Completed()),
            set[str](),
        ),
        "beat of a worker": ("workers", PROCESSING, beat, set[str]()),
    }
)


@pytest.mark.parametrize("name", STEPS)
async def test_a_step_writes_into_indexes_only_where_it_writes_what_they_name(
    name: str, worker: OpenConnection, superuser: OpenConnection, operator: OpenConnection
) -> None:
    table, state, step, expected = STEPS[name]
    job = await a_job(worker, superuser, state=state, submission=a_submission(target="image:7"))
    await superuser.execute("UPDATE jobs SET locked_at = locked_at - interval '5 minutes'")
    if step is put_off:
        await pause(operator, Pause(scope=PauseScope.ALL, name=""), by="tests", reason="why")
    row = f"SELECT * FROM {table}"  # noqa: S608 - of four
    (before,) = await superuser.fetch(row)

    await worker.execute("SELECT pg_stat_force_next_flush()")  # else this session's past counts too
    async with worker.transaction():
        await step(worker, job)
        updates, hot = await worker.fetchrow(UPDATED, table) or (0, 0)

    (after,) = await superuser.fetch(row)
    written = {column for column in before.keys() if before[column] != after[column]}  # noqa: SIM118 - a record
    named = {row["attname"] for row in await superuser.fetch(NAMED, table)}
    assert expected == written & named
    assert (1, int(not expected)) == (updates, hot)
