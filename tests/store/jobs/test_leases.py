"""Keeping claims: beats, renewals, and the claims nobody knows of."""

from dataclasses import replace
from datetime import timedelta

import pytest

from imagefleet.errors import ClaimLost
from imagefleet.jobs.lifecycle import Released
from imagefleet.jobs.model import CancelCode, JobState, Verdict
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.leases import Beat, Renewal, renew_claims, report_progress
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.settling import Settled
from tests.conftest import OpenConnection
from tests.support.database import Database, driver_of
from tests.support.eventually import eventually
from tests.support.factories import (
    ALL_LANES,
    TYPES,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    settle_job,
)
from tests.support.races import meanwhile
from tests.support.rows import attempts_rows, job_row, ring_row

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
AGE = """
UPDATE jobs SET locked_at = locked_at - $2::interval, claimed_at = claimed_at - $3::interval
 WHERE id = $1
"""


def renewal_of(job: MadeJob, renewable_for: timedelta = HOUR) -> Renewal:
    return Renewal(job_id=job.job_id, claim_no=job.claim_no, renewable_for=renewable_for)


async def test_a_beat_counts_and_says_that_its_worker_is_alive(worker: OpenConnection) -> None:
    me = await a_worker(worker)

    first, second = await renew_claims(worker, me, []), await renew_claims(worker, me, [])

    nothing = Beat(alive=True, cancelled=frozenset(), lost=frozenset(), strays=frozenset())
    assert [first, second] == [nothing, nothing]
    assert await worker.fetchval("SELECT beats FROM workers WHERE id = $1", me) == 2


