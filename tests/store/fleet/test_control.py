"""Flags, pauses and the registry: rows that steer the fleet while it runs."""

from datetime import timedelta
from typing import Any

import pytest

from imagefleet.errors import NotFound
from imagefleet.jobs.lifecycle import ResultReason
from imagefleet.jobs.model import (
    CancelCode,
    JobId,
    JobState,
    Lane,
    PauseScope,
    TenantId,
    Verdict,
    new_job_id,
)
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import Pause, find_refusal, pause, resume
from imagefleet.store.fleet.workers import retire_worker, start_drain
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.rings import ring_now
from imagefleet.store.jobs.submissions import submit_job
from tests.support.factories import (
    CORRUPT,
    TENANT,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    settle_job,
)
from tests.support.rows import job_row, ring_row

QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState
IMAGE = "image:1"
EVERYTHING = Pause(scope=PauseScope.ALL)
TYPE = Pause(scope=PauseScope.TYPE, name="noop")
LANE = Pause(scope=PauseScope.LANE, name="fast")
TARGET = Pause(scope=PauseScope.TARGET, name=IMAGE, tenant_id=TENANT)
OF_TENANT = Pause(scope=PauseScope.TENANT, tenant_id=TENANT)
OF_TENANT_AND_TYPE = Pause(scope=PauseScope.TENANT, tenant_id=TENANT, name="noop")
EACH_SCOPE = pytest.mark.parametrize(
    "what", [EVERYTHING, TYPE, LANE, TARGET, OF_TENANT, OF_TENANT_AND_TYPE], ids=str
)


async def due_now(connection: Connection, job_id: JobId) -> bool:
    """Without any message, and with nothing to wait for but its turn."""
    ring = await ring_row(connection, job_id)
    assert ring is not None
    if ring["parked"] or ring["sent_at"] is not None:
        return False
    return bool(ring["next_in"] <= timedelta(0) and ring["sends"] == 0)


async def push_rings_forward(superuser: Connection) -> None:
    """As after some rounds of ringing."""
    await superuser.execute(
        "UPDATE rings SET next_at = now() + interval '1 hour', sent_at = now(), sends = 7"
    )


# Cancellation.


@pytest.mark.parametrize("state", [QUEUED, FAILED_RETRYABLE])
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
    job = await a_job(worker, superuser, state=PROCESSING)

    answer = await cancel_job(worker, job.job_id, code=CancelCode.CANCELLED, detail=None)

    assert (ResultReason.REQUESTED, ()) == answer
    assert (await job_row(worker, job.job_id))["cancel_requested_at"] is not None


@pytest.mark.parametrize("state", [COMPLETED, FAILED])
async def test_a_finished_job_is_not_flagged(
    state: JobState, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=state)

    answer = await cancel_job(worker, job.job_id, code=CancelCode.CANCELLED, detail=None)

    assert (ResultReason.ALREADY_FINISHED, ()) == answer
    assert (await job_row(worker, job.job_id))["cancel_requested_at"] is None


@pytest.mark.parametrize("state", [QUEUED, PROCESSING, FAILED_RETRYABLE])
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


@pytest.mark.parametrize("state", [QUEUED, FAILED_RETRYABLE])
async def test_a_flag_outlives_the_claim_until_the_job_is_settled_by_it(
    state: JobState, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=state, flag=CancelCode.CANCELLED, due=False)

    answer = await claim_job(worker, job.job_id, job.worker_id)

    row = await job_row(worker, job.job_id)
    assert (Verdict.CANCELLED, PROCESSING) == (answer.verdict, row["state"])
    assert row["cancel_requested_at"] is not None


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


@pytest.mark.parametrize("state", [QUEUED, FAILED_RETRYABLE])
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


@pytest.mark.parametrize("state", [PROCESSING, COMPLETED, FAILED])
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


# Pauses.


async def three_jobs(worker: Connection, superuser: Connection) -> tuple[MadeJob, MadeJob, MadeJob]:
    """Due, for later, and one about something else altogether."""
    return (
        await a_job(worker, superuser, submission=a_submission(target=IMAGE)),
        await a_job(worker, superuser, submission=a_submission(target=IMAGE), due=False),
        await a_job(
            worker,
            superuser,
            submission=a_submission(type="process_image", lane=Lane.GENERAL, target="image:2"),
        ),
    )


