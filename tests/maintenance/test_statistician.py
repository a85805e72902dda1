"""Rollups are kept by one process, minute by minute, and not beyond its end."""

from uuid import uuid4

import pytest

from imagefleet.jobs.lifecycle import Completed
from imagefleet.maintenance import statistician as module
from imagefleet.maintenance.statistician import Statistician
from imagefleet.store.database import Connection, Pool
from imagefleet.store.fleet.bookkeeping import fold_entries
from imagefleet.store.jobs.submissions import submit_jobs
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.support.eventually import Resting
from tests.support.factories import a_submission, hold_job, settle_job

AWAY = """
UPDATE rollup_progress SET counted_until = counted_until - interval '1 hour',
                           settled_until = settled_until - interval '1 hour'
"""
SUMS = """
SELECT sum(submitted), sum(completed) FROM rollups GROUP BY step ORDER BY step
"""


async def completed(worker: Connection, superuser: Connection, jobs: int) -> None:
    """So many jobs, each of a minute of its own, a while ago."""
    asked = [a_submission() for _ in range(jobs)]
    await submit_jobs(worker, asked)
    for job in asked:
        await settle_job(worker, await hold_job(worker, job.job_id), Completed())
    async with superuser.transaction():
        await superuser.execute("SET LOCAL session_replication_role = replica")
        await superuser.execute(
            "UPDATE attempts SET ended_at = now() - interval '1 minute' * (20 + n.n)"
            "  FROM (SELECT job_id, row_number() OVER () AS n FROM attempts) AS n"
            " WHERE n.job_id = attempts.job_id"
        )
    await superuser.execute(AWAY)


def a_statistician(pool: Pool, resting: Resting | None = None) -> Statistician:
    return Statistician(pool, uuid4(), MaintenanceMetrics(()), rest=resting or Resting())


async def test_what_ended_and_what_was_submitted_is_rolled_up(
    pool: Pool, worker: Connection, maintenance: Connection, superuser: Connection
) -> None:
    await completed(worker, superuser, 3)
    await fold_entries(maintenance, limit=100)
    resting = Resting()

    looks = await a_statistician(pool, resting).run_once()

    assert looks >= 3
    assert len(resting.rests) >= 3, "others had their turn after each minute"
    assert [(3, 3)] * 3 == [tuple(row) for row in await superuser.fetch(SUMS)]
    assert 0 == await superuser.fetchval("SELECT count(*) FROM rollup_entries")


async def test_who_is_asked_to_end_looks_at_no_further_minute(
    pool: Pool, worker: Connection, superuser: Connection
) -> None:
    await completed(worker, superuser, 3)

    looks = await a_statistician(pool, Resting(lambda _rests: True)).run_once()

    assert 1 == looks
    assert 1 == await superuser.fetchval("SELECT sum(completed) FROM rollups WHERE step = 'day'")


async def test_only_one_does_it_until_it_resigns(
    pool: Pool, worker: Connection, superuser: Connection
) -> None:
    await completed(worker, superuser, 1)
    first, other = a_statistician(pool), a_statistician(pool)
    await first.run_once()
    await superuser.execute(AWAY)

    idle = await other.run_once()
    await first.office.resign()

    assert 0 == idle
    assert await other.run_once() > 0
    assert 1 == await superuser.fetchval("SELECT sum(completed) FROM rollups WHERE step = 'day'")


async def test_entries_are_added_page_by_page(
    pool: Pool, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENTRIES", 3)
    await superuser.execute(
        "INSERT INTO rollup_entries (sqs_requests) SELECT 1 FROM generate_series(1, 7)"
    )
    await superuser.execute(AWAY)

    await a_statistician(pool).run_once()

    assert 7 == await superuser.fetchval("SELECT sqs_requests FROM rollup_costs WHERE step = 'day'")


async def test_until_a_minute_is_over_nothing_is_written(pool: Pool, superuser: Connection) -> None:
    await superuser.execute("INSERT INTO rollup_entries (sqs_requests) VALUES (1)")
    await superuser.execute(
        "UPDATE rollup_progress SET counted_until = date_trunc('minute', now())"
    )

    assert 0 == await a_statistician(pool).run_once()

    assert 1 == await superuser.fetchval("SELECT count(*) FROM rollup_entries")