@pytest.mark.parametrize(
    ("locked", "claimed", "renewed"),
    [
        pytest.param(timedelta(minutes=3), timedelta(minutes=3), False, id="young"),
        pytest.param(timedelta(minutes=4), timedelta(minutes=4), True, id="over a third"),
        pytest.param(timedelta(minutes=4), timedelta(minutes=61), False, id="too long a run"),
        pytest.param(timedelta(minutes=11), timedelta(minutes=11), True, id="expired, not taken"),
    ],
)
async def test_a_lock_is_renewed_when_a_third_is_over_and_the_run_is_not_too_long(
    worker: OpenConnection,
    superuser: OpenConnection,
    locked: timedelta,
    claimed: timedelta,
    *,
    renewed: bool,
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await superuser.execute(AGE, job.job_id, locked, claimed)
    before = await job_row(worker, job.job_id)

    beat = await renew_claims(worker, job.worker_id, [renewal_of(job)])

    after = await job_row(worker, job.job_id)
    assert beat.alive
    assert beat.lost == frozenset()
    assert (after["locked_at"] > before["locked_at"]) is renewed


async def test_a_beat_renews_no_claim_but_the_one_it_names(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await superuser.execute(AGE, job.job_id, 5 * MINUTE, 5 * MINUTE)
    before = await job_row(worker, job.job_id)

    await renew_claims(worker, job.worker_id, [renewal_of(replace(job, claim_no=2))])
    await renew_claims(worker, await a_worker(worker), [renewal_of(job)])

    assert before == await job_row(worker, job.job_id)


async def test_a_beat_tells_what_was_flagged(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await cancel_job(worker, job.job_id, code=CancelCode.CANCELLED, detail=None)

    beat = await renew_claims(worker, job.worker_id, [renewal_of(job)])

    assert beat.cancelled == {(job.job_id, job.claim_no)}


async def test_a_beat_that_names_two_claims_of_one_job_is_answered_for_each(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    """The first is lost, to the worker itself; only the second can be cancelled, and is kept."""
    job = await a_job(worker, superuser, state=JobState.PROCESSING, lock_expired=True)
    await claim_job(worker, job.job_id, job.worker_id)
    await cancel_job(worker, job.job_id, code=CancelCode.CANCELLED, detail=None)

    beat = await renew_claims(
        worker, job.worker_id, [renewal_of(job), renewal_of(replace(job, claim_no=2))]
    )

    assert beat.lost == {(job.job_id, 1)}
    assert beat.cancelled == {(job.job_id, 2)}
    assert beat.strays == frozenset()


async def test_progress_is_kept_renews_the_lock_and_tells_of_a_flag(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await superuser.execute(AGE, job.job_id, MINUTE, MINUTE)
    before = await job_row(worker, job.job_id)

    first = await report_progress(worker, renewal_of(job), done=3, total=9, cursor={"at": 3})
    await cancel_job(worker, job.job_id, code=CancelCode.CANCELLED, detail=None)
    second = await report_progress(worker, renewal_of(job), done=4, total=9, cursor=None)

    row = await job_row(worker, job.job_id)
    assert (first, second) == (False, True)
    assert (row["progress_done"], row["progress_cursor"]) == (4, {"at": 3})
    assert row["locked_at"] > before["locked_at"]


async def test_nothing_is_told_of_a_claim_that_has_ended(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    """Nobody has claimed the job since, so it still has that number."""
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await settle_job(worker, job, Released(why="drain"))
    before = await job_row(worker, job.job_id)

    with pytest.raises(ClaimLost):
        await report_progress(worker, renewal_of(job), done=3, total=9, cursor={"at": 3})

    assert before == await job_row(worker, job.job_id)


async def test_progress_does_not_renew_a_run_that_is_too_long(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await superuser.execute(AGE, job.job_id, MINUTE, 2 * MINUTE)
    before = await job_row(worker, job.job_id)

    await report_progress(worker, renewal_of(job, MINUTE), done=3, total=9, cursor=None)

    assert (await job_row(worker, job.job_id))["locked_at"] == before["locked_at"]


async def test_a_claim_whose_answer_was_lost_is_a_stray_and_comes_back_uncharged(
    database: Database, worker: OpenConnection, superuser: OpenConnection
) -> None:
    """The claim is committed and its connection breaks: nobody knows that the job is held."""
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission())
    async with database.connect("worker") as doomed:
        transaction = driver_of(superuser).transaction()
        await transaction.start()
        await superuser.execute("SELECT FROM workers WHERE id = $1 FOR UPDATE", me)
        claim = claim_jobs(doomed, [submitted.job_id], worker_id=me, lanes=ALL_LANES, types=TYPES)
        with pytest.raises(ExceptionGroup):
            async with meanwhile(worker, superuser, doomed, claim):
                doomed.terminate()
        await transaction.commit()

    async def is_held() -> bool:
        row = await job_row(worker, submitted.job_id)
        return bool(row["state"] == "processing")

    await eventually(is_held)

    beats = [await renew_claims(worker, me, []) for _ in range(2)]
    stray = MadeJob(job_id=submitted.job_id, claim_no=1, worker_id=me)
    receipt = await settle_job(worker, stray, Released(why="stray"))

    assert [beat.strays for beat in beats] == [{(submitted.job_id, 1)}] * 2
    assert receipt.settled is Settled.WRITTEN
    row, (ended,) = (
        await job_row(worker, submitted.job_id),
        await attempts_rows(worker, submitted.job_id),
    )
    assert (row["state"], row["attempts"]) == ("failed_retryable", 0)
    assert (ended["outcome"], ended["why"], ended["charged"]) == ("released", "stray", False)
    assert await ring_row(worker, submitted.job_id) is not None
    again = await claim_job(worker, submitted.job_id, me)
    assert again.verdict is Verdict.CLAIMED
    assert again.claim is not None
    assert again.claim.attempts == 1


async def test_a_beat_in_flight_saves_its_worker_from_the_rescuer(
    worker: OpenConnection,
    maintenance: OpenConnection,
    superuser: OpenConnection,
) -> None:
    """The rescuer looked before it, and writes after it."""
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    (seen,) = await look_at_workers(maintenance)

    transaction = driver_of(worker).transaction()
    await transaction.start()
    await renew_claims(worker, job.worker_id, [renewal_of(job)])
    async with meanwhile(superuser, worker, maintenance, rescue_worker(maintenance, seen)) as task:
        await transaction.commit()

    assert task.result() is None
    assert (await job_row(worker, job.job_id))["state"] == "processing"


async def test_a_beat_beside_the_rescue_of_its_worker_learns_of_its_death(
    worker: OpenConnection,
    maintenance: OpenConnection,
    superuser: OpenConnection,
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await superuser.execute(AGE, job.job_id, 5 * MINUTE, 5 * MINUTE)
    (seen,) = await look_at_workers(maintenance)

    transaction = driver_of(maintenance).transaction()
    await transaction.start()
    assert await rescue_worker(maintenance, seen) is not None
    beat = renew_claims(worker, job.worker_id, [renewal_of(job)])
    async with meanwhile(superuser, maintenance, worker, beat) as task:
        await transaction.commit()

    assert not task.result().alive
    row = await job_row(worker, job.job_id)
    assert (row["state"], row["locked_at"]) == ("failed_retryable", None)
