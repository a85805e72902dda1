"""A flag, and the ring that tells of it; and what is made due now."""

import pytest

from imagefleet.errors import NotFound
from imagefleet.jobs.lifecycle import Released, ResultReason
from imagefleet.jobs.model import (
    CancelCode,
    JobState,
    Lane,
    TenantId,
    Verdict,
    new_job_id,
)
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.rings import ring_now
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.settling import Settlement, settle_jobs
from tests.support.factories import (
    a_job,
    a_submission,
    a_worker,
    claim_job,
    push_rings_forward,
)
from tests.support.rows import due_now, job_row

# Cancellation.


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.FAILED_RETRYABLE])
async def test_a_waiting_job_is_flagged_and_rung(
    state: JobState, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=state, due=False)
    await push_rings_forward(superuser)

    reason, rings = await cancel_job(worker, job.job_id, code=CancelCode.CANCELLED, detail="why")

    row = await job_row(worker, job.job_id)
    assert (ResultReason.REQUESTED, [job.job_id]) == (reason, [ring.job_id for ring in rings])
    assert ("cancelled", "why", state) == (row["cancel_code"], row["cancel_detail"], row["state"])
    assert await due_now(worker, job.job_id)


async def test_a_running_job_is_flagged_and_has_no_ring(
    worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)

    answer = await cancel_job(worker, job.job_id, code=CancelCode.CANCELLED, detail=None)

    assert (ResultReason.REQUESTED, ()) == answer
    assert (await job_row(worker, job.job_id))["cancel_requested_at"] is not None


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED])
async def test_a_finished_job_is_not_flagged(
    state: JobState, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=state)

    answer = await cancel_job(worker, job.job_id, code=CancelCode.CANCELLED, detail=None)

    assert (ResultReason.ALREADY_FINISHED, ()) == answer
    assert (await job_row(worker, job.job_id))["cancel_requested_at"] is None


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.PROCESSING, JobState.FAILED_RETRYABLE])
async def test_the_first_flag_stays(
    state: JobState, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=state, flag=CancelCode.IMAGE_DELETED)
    before = await job_row(worker, job.job_id)

    reason, _ = await cancel_job(worker, job.job_id, code=CancelCode.CANCELLED, detail="later")

    after = await job_row(worker, job.job_id)
    assert reason is ResultReason.REQUESTED
    for column in ("cancel_requested_at", "cancel_code", "cancel_detail"):
        assert before[column] == after[column]


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.FAILED_RETRYABLE])
async def test_a_flag_outlives_the_claim_until_the_job_is_settled_by_it(
    state: JobState, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=state, flag=CancelCode.CANCELLED, due=False)

    answer = await claim_job(worker, job.job_id, job.worker_id)

    row = await job_row(worker, job.job_id)
    assert (Verdict.CANCELLED, JobState.PROCESSING) == (answer.verdict, row["state"])
    assert row["cancel_requested_at"] is not None


async def test_a_flagged_job_that_ends_without_its_target_rings_who_is_next(
    worker: Connection, superuser: Connection
) -> None:
    first, second = a_submission(target="photo"), a_submission(target="photo")
    for submission in (first, second):
        await submit_job(worker, submission)
    await cancel_job(worker, first.job_id, code=CancelCode.CANCELLED, detail=None)
    me = await a_worker(worker)
    claim = (await claim_job(worker, first.job_id, me)).claim
    assert claim is not None
    assert not await due_now(worker, second.job_id), "the end of the first is to ring it"

    flagged = Settlement.of(claim, Released(why="flagged"), RetryPolicy())
    report = await settle_jobs(worker, me, [flagged])

    assert [second.job_id] == [ring.job_id for ring in report.rings]
    assert await due_now(worker, second.job_id)


async def test_another_tenants_job_cannot_be_flagged(
    worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser)

    with pytest.raises(NotFound):
        await cancel_job(
            worker,
            job.job_id,
            code=CancelCode.CANCELLED,
            detail=None,
            tenant_id=TenantId("other"),
        )

    assert (await job_row(worker, job.job_id))["cancel_requested_at"] is None


async def test_an_unknown_job_cannot_be_flagged(worker: Connection) -> None:
    with pytest.raises(NotFound):
        await cancel_job(worker, new_job_id(), code=CancelCode.CANCELLED, detail=None)


# Retry now.


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.FAILED_RETRYABLE])
async def test_retry_now_makes_a_waiting_job_due_and_rings_it(
    state: JobState,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    job = await a_job(worker, superuser, state=state, due=False)
    await push_rings_forward(superuser)

    rings = await ring_now(operator, job.job_id) or ()

    assert [job.job_id] == [ring.job_id for ring in rings]
    assert await due_now(worker, job.job_id)
    assert Verdict.CLAIMED is (await claim_job(worker, job.job_id, job.worker_id)).verdict


@pytest.mark.parametrize("state", [JobState.PROCESSING, JobState.COMPLETED, JobState.FAILED])
async def test_retry_now_leaves_alone_what_does_not_wait(
    state: JobState,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    job = await a_job(worker, superuser, state=state)
    before = await job_row(worker, job.job_id)

    assert None is await ring_now(operator, job.job_id)
    assert before == await job_row(worker, job.job_id)


async def test_a_flagged_job_is_rung_in_its_own_lane_and_for_its_own_tenant(
    worker: Connection,
) -> None:
    submission = a_submission(lane=Lane.GENERAL, tenant_id=TenantId("other"))
    await submit_job(worker, submission)

    _, (ring,) = await cancel_job(worker, submission.job_id, code=CancelCode.CANCELLED, detail=None)

    assert (Lane.GENERAL, "other") == (ring.lane, ring.tenant_id)
