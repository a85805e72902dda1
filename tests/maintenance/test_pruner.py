"""Pruning: in batches, once a period, and with nothing lost from the ledger."""

from uuid import uuid4

import pytest

from imagefleet.jobs.model import JobState
from imagefleet.maintenance import pruner as pruner_module
from imagefleet.maintenance.pruner import Pruned, Pruner
from imagefleet.store.database import Connection
from imagefleet.telemetry.upkeep import MaintenanceMetrics
from tests.support.database import Database
from tests.support.factories import a_job, age_finished_jobs


async def test_the_first_of_a_period_prunes_all_of_it(
    database: Database,
    worker: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
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

    async with database.pool("maintenance") as pool:
        one, other = (Pruner(pool, uuid4(), MaintenanceMetrics(())) for _ in range(2))
        answers = [await one.run_once(), await other.run_once()]

    assert [Pruned(taken=True, jobs=5), Pruned(taken=False)] == answers
    (period,) = await superuser.fetch("SELECT * FROM periods")
    assert {"taken": True, "jobs": 5, "batches": 0} == period["report"]
    assert 5 == await superuser.fetchval("SELECT sum(pruned) FROM ledger")
