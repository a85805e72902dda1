"""What moved between the snapshot of a claim and its locks is contended, never judged by halves."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from imagefleet.errors import ClaimLost
from imagefleet.jobs.lifecycle import Completed, Released, Retry
from imagefleet.jobs.model import (
    CancelCode,
    ClaimAnswer,
    JobId,
    JobState,
    PauseScope,
    Verdict,
    WorkerId,
)
from imagefleet.store.fleet.pauses import Pause, pause, resume
from imagefleet.store.fleet.workers import retire_worker
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.store.jobs.rings import confirm_rings
from imagefleet.store.jobs.submissions import submit_job, submit_jobs
from tests.conftest import OpenConnection
from tests.support.database import Database, driver_of
from tests.support.factories import (
    ALL_LANES,
    TENANT,
    TYPES,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    due_rings,
    make_due,
    open_breaker,
    settle_job,
)
from tests.support.races import meanwhile
from tests.support.rows import job_row, ring_row, running_job, the_ring

HOUR = timedelta(hours=1)
EVERYTHING = Pause(scope=PauseScope.ALL)
PHOTO = Pause(scope=PauseScope.TARGET, name="photo", tenant_id=TENANT)


@asynccontextmanager
async def a_claim_with_an_old_snapshot(
    superuser: OpenConnection, database: Database, job_ids: Sequence[JobId], me: WorkerId
) -> AsyncIterator[list[ClaimAnswer]]:
    """The claim has its snapshot when the body begins, and looks at its first row after it.

    What it waits for is its own row among the workers, the first that it locks.
    """
    answers: list[ClaimAnswer] = []
    async with database.connect("worker") as late, database.connect("superuser") as watcher:
        claim = claim_jobs(late, job_ids, worker_id=me, lanes=ALL_LANES, types=TYPES)
        transaction = driver_of(superuser).transaction()
        await transaction.start()
        await superuser.execute("SELECT FROM workers WHERE id = $1 FOR UPDATE", me)
        async with meanwhile(watcher, superuser, late, claim) as task:
            yield answers
            await transaction.commit()
        answers += task.result()


async def test_a_job_that_moved_since_the_snapshot_is_contended(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    """Its state is the old one again, but it is not the same turn of the job."""
    late, quick = await a_worker(worker), await a_worker(worker)
    job = await a_job(worker, superuser, state=JobState.FAILED_RETRYABLE)

    async with a_claim_with_an_old_snapshot(superuser, database, [job.job_id], late) as answers:
        await claim_job(worker, job.job_id, quick)
        again = MadeJob(job_id=job.job_id, claim_no=2, worker_id=quick)
        await settle_job(worker, again, Released(why="drain"))

    assert [answer.verdict for answer in answers] == [Verdict.CONTENDED]
    assert (await job_row(worker, job.job_id))["state"] == "failed_retryable"


async def test_a_job_that_finished_since_the_snapshot_is_contended_once(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    late, quick = await a_worker(worker), await a_worker(worker)
    submitted = await submit_job(worker, a_submission())

    async with a_claim_with_an_old_snapshot(
        superuser, database, [submitted.job_id], late
    ) as answers:
        await claim_job(worker, submitted.job_id, quick)
        job = MadeJob(job_id=submitted.job_id, claim_no=1, worker_id=quick)
        await settle_job(worker, job, Completed())
    (again,) = [await claim_job(worker, submitted.job_id, late)]

    assert [answer.verdict for answer in answers] == [Verdict.CONTENDED]
    assert again.verdict is Verdict.FINISHED


async def test_a_target_that_was_used_since_the_snapshot_is_contended(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    """The older job was not due in the snapshot, has run since, and now blocks by its backoff."""
    late, quick = await a_worker(worker), await a_worker(worker)
    older = await submit_job(worker, a_submission(target="photo", run_at=datetime.now(UTC) + HOUR))
    younger = await submit_job(worker, a_submission(target="photo"))

    async with a_claim_with_an_old_snapshot(superuser, database, [younger.job_id], late) as answers:
        async with database.connect("superuser") as clock:
            await make_due(clock, older.job_id)
        await claim_job(worker, older.job_id, quick)
        job = MadeJob(job_id=older.job_id, claim_no=1, worker_id=quick)
        await settle_job(worker, job, Retry(code="unavailable", message="later"))
    again = await claim_job(worker, younger.job_id, late)

    assert [answer.verdict for answer in answers] == [Verdict.CONTENDED]
    assert (again.verdict, again.why) == (Verdict.TARGET_BUSY, str(older.job_id))


async def test_a_flag_raised_since_the_snapshot_is_obeyed(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    late = await a_worker(worker)
    submitted = await submit_job(worker, a_submission())

    async with a_claim_with_an_old_snapshot(
        superuser, database, [submitted.job_id], late
    ) as answers:
        await cancel_job(worker, submitted.job_id, code=CancelCode.CANCELLED, detail=None)

    assert [answer.verdict for answer in answers] == [Verdict.CANCELLED]


async def test_a_row_that_somebody_holds_this_instant_is_contended_and_left_alone(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    of_a_held_target, held = (
        await submit_job(worker, a_submission(target="photo")),
        await submit_job(worker, a_submission()),
    )
    before = await worker.fetch("SELECT * FROM rings ORDER BY job_id")

    async with superuser.transaction():
        await superuser.execute("SELECT FROM targets FOR UPDATE")
        await superuser.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", held.job_id)
        answers = await claim_jobs(
            worker,
            [of_a_held_target.job_id, held.job_id],
            worker_id=me,
            lanes=ALL_LANES,
            types=TYPES,
        )

    assert [answer.verdict for answer in answers] == [Verdict.CONTENDED, Verdict.CONTENDED]
    assert before == await worker.fetch("SELECT * FROM rings ORDER BY job_id")


@pytest.mark.parametrize("role", ["dispatcher", "submitter"])
async def test_a_ring_that_is_confirmed_beside_the_claim_is_deleted_or_deferred_all_the_same(
    worker: OpenConnection,
    api: OpenConnection,
    maintenance: OpenConnection,
    superuser: OpenConnection,
    role: str,
) -> None:
    me = await a_worker(worker)
    runs = await submit_job(worker, a_submission())
    waits = await submit_job(worker, a_submission(services=("s3",)))
    await open_breaker(worker)
    ringer = maintenance if role == "dispatcher" else api

    transaction = driver_of(ringer).transaction()
    await transaction.start()
    await confirm_rings(ringer, await due_rings(ringer))
    claim = claim_jobs(
        worker, [runs.job_id, waits.job_id], worker_id=me, lanes=ALL_LANES, types=TYPES
    )
    async with meanwhile(superuser, ringer, worker, claim) as task:
        await transaction.commit()

    verdicts = [answer.verdict for answer in task.result()]
    assert verdicts == [Verdict.CLAIMED, Verdict.BREAKER]
    assert await ring_row(worker, runs.job_id) is None
    ring = await the_ring(worker, waits.job_id)
    assert (ring["sent_at"], ring["sends"]) == (None, 0)
    assert timedelta(0) < ring["next_in"] <= timedelta(seconds=1)


@pytest.mark.parametrize("avoided", ["", "hashjoin mergejoin", "nestloop", "indexscan bitmapscan"])
async def test_of_many_rings_that_were_pushed_since_the_snapshot_none_stays(
    database: Database, worker: OpenConnection, superuser: OpenConnection, avoided: str
) -> None:
    me = await a_worker(worker)
    submissions = [a_submission(target=f"photo-{n}" if n % 2 else None) for n in range(5)]
    await submit_jobs(worker, submissions)
    for way in avoided.split():
        await superuser.execute(f"ALTER DATABASE {database.name} SET enable_{way} = off")

    ids = [submission.job_id for submission in submissions]
    async with a_claim_with_an_old_snapshot(superuser, database, ids, me) as answers:
        await superuser.execute("UPDATE rings SET next_at = next_at + interval '1 minute'")

    assert [Verdict.CLAIMED] * 5 == [answer.verdict for answer in answers]
    assert [] == await worker.fetch("SELECT job_id FROM rings")


async def test_a_claim_that_still_saw_the_pause_of_a_target_does_not_undo_the_ring_of_the_resume(
    worker: OpenConnection, operator: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission(target="photo"))
    await pause(operator, PHOTO, by="tests", reason="a test")

    transaction = driver_of(operator).transaction()
    await transaction.start()
    await operator.execute("DELETE FROM pauses")
    await operator.execute("UPDATE rings SET next_at = now()")  # as a resume, but for its lock
    claim = claim_job(worker, submitted.job_id, me)
    async with meanwhile(superuser, operator, worker, claim) as task:
        await transaction.commit()

    ring = await ring_row(worker, submitted.job_id)
    assert task.result().verdict is Verdict.PAUSED
    assert ring is not None
    assert ring["next_in"] <= timedelta(0)


async def test_a_claim_that_still_saw_the_pause_leaves_its_job_to_the_next_look(
    worker: OpenConnection, operator: OpenConnection
) -> None:
    """A resume writes no ring: who comes just before it comes again within a second."""
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission())
    await pause(operator, EVERYTHING, by="tests", reason="a test")

    transaction = driver_of(operator).transaction()
    await transaction.start()
    assert await resume(operator, EVERYTHING)
    answer = await claim_job(worker, submitted.job_id, me)
    await transaction.commit()

    ring = await ring_row(worker, submitted.job_id)
    assert answer.verdict is Verdict.PAUSED
    assert ring is not None
    assert (ring["sent_at"], ring["parked"]) == (None, False)
    assert ring["next_in"] <= timedelta(seconds=1)


async def test_a_claim_waits_for_the_rescue_of_its_own_worker_and_then_has_nothing(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission(target="photo"))
    (seen,) = await look_at_workers(maintenance)

    transaction = driver_of(maintenance).transaction()
    await transaction.start()
    assert await rescue_worker(maintenance, seen) is not None

    async def claim() -> None:
        with pytest.raises(ClaimLost):
            await claim_job(worker, submitted.job_id, me)

    async with meanwhile(superuser, maintenance, worker, claim()):
        await transaction.commit()

    assert (await job_row(worker, submitted.job_id))["claim_no"] == 0
    assert await running_job(worker, "photo") is None


async def test_a_worker_does_not_retire_under_a_claim_in_flight(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission())

    async with database.connect("worker") as leaving:
        transaction = driver_of(worker).transaction()
        await transaction.start()
        assert (await claim_job(worker, submitted.job_id, me)).verdict is Verdict.CLAIMED
        async with meanwhile(superuser, worker, leaving, retire_worker(leaving, me)) as task:
            await transaction.commit()

    assert task.result() is False
    assert (await job_row(worker, submitted.job_id))["locked_by"] == me


async def test_what_a_claim_parks_while_its_target_is_being_resumed_is_rung_by_the_resume(
    worker: OpenConnection, operator: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission(target="photo"))
    await pause(operator, PHOTO, by="tests", reason="a test")

    transaction = driver_of(worker).transaction()
    await transaction.start()
    answer = await claim_job(worker, submitted.job_id, me)
    assert answer.verdict is Verdict.PAUSED
    async with meanwhile(superuser, worker, operator, resume(operator, PHOTO)) as task:
        await transaction.commit()

    ring = await ring_row(worker, submitted.job_id)
    assert task.result() is True
    assert ring is not None
    assert not ring["parked"]
    assert ring["next_in"] <= timedelta(0)


async def test_a_rescue_waits_for_a_claim_in_flight_and_takes_it_back_too(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission(target="photo"))
    (seen,) = await look_at_workers(maintenance)

    transaction = driver_of(worker).transaction()
    await transaction.start()
    assert (await claim_job(worker, submitted.job_id, me)).verdict is Verdict.CLAIMED
    async with meanwhile(superuser, worker, maintenance, rescue_worker(maintenance, seen)) as task:
        await transaction.commit()

    rescue = task.result()
    assert rescue is not None
    assert rescue.retried == (submitted.job_id,)
