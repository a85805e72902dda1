"""What the fleet is scaled by: the jobs that workers could run now, and those that they run."""

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import CancelCode, JobId, JobState, Lane, PauseScope
from imagefleet.store.database import Connection
from imagefleet.store.fleet.bookkeeping import fold_entries
from imagefleet.store.fleet.breakers import force_open
from imagefleet.store.fleet.pauses import Pause, pause, resume
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.submissions import submit_jobs
from tests.store.plans.work import watching
from tests.support.database import Database, driver_of
from tests.support.factories import (
    TENANT,
    UNAVAILABLE,
    a_job,
    a_submission,
    announce,
    expire_lock,
    hold_job,
    make_due,
    open_breaker,
    settle_job,
)

MOST = 10_000
TOMORROW = datetime.now(UTC) + timedelta(days=1)


async def submitted(api: Connection, count: int = 1, **wishes: object) -> list[JobId]:
    jobs = [a_submission(**wishes) for _ in range(count)]  # type: ignore[arg-type] # its own names
    await submit_jobs(api, jobs)
    return [job.job_id for job in jobs]


async def work_in(connection: Connection, lane: str = Lane.FAST) -> int:
    """As the scaler asks, to the letter."""
    return int(await connection.fetchval(f"SELECT work_in_lane('{lane}')"))


async def test_due_work_is_counted_in_its_lane(scaler: Connection, api: Connection) -> None:
    await submitted(api, 3, lane=Lane.FAST)
    await submitted(api, 2, lane=Lane.GENERAL, priority=10)
    await submitted(api, 1, lane=Lane.GENERAL, tenant_id="rival")

    assert [3, 3, 0] == [await work_in(scaler, lane) for lane in Lane]


async def test_nothing_to_do_is_zero_also_after_work(
    scaler: Connection, worker: Connection, superuser: Connection
) -> None:
    assert await work_in(scaler) == 0
    for state in (JobState.COMPLETED, JobState.FAILED):
        await a_job(worker, superuser, state=state)

    assert await work_in(scaler) == 0


async def test_work_counts_from_when_it_is_due(
    scaler: Connection, api: Connection, superuser: Connection
) -> None:
    first, _ = await submitted(api, 2, run_at=TOMORROW)
    assert await work_in(scaler) == 0

    await make_due(superuser, first)

    assert await work_in(scaler) == 1


async def test_due_work_behind_what_is_not_due_is_found(
    scaler: Connection, api: Connection
) -> None:
    """Of every tenant, type and priority that waits, wherever it stands among them."""
    for tenant in ("a", "b", "c"):
        await submitted(api, 2, tenant_id=tenant, run_at=TOMORROW)
    await submitted(api, 2, tenant_id="b", priority=200)
    await submitted(api, 1, tenant_id="d")

    assert await work_in(scaler) == 3


async def test_announced_work_counts_once_until_it_is_over(
    scaler: Connection, api: Connection, worker: Connection
) -> None:
    """Waiting, rung for, claimed, and done: no worker is taken away in between."""
    first, second = await submitted(api, 2)
    await announce(api, first)
    assert await work_in(scaler) == 2

    held = await hold_job(worker, first)
    assert await work_in(scaler) == 2

    await settle_job(worker, held, Completed())
    assert await work_in(scaler) == 1
    await settle_job(worker, await hold_job(worker, second), Completed())
    assert await work_in(scaler) == 0


async def test_claims_are_counted_by_the_book_folded_or_not(
    scaler: Connection, api: Connection, worker: Connection, maintenance: Connection
) -> None:
    for job_id in await submitted(api, 3):
        await hold_job(worker, job_id)
    assert await work_in(scaler) == 3

    while await fold_entries(maintenance, limit=2):
        assert await work_in(scaler) == 3


@pytest.mark.breaks_invariants
async def test_before_the_book_is_open_claims_are_counted_one_by_one(
    scaler: Connection, api: Connection, worker: Connection, superuser: Connection
) -> None:
    first, _ = await submitted(api, 2)
    await hold_job(worker, first)
    async with superuser.transaction():
        await superuser.execute("SET LOCAL session_replication_role = replica")
        await superuser.execute("UPDATE ledger_proof SET opened_at = NULL")
        await superuser.execute("DELETE FROM ledger_entries")

    assert await work_in(scaler) == 2
    assert await work_in(scaler, Lane.GENERAL) == 0


