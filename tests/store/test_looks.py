"""A look costs what there is to be announced, whatever statistics say and a snapshot keeps.

A dispatcher looks five times a second. Statistics of a moment without rings make every index of
them look like one page; while somebody holds a snapshot, what was announced and claimed stays in
each of them.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Final
from uuid import UUID

import pytest

from imagefleet.jobs.model import JobId, Lane
from imagefleet.store.database import Connection
from imagefleet.store.jobs.dispatching import (
    FIRST_PLACE,
    count_announced,
    find_levels,
    look_at_fleet,
    look_at_types,
    take_rings,
)
from imagefleet.store.jobs.rings import adopt_rings, ring_heads
from imagefleet.store.jobs.submissions import submit_jobs
from tests.conftest import OpenConnection
from tests.store.plans.work import watching
from tests.support.database import Database
from tests.support.factories import a_submission, a_worker, finish_many

BACKLOG: Final = 1_000
LOOKS: Final[Mapping[str, Callable[[Connection], Awaitable[object]]]] = MappingProxyType(
    {
        "adopt_rings": lambda connection: adopt_rings(connection, limit=100),
        "count_announced": lambda connection: count_announced(
            connection, Lane.FAST, within=timedelta(seconds=15), limit=100
        ),
        "look_at_types": lambda connection: look_at_types(connection, {}),
        "ring_heads": lambda connection: ring_heads(connection, JobId(UUID(int=0)), limit=100),
    }
)


@pytest.mark.parametrize("name", LOOKS)
async def test_a_look_reads_no_backlog_by_statistics_of_an_idle_moment(
    name: str,
    database: Database,
    api: OpenConnection,
    worker: OpenConnection,
    superuser: OpenConnection,
) -> None:
    """Nothing of it was announced or is parked, and no older process wrote it."""
    await finish_many(worker, await a_worker(worker), 200)
    await superuser.execute("ANALYZE")
    await submit_jobs(api, [a_submission() for _ in range(BACKLOG)])

    async with watching(database, "maintenance", "force_custom_plan") as (maintenance, work):
        await LOOKS[name](maintenance)

    assert work.rows < BACKLOG / 4, work.told


async def test_a_look_reads_no_attempt_of_before_in_a_database_without_statistics(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    """One that was made a moment ago has none, and a plan that is made then lives for minutes."""
    await finish_many(worker, await a_worker(worker), BACKLOG)
    async with superuser.transaction():
        await superuser.execute("SET LOCAL session_replication_role = replica")
        await superuser.execute("UPDATE attempts SET ended_at = ended_at - interval '1 hour'")

    async with watching(database, "maintenance", "force_custom_plan") as (maintenance, work):
        await look_at_fleet(maintenance, {})

    assert "Seq Scan attempts" not in work.told, work.told


async def test_what_is_taken_is_not_looked_for_behind_what_an_old_snapshot_keeps(
    database: Database, worker: OpenConnection, operator: OpenConnection
) -> None:
    """That is read once, by whoever finds what is the earliest now."""
    worker_id = await a_worker(worker)
    await operator.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await operator.fetch("SELECT FROM fleet")
    await finish_many(worker, worker_id, BACKLOG)
    await submit_jobs(worker, [a_submission()])

    async with watching(database, "maintenance", "force_custom_plan") as (maintenance, work):
        levels = await find_levels(maintenance, Lane.FAST, FIRST_PLACE, limit=1)
        await maintenance.execute("SELECT")
        found = work.pages
        taken = await take_rings(maintenance, Lane.FAST, [(level, 10) for level in levels])
    await operator.execute("ROLLBACK")

    assert 1 == len(taken)
    assert found > 30, "nothing is kept: this proves nothing"
    assert work.pages - found < found / 2, work.told
