"""Pruning: a backlog at once, once a period, passing what is kept, and nothing lost."""

from datetime import timedelta
from uuid import uuid4

import pytest

from imagefleet.jobs.model import JobState
from imagefleet.maintenance import pruner as pruner_module
from imagefleet.maintenance.duties import Rest
from imagefleet.maintenance.pruner import Pruned, Pruner
from imagefleet.store.database import Connection, Pool
from imagefleet.store.fleet.statistics import sample_behind
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.support.database import driver_of
from tests.support.eventually import Resting
from tests.support.factories import a_job, a_worker, age_finished_jobs, finish_many


def a_pruner(
    pool: Pool, rest: Rest | None = None, metrics: MaintenanceMetrics | None = None
) -> Pruner:
    return Pruner(pool, uuid4(), metrics or MaintenanceMetrics(()), rest=rest or Resting())


async def forget_the_period(superuser: Connection) -> None:
    """So that the next look takes one."""
    await superuser.execute("UPDATE periods SET period_start = period_start - interval '1 hour'")


async def test_the_first_of_a_period_prunes_all_of_it(
    pool: Pool, worker: Connection, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruner_module, "BATCH", 2)
    for _ in range(5):
        await a_job(worker, superuser, state=JobState.COMPLETED)
    await age_finished_jobs(superuser)
    await superuser.execute(
        "INSERT INTO periods (name, period_start, holder, started_at)"
        " SELECT 'prune', moment, gen_random_uuid(), moment"
        "   FROM (SELECT now() - interval '2 days' AS moment) AS long_ago"
    )
    resting, metrics = Resting(), MaintenanceMetrics(())

    first, other = a_pruner(pool, resting, metrics), a_pruner(pool)
    answers = [await first.run_once(), await other.run_once()]

    assert [Pruned(taken=True, jobs=5), Pruned(taken=False)] == answers
    (period,) = await superuser.fetch("SELECT * FROM periods")
    assert 5 == period["report"]["jobs"]
    assert 5 == await superuser.fetchval("SELECT sum(pruned) FROM ledger")
    assert 2 == len(resting.rests), "others had their turn after each full page"
    assert 'upkeep_done_total{step="prune_jobs"} 5.0' in metrics.exposition().decode()


async def test_a_backlog_goes_by_the_page_and_never_by_the_job(
    pool: Pool, worker: Connection, superuser: Connection
) -> None:
    """With their attempts and targets: some statements for five hundred jobs."""
    jobs, pages = 1001, 3
    await finish_many(worker, await a_worker(worker), jobs)
    await age_finished_jobs(superuser)
    statements = 0

    def count(_: object) -> None:
        nonlocal statements
        statements += 1

    resting = Resting()
    async with pool.connection() as connection:  # the only one that the pool has
        driver_of(connection).add_query_logger(count)
    pruned = await a_pruner(pool, resting).run_once()

    assert (jobs, pages - 1) == (pruned.jobs, len(resting.rests))
    assert pages < statements <= 10 * pages + 50
    for left in ("jobs", "attempts", "targets"):
        assert 0 == await superuser.fetchval(f"SELECT count(*) FROM {left}")  # noqa: S608 - of three


async def test_what_is_kept_is_passed_once_and_looked_at_again_later(
    pool: Pool, worker: Connection, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody acknowledges the four oldest; each page is of two."""
    monkeypatch.setattr(pruner_module, "BATCH", 2)
    for state in (*[JobState.FAILED] * 4, JobState.COMPLETED):
        await a_job(worker, superuser, state=state)
    await age_finished_jobs(superuser)
    resting = Resting()

    pruner = a_pruner(pool, resting)
    first = await pruner.run_once()
    pages = len(resting.rests)
    await superuser.execute(
        "UPDATE dead_letters SET acknowledged_at = now(), acknowledged_by = 'x'"
    )
    await forget_the_period(superuser)
    second = await pruner.run_once()
    monkeypatch.setattr(pruner, "_again_at", 0.0)
    await forget_the_period(superuser)
    third = await pruner.run_once()

    assert (1, 0, 4) == (first.jobs, second.jobs, third.jobs)
    assert (2, 2 + 2) == (pages, len(resting.rests)), "the second look read no full page"


async def test_a_backlog_that_is_left_tells_how_far_behind_it_is(
    pool: Pool,
    worker: Connection,
    superuser: Connection,
    maintenance: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pruner_module, "BATCH", 2)
    for _ in range(5):
        await a_job(worker, superuser, state=JobState.COMPLETED)
    await superuser.execute("SET session_replication_role = replica")
    await superuser.execute("UPDATE jobs SET finished_at = now() - interval '32 days'")
    await superuser.execute("SET session_replication_role = origin")

    ended = await a_pruner(pool, Resting(lambda _rests: True)).run_once()
    late = await sample_behind(maintenance, walk_within=timedelta(hours=6))
    await forget_the_period(superuser)
    await a_pruner(pool).run_once()
    caught_up = await sample_behind(maintenance, walk_within=timedelta(hours=6))

    assert 2 == ended.jobs
    assert timedelta(days=2) <= late["prune"] < timedelta(days=2, minutes=1)
    assert timedelta(0) == caught_up["prune"]