async def test_a_retry_counts_when_its_time_has_come(
    scaler: Connection, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await settle_job(worker, job, UNAVAILABLE)
    assert await work_in(scaler) == 0

    await make_due(superuser, job.job_id)

    assert await work_in(scaler) == 1


async def test_an_expired_claim_still_needs_a_worker(
    scaler: Connection, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await expire_lock(superuser, job.job_id)

    assert await work_in(scaler) == 1


async def test_a_suspect_counts_in_quarantine_alone(
    scaler: Connection, api: Connection, worker: Connection
) -> None:
    suspect, _ = await submitted(api, 2, lane=Lane.QUARANTINE)
    await hold_job(worker, suspect)

    assert [0, 0, 2] == [await work_in(scaler, lane) for lane in Lane]


async def test_what_stands_behind_its_target_is_nobodys_work_yet(
    scaler: Connection, api: Connection, worker: Connection
) -> None:
    first, *_ = await submitted(api, 4, target="thing:1")
    assert await work_in(scaler) == 1

    await hold_job(worker, first)

    assert await work_in(scaler) == 1


@pytest.mark.parametrize(
    "what",
    [
        Pause(scope=PauseScope.ALL),
        Pause(scope=PauseScope.LANE, name="fast"),
        Pause(scope=PauseScope.TYPE, name="noop"),
        Pause(scope=PauseScope.TENANT, tenant_id=TENANT),
        Pause(scope=PauseScope.TENANT, tenant_id=TENANT, name="noop"),
    ],
    ids=lambda what: f"{what.scope} {what.name}",
)
async def test_paused_work_brings_no_worker(
    what: Pause, scaler: Connection, api: Connection, worker: Connection, operator: Connection
) -> None:
    """But what runs goes on, and what no pause holds is done."""
    running, *_ = await submitted(api, 4)
    await hold_job(worker, running)
    await submitted(api, 1, type="cancel_job", preempts=True)
    assert await work_in(scaler) == 5

    await pause(operator, what, by="ada", reason="why")
    assert await work_in(scaler) == 2

    await resume(operator, what)
    assert await work_in(scaler) == 5


async def test_a_pause_of_others_holds_nothing_here(
    scaler: Connection, api: Connection, operator: Connection
) -> None:
    await submitted(api, 2)
    for what in (
        Pause(scope=PauseScope.LANE, name="general"),
        Pause(scope=PauseScope.TYPE, name="process_image"),
        Pause(scope=PauseScope.TENANT, tenant_id="rival"),
        Pause(scope=PauseScope.TENANT, tenant_id=TENANT, name="process_image"),
        Pause(scope=PauseScope.TARGET, tenant_id=TENANT, name="thing:1"),
    ):
        await pause(operator, what, by="ada", reason="why")

    assert await work_in(scaler) == 2


async def test_a_cancelled_job_needs_a_worker_though_it_is_paused(
    scaler: Connection, api: Connection, worker: Connection, operator: Connection
) -> None:
    flagged, _ = await submitted(api, 2)
    await pause(operator, Pause(scope=PauseScope.ALL), by="ada", reason="why")
    assert await work_in(scaler) == 0

    await cancel_job(worker, flagged, code=CancelCode.CANCELLED, detail="by a test")

    assert await work_in(scaler) == 1


async def test_an_open_breaker_leaves_one_job_once_the_service_may_be_tried(
    scaler: Connection, api: Connection, worker: Connection, superuser: Connection
) -> None:
    """Without anybody to try it the breaker would stay open, and the fleet at zero."""
    await submitted(api, 3, services=("s3",))
    await submitted(api, 2, services=("s3",), type="process_image", priority=10)
    await submitted(api, 4, type="other")
    await open_breaker(worker)
    assert await work_in(scaler) == 4

    await superuser.execute("UPDATE circuit_breakers SET retry_at = now()")

    assert await work_in(scaler) == 5


async def test_a_breaker_that_is_forced_open_leaves_none(
    scaler: Connection, api: Connection, operator: Connection, superuser: Connection
) -> None:
    await submitted(api, 3, services=("s3",))
    await force_open(operator, "s3", by="ada")
    await superuser.execute("UPDATE circuit_breakers SET retry_at = now() - interval '1 hour'")

    assert await work_in(scaler) == 0


async def test_a_type_that_was_turned_down_to_no_slots_brings_no_worker(
    scaler: Connection, api: Connection, operator: Connection
) -> None:
    await submitted(api, 3)
    await submitted(api, 1, type="process_image")
    await operator.execute(
        "INSERT INTO live_settings (name, value, set_by, reason)"
        " VALUES ('slots.type.noop', '0', 'ada', 'why'),"
        " ('slots.type.process_image', '2', 'ada', 'why')"
    )

    assert await work_in(scaler) == 1


async def test_a_lane_that_nobody_knows_is_an_error_and_no_zero(scaler: Connection) -> None:
    """Whoever misspells it would wait for workers for ever."""
    with pytest.raises(Exception, match="there is no lane 'fats'"):
        await work_in(scaler, "fats")


# As accepted long ago, at once: half are due, of one tenant; the others tomorrow, of a hundred.
BACKLOG = """
INSERT INTO jobs (id, tenant_id, type, lane, correlation_id, created_by)
SELECT gen_random_uuid(), CASE WHEN n % 2 = 0 THEN 'flood' ELSE 'tenant-' || n % 200 END, 'noop',
       $2, 'x', 'x'
  FROM generate_series(1, $1::int) AS n
"""
RINGS = """
INSERT INTO rings (job_id, lane, tenant_id, type, priority, next_at)
SELECT jobs.id, jobs.lane, jobs.tenant_id, jobs.type, jobs.priority,
       now() + CASE jobs.tenant_id WHEN 'flood' THEN interval '-1 hour' ELSE interval '1 day' END
  FROM jobs
"""


async def test_no_backlog_is_read_through_by_the_plans_of_an_idle_moment(
    database: Database, superuser: Connection
) -> None:
    """Asked on a connection that is kept, as scalers do; the first plans were made for no row."""
    jobs = 2 * MOST + 2_000
    await superuser.execute("ANALYZE")
    async with watching(database, "scaler", "force_generic_plan") as (scaler, work):
        for _ in range(3):
            assert await work_in(scaler) == 0
        async with superuser.transaction():
            await driver_of(superuser).execute(BACKLOG, jobs, "fast", timeout=60)
            await driver_of(superuser).execute(RINGS, timeout=60)
        before = work.pages

        assert await work_in(scaler) == MOST

    # Pages of the 10,000 that are counted, in an index that was filled in no order; no job's row.
    assert work.pages - before < 1_500, work.told


async def test_who_scales_asks_one_thing_and_sees_nothing(scaler: Connection) -> None:
    for statement in (
        "SELECT FROM jobs",
        "SELECT FROM rings",
        "SELECT FROM ledger_book",
        "SELECT FROM tenants",
        "SELECT fold FROM audit AS fold",
        "UPDATE lanes SET room = 1",
        "SET ROLE imagefleet_operator",
        "CREATE TEMPORARY TABLE mine (x int)",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await driver_of(scaler).execute(statement)