@EACH_SCOPE
async def test_a_pause_holds_back_what_matches_and_nothing_else(
    what: Pause,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    held, _, other = await three_jobs(worker, superuser)
    await pause(operator, what, by="tests", reason="why")

    verdicts = [
        (await claim_job(worker, job.job_id, job.worker_id)).verdict for job in (held, other)
    ]

    others = Verdict.PAUSED if what in {EVERYTHING, OF_TENANT} else Verdict.CLAIMED
    assert [Verdict.PAUSED, others] == verdicts


@pytest.mark.parametrize(
    "what",
    [
        Pause(scope=PauseScope.TENANT, tenant_id="rival"),
        Pause(scope=PauseScope.TENANT, tenant_id="rival", name="noop"),
        Pause(scope=PauseScope.TENANT, tenant_id=TENANT, name="process_image"),
    ],
    ids=str,
)
async def test_a_pause_of_another_tenant_or_of_another_type_of_it_holds_nothing_of_ours(
    what: Pause,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    job = await a_job(worker, superuser)
    await pause(operator, what, by="tests", reason="why")

    assert Verdict.CLAIMED is (await claim_job(worker, job.job_id, job.worker_id)).verdict


async def test_what_is_submitted_for_a_paused_tenant_is_not_rung_by_who_submits(
    api: Connection, operator: Connection
) -> None:
    """But what no pause holds back is, and so is what others submit."""
    await pause(operator, OF_TENANT_AND_TYPE, by="tests", reason="why")
    wishes: list[dict[str, Any]] = [
        {},
        {"preempts": True},
        {"type": "process_image"},
        {"tenant_id": TenantId("rival")},
    ]

    rung = [(await submit_job(api, a_submission(**one))).next_at is not None for one in wishes]

    assert [False, True, True, True] == rung


@EACH_SCOPE
async def test_a_preempting_job_ignores_every_pause(
    what: Pause,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    await pause(operator, what, by="tests", reason="why")
    job = await a_job(worker, superuser, submission=a_submission(target=IMAGE, preempts=True))

    assert Verdict.CLAIMED is (await claim_job(worker, job.job_id, job.worker_id)).verdict


@EACH_SCOPE
async def test_a_running_job_finishes_under_a_pause(
    what: Pause,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    submission = a_submission(target=IMAGE)
    job = await a_job(worker, superuser, state=PROCESSING, submission=submission)
    await pause(operator, what, by="tests", reason="why")

    await settle_job(worker, job, CORRUPT)

    assert FAILED == (await job_row(worker, job.job_id))["state"]


@EACH_SCOPE
async def test_resume_lets_go_what_was_held_back_and_writes_no_row_but_the_head_of_a_target(
    what: Pause,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    """A pause of a million jobs is one row, and so is its end."""
    held, _, _ = await three_jobs(worker, superuser)
    await pause(operator, what, by="tests", reason="why")
    await push_rings_forward(superuser)
    before = await superuser.fetch("SELECT * FROM rings ORDER BY job_id")

    assert await resume(operator, what)

    after = await superuser.fetch("SELECT * FROM rings ORDER BY job_id")
    changed = [row["job_id"] for row, was in zip(after, before, strict=True) if row != was]
    assert ([held.job_id] if what is TARGET else []) == changed
    assert await due_now(worker, held.job_id) is (what is TARGET)
    assert [] == await operator.fetch("SELECT FROM pauses")
    assert Verdict.CLAIMED is (await claim_job(worker, held.job_id, held.worker_id)).verdict


@EACH_SCOPE
async def test_resume_says_when_nothing_was_paused(
    what: Pause,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    held, _, _ = await three_jobs(worker, superuser)
    await push_rings_forward(superuser)

    assert not await resume(operator, what)
    assert not await due_now(worker, held.job_id)


async def test_a_second_pause_tells_its_own_reason(operator: Connection) -> None:
    await pause(operator, TYPE, by="ada", reason="first", refuse_new=True)

    await pause(operator, TYPE, by="ben", reason="second")

    rows = await operator.fetch("SELECT paused_by, reason, refuse_new FROM pauses")
    assert [("ben", "second", False)] == [tuple(row) for row in rows]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (EVERYTHING, "all: maintenance"),
        (TYPE, "type noop: maintenance"),
        (LANE, "lane fast: maintenance"),
        (OF_TENANT, "tenant: maintenance"),
        (OF_TENANT_AND_TYPE, "tenant noop: maintenance"),
    ],
)
async def test_a_pause_that_refuses_new_jobs_says_why(
    what: Pause, expected: str, api: Connection, operator: Connection
) -> None:
    await pause(operator, what, by="tests", reason="maintenance", refuse_new=True)

    assert expected == await find_refusal(api, "noop", Lane.FAST, TENANT)


async def test_a_pause_that_refuses_nothing_is_no_refusal(
    api: Connection, operator: Connection
) -> None:
    await pause(operator, EVERYTHING, by="tests", reason="why")

    assert await find_refusal(api, "noop", Lane.FAST, TENANT) is None


async def test_a_refusal_of_other_jobs_is_none_of_ours(
    api: Connection, operator: Connection
) -> None:
    await pause(operator, TYPE, by="tests", reason="why", refuse_new=True)
    await pause(operator, LANE, by="tests", reason="why", refuse_new=True)
    await pause(operator, OF_TENANT_AND_TYPE, by="tests", reason="why", refuse_new=True)
    rivals = Pause(scope=PauseScope.TENANT, tenant_id="rival")
    await pause(operator, rivals, by="tests", reason="why", refuse_new=True)

    assert await find_refusal(api, "process_image", Lane.GENERAL, TENANT) is None


# The registry.


async def test_a_drain_begins_once(worker: Connection) -> None:
    worker_id = await a_worker(worker)
    since = "SELECT draining_since FROM workers"
    await start_drain(worker, worker_id)
    first = await worker.fetchval(since)

    await start_drain(worker, worker_id)

    assert first is not None
    assert first == await worker.fetchval(since)


async def test_a_worker_that_holds_a_job_may_not_retire(
    worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=PROCESSING)
    while_held = await retire_worker(worker, job.worker_id)
    await settle_job(worker, job, CORRUPT)

    assert (False, True) == (while_held, await retire_worker(worker, job.worker_id))


async def test_a_worker_retires_once(worker: Connection) -> None:
    worker_id = await a_worker(worker)

    first = await retire_worker(worker, worker_id)

    assert (True, False) == (first, await retire_worker(worker, worker_id))


async def test_a_flagged_job_is_rung_in_its_own_lane_and_for_its_own_tenant(
    worker: Connection,
) -> None:
    submission = a_submission(lane=Lane.GENERAL, tenant_id=TenantId("other"))
    await submit_job(worker, submission)

    _, (ring,) = await cancel_job(worker, submission.job_id, code=CancelCode.CANCELLED, detail=None)

    assert (Lane.GENERAL, "other") == (ring.lane, ring.tenant_id)
