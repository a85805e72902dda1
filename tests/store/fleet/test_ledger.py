"""The ledger balances at every moment, and says how many jobs are where without counting any."""

from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, JobState, Lane
from imagefleet.store.database import Connection
from imagefleet.store.fleet.bookkeeping import fold_entries, fold_ledger, forget_empty_counts
from imagefleet.store.fleet.ledger import (
    Depth,
    Ledger,
    read_balance,
    read_ledger,
    read_queue_health,
    sample_depths,
    sample_oldest,
)
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.leases import Renewal, renew_claims
from imagefleet.store.jobs.pruning import prune_jobs
from imagefleet.store.jobs.submissions import submit_job, submit_jobs
from tests.support.database import Database, driver_of
from tests.support.factories import (
    ALL_LANES,
    TYPES,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    age_finished_jobs,
    settle_job,
)
from tests.support.invariants import ledger_balances, no_row_offends
from tests.support.races import all_at_once, many_connections

QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState


async def the_ledger(connection: Connection) -> Ledger:
    ledger = await read_ledger(connection)
    assert ledger is not None
    return ledger


async def test_the_ledger_says_where_every_accepted_job_is(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    for state in JobState:
        await a_job(worker, superuser, state=state)
    await a_job(worker, superuser, state=COMPLETED)
    async with superuser.transaction():
        await superuser.execute("SET LOCAL session_replication_role = replica")
        await superuser.execute(
            "UPDATE jobs SET finished_at = now() - interval '1 year' "
            "WHERE id = (SELECT max(id::text)::uuid FROM jobs)"
        )
    await prune_jobs(maintenance, limit=1)

    ledger = await the_ledger(maintenance)

    assert Ledger(accepted=6, open=3, completed=1, failed=1, pruned=1) == ledger
    assert 0 == ledger.missing
    assert ledger == await read_balance(maintenance)


async def test_a_repeated_request_is_accepted_once(
    worker: Connection, maintenance: Connection
) -> None:
    for _ in range(3):
        await submit_job(worker, a_submission(idempotency_key="k"))

    assert 1 == (await the_ledger(maintenance)).accepted


async def test_a_submission_that_is_rolled_back_was_never_accepted(
    worker: Connection, maintenance: Connection
) -> None:
    undo = driver_of(worker).transaction()
    await undo.start()
    await submit_job(worker, a_submission())
    await undo.rollback()

    assert 0 == (await the_ledger(maintenance)).accepted


async def test_an_empty_ledger_balances(maintenance: Connection) -> None:
    empty = Ledger(accepted=0, open=0, completed=0, failed=0, pruned=0)

    assert empty == await the_ledger(maintenance)


@pytest.mark.breaks_invariants
async def test_a_job_that_is_deleted_by_another_hand_is_missed_at_once(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=COMPLETED)

    await superuser.execute("DELETE FROM jobs WHERE id = $1", job.job_id)

    assert 1 == (await the_ledger(maintenance)).missing


async def test_a_batch_of_claims_is_one_entry_for_each_type_and_lane(
    worker: Connection, superuser: Connection
) -> None:
    worker_id = await a_worker(worker)
    moment = a_submission().job_id.int  # all of one hour, whenever the test runs
    submissions = [
        a_submission(type=job_type, job_id=JobId(UUID(int=moment + n)))
        for n, job_type in enumerate(("noop", "noop", "process_image") * 4)
    ]
    await submit_jobs(worker, submissions)
    before = await superuser.fetchval("SELECT max(id) FROM ledger_entries")

    ids = [submission.job_id for submission in submissions]
    await claim_jobs(worker, ids, worker_id=worker_id, lanes=ALL_LANES, types=TYPES)

    rows = await superuser.fetch(
        "SELECT type, lane, queued, processing FROM ledger_entries WHERE id > $1 ORDER BY type",
        before,
    )
    assert [("noop", "fast", -8, 8), ("process_image", "fast", -4, 4)] == [tuple(r) for r in rows]


async def test_a_beat_leaves_no_entry(worker: Connection, superuser: Connection) -> None:
    job = await a_job(worker, superuser, state=PROCESSING)
    await superuser.execute("UPDATE jobs SET locked_at = locked_at - interval '5 minutes'")
    before = await superuser.fetchval("SELECT count(*) FROM ledger_entries")

    renewal = Renewal(job_id=job.job_id, claim_no=1, renewable_for=timedelta(hours=1))
    await renew_claims(worker, job.worker_id, [renewal])

    assert before == await superuser.fetchval("SELECT count(*) FROM ledger_entries")


async def test_two_claims_never_wait_for_each_other_in_the_book(database: Database) -> None:
    async with many_connections(database, "worker", 2) as (one, other):
        worker_id = await a_worker(one)
        jobs = [a_submission() for _ in range(2)]
        await submit_jobs(one, jobs)
        undo = driver_of(one).transaction()
        await undo.start()
        await claim_jobs(one, [jobs[0].job_id], worker_id=worker_id, lanes=ALL_LANES, types=TYPES)
        await other.execute("SET lock_timeout = '1ms'")

        (answer,) = await claim_jobs(
            other, [jobs[1].job_id], worker_id=worker_id, lanes=ALL_LANES, types=TYPES
        )

        assert answer.claim is not None
        await undo.rollback()


async def test_folding_keeps_the_sums_and_shortens_the_book(
    maintenance: Connection, worker: Connection
) -> None:
    for _ in range(10):
        await submit_job(worker, a_submission())
    before = await the_ledger(maintenance)

    folded = [await fold_ledger(maintenance, limit=8), await fold_entries(maintenance, limit=7)]

    assert [8, 7] == folded
    assert before == await the_ledger(maintenance)
    assert 3 == await worker.fetchval("SELECT count(*) FROM ledger")
    assert 3 == await worker.fetchval("SELECT count(*) FROM ledger_entries")
    assert 7 == await worker.fetchval("SELECT sum(queued) FROM ledger_counts")


async def test_folding_an_empty_book_writes_nothing(maintenance: Connection) -> None:
    assert 0 == await fold_ledger(maintenance, limit=100)
    assert 0 == await fold_entries(maintenance, limit=100)

    assert 0 == await maintenance.fetchval("SELECT count(*) FROM ledger")


async def test_what_is_folded_already_is_not_folded_again_and_again(
    maintenance: Connection, worker: Connection
) -> None:
    await submit_job(worker, a_submission())
    await submit_job(worker, a_submission())
    await fold_ledger(maintenance, limit=100)
    sums = await maintenance.fetch("SELECT ctid, * FROM ledger")

    assert 0 == await fold_ledger(maintenance, limit=100)
    assert sums == await maintenance.fetch("SELECT ctid, * FROM ledger")


async def test_a_part_of_the_entries_never_counts_fewer_than_no_jobs(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    """What is summed up first happened first."""
    for state in JobState:
        await a_job(worker, superuser, state=state)
    states = "least(queued, processing, failed_retryable, completed, failed)"

    while await fold_entries(maintenance, limit=1):
        assert 0 <= await superuser.fetchval(f"SELECT min({states}) FROM ledger_counts")  # noqa: S608


async def test_hours_of_which_no_job_is_left_are_forgotten(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    await a_job(worker, superuser, state=COMPLETED)
    await a_job(worker, superuser, submission=a_submission(type="process_image"))
    await age_finished_jobs(superuser)
    await prune_jobs(maintenance, limit=10)
    await fold_entries(maintenance, limit=100)

    await forget_empty_counts(maintenance)

    rows = await superuser.fetch("SELECT type, queued FROM ledger_counts")
    assert [("process_image", 1)] == [tuple(row) for row in rows]


async def test_the_ledger_balances_at_every_moment_while_others_write_and_fold(
    database: Database, superuser: Connection
) -> None:
    async def work(connection: Connection) -> None:
        worker_id = await a_worker(connection)
        for _ in range(15):
            submission = a_submission()
            await submit_job(connection, submission)
            ids = [submission.job_id]
            await claim_jobs(connection, ids, worker_id=worker_id, lanes=ALL_LANES, types=TYPES)
            job = MadeJob(job_id=submission.job_id, claim_no=1, worker_id=worker_id)
            await settle_job(connection, job, Completed())

    async def fold(connection: Connection) -> None:
        for _ in range(15):
            await fold_ledger(connection, limit=5)
            await fold_entries(connection, limit=5)

    async def audit(connection: Connection) -> None:
        for _ in range(15):
            await ledger_balances(connection)
            await no_row_offends(connection)
            assert 0 == (await the_ledger(connection)).missing

    async with (
        many_connections(database, "worker", 4) as workers,
        many_connections(database, "maintenance", 5) as others,
    ):
        actions = [fold, fold, audit, audit, audit]
        await all_at_once(
            [
                *(partial(work, worker) for worker in workers),
                *(partial(act, one) for act, one in zip(actions, others, strict=True)),
            ]
        )

    ledger = await the_ledger(superuser)
    assert (60, 60) == (ledger.accepted, ledger.completed)


# Depths.


async def test_depths_count_open_jobs_by_type_state_and_lane(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    for state in JobState:
        await a_job(worker, superuser, state=state)
    await a_job(worker, superuser)
    await fold_entries(maintenance, limit=5)
    await submit_job(worker, a_submission(type="process_image", lane=Lane.GENERAL))

    depths = await sample_depths(maintenance)

    assert {
        ("noop", "queued", "fast", 2),
        ("noop", "processing", "fast", 1),
        ("noop", "failed_retryable", "fast", 1),
        ("process_image", "queued", "general", 1),
    } == {(depth.type, depth.state, depth.lane, depth.jobs) for depth in depths}


async def test_the_oldest_of_each_type_and_state_tells_since_when_it_has_been_due(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    for state in JobState:
        await a_job(worker, superuser, state=state)
    for _ in range(2):
        await submit_job(worker, a_submission(type="process_image"))
    await superuser.execute(
        "UPDATE jobs SET run_at = run_at - interval '1 day' "
        "WHERE id = (SELECT max(id::text)::uuid FROM jobs)"
    )

    oldest = {
        (sample.type, sample.state): sample.age for sample in await sample_oldest(maintenance)
    }

    assert {
        ("noop", "queued"),
        ("noop", "processing"),
        ("noop", "failed_retryable"),
        ("process_image", "queued"),
    } == set(oldest)
    day = timedelta(days=1)
    assert day < oldest["process_image", "queued"] < day + timedelta(minutes=1)
    assert oldest["noop", "queued"] < timedelta(minutes=1)


async def test_operators_see_when_the_oldest_job_of_a_lane_was_due(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    for _ in range(2):
        await submit_job(worker, a_submission())
    await superuser.execute(
        "UPDATE jobs SET run_at = run_at - interval '1 day' "
        "WHERE id = (SELECT max(id::text)::uuid FROM jobs)"
    )
    oldest = await worker.fetchval("SELECT min(run_at) FROM jobs")

    (depth,) = await read_queue_health(maintenance)

    assert ("noop", "queued", "fast", 2, oldest) == (
        *(depth.job_type, depth.status, depth.lane, depth.jobs),
        depth.oldest_due,
    )


async def test_the_oldest_of_a_lane_is_found_behind_those_of_another(
    maintenance: Connection,
    worker: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As far as it is looked for; behind that, it is told as old as what was looked at last."""
    for lane in (Lane.FAST, Lane.FAST, Lane.FAST, Lane.GENERAL):
        await submit_job(worker, a_submission(lane=lane))
    due = [row[0] for row in await worker.fetch("SELECT run_at FROM jobs ORDER BY run_at")]

    found = {each.lane: each for each in await read_queue_health(maintenance)}
    monkeypatch.setattr("imagefleet.store.fleet.ledger.MOST_WALKED", 2)
    nearby = {each.lane: each for each in await read_queue_health(maintenance)}

    assert {Lane.FAST: (3, due[0]), Lane.GENERAL: (1, due[3])} == {
        lane: (each.jobs, each.oldest_due) for lane, each in found.items()
    }
    assert due[1] == nearby["general"].oldest_due


async def test_until_the_book_is_open_depths_are_counted_and_the_ledger_says_nothing(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    await a_job(worker, superuser)
    await superuser.execute("UPDATE ledger_proof SET opened_at = NULL")

    assert None is await read_ledger(maintenance)
    assert [Depth(type="noop", state="queued", lane="fast", jobs=1)] == await sample_depths(
        maintenance
    )
    assert 1 == (await read_balance(maintenance)).open, "which operators asked for: it is counted"
