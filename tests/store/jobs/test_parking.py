"""Who waits behind its target has no message and no time: it is parked, until its turn comes."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from imagefleet.jobs.lifecycle import Completed, Retry
from imagefleet.jobs.model import (
    CancelCode,
    JobId,
    JobState,
    PauseScope,
    Submission,
    Submitted,
    TenantId,
    Verdict,
    WorkerId,
    new_job_id,
)
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import Pause, pause, resume
from imagefleet.store.images.deleting import flag_void
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.rings import URGENT, ring_heads, ring_now
from imagefleet.store.jobs.submissions import submit_job, submit_jobs
from imagefleet.store.settling import Settlement, settle_jobs
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
    announce,
    claim_job,
    hold_job,
    make_due,
    settle_job,
)
from tests.support.races import meanwhile
from tests.support.rows import due_now, ring_row, the_ring

PHOTO = Pause(scope=PauseScope.TARGET, name="photo", tenant_id=TENANT)
LATER = timedelta(hours=1)
NO_JOB = JobId(UUID(int=0))
UNAVAILABLE = Retry(code="unavailable", message="later")


async def is_parked(connection: Connection, job_id: JobId) -> bool:
    ring = await the_ring(connection, job_id)
    assert not (ring["parked"] and ring["sent_at"])
    return bool(ring["parked"])


async def who_is_parked(
    connection: Connection, jobs: Iterable[Submission | Submitted]
) -> list[bool]:
    return [await is_parked(connection, job.job_id) for job in jobs]


async def an_elder(
    worker: Connection,
    superuser: Connection,
    state: JobState = JobState.QUEUED,
    *,
    due: bool = True,
    flagged: bool = False,
) -> MadeJob:
    """The first job of the photo; flagged means before it was claimed."""
    return await a_job(
        worker,
        superuser,
        state=state,
        due=due,
        flag=CancelCode.CANCELLED if flagged else None,
        flagged_before_claim=flagged,
        submission=a_submission(target="photo"),
    )


async def hold_target(operator: Connection) -> None:
    await pause(operator, PHOTO, by="tests", reason="a test")


async def end(worker: Connection, job: MadeJob) -> list[JobId]:
    """Complete it; whom that rings."""
    completed = Settlement(
        job_id=job.job_id, claim_no=job.claim_no, outcome=Completed(), policy=RetryPolicy()
    )
    report = await settle_jobs(worker, job.worker_id, [completed])
    return [ring.job_id for ring in report.rings]


async def run(worker: Connection, job_id: JobId, me: WorkerId) -> list[JobId]:
    """The same of a job that is to be claimed first."""
    return await end(worker, await hold_job(worker, job_id, me))


# Submit.


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.PROCESSING, JobState.FAILED_RETRYABLE])
@pytest.mark.parametrize("due", [True, False])
async def test_behind_an_elder_that_goes_first_a_new_job_is_parked_and_not_to_be_rung(
    state: JobState,
    due: bool,  # noqa: FBT001 - a column of the table above
    worker: OpenConnection,
    superuser: OpenConnection,
) -> None:
    await an_elder(worker, superuser, state, due=due)

    submitted = await submit_job(worker, a_submission(target="photo"))

    blocks = due or state is not JobState.QUEUED
    assert await is_parked(worker, submitted.job_id) is blocks
    assert (submitted.next_at is None) is blocks


async def test_behind_an_elder_that_is_flagged_a_new_job_is_not_parked(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    await an_elder(worker, superuser, flagged=True)

    submitted = await submit_job(worker, a_submission(target="photo"))

    assert submitted.next_at is not None
    assert await due_now(worker, submitted.job_id)


async def test_behind_an_elder_that_is_being_ended_as_flagged_a_new_job_waits_for_that(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    elder = await an_elder(worker, superuser, JobState.PROCESSING, flagged=True)
    submitted = await submit_job(worker, a_submission(target="photo"))
    assert await is_parked(worker, submitted.job_id)

    await settle_job(worker, elder, UNAVAILABLE)

    assert await due_now(worker, submitted.job_id)


async def test_at_a_paused_target_a_new_job_is_parked_but_for_one_that_preempts(
    worker: OpenConnection, operator: OpenConnection
) -> None:
    await hold_target(operator)

    held = await submit_job(worker, a_submission(target="photo"))
    passes = await submit_job(worker, a_submission(target="photo", preempts=True))
    elsewhere = await submit_job(worker, a_submission(target="other"))

    parked = await who_is_parked(worker, (held, passes, elsewhere))
    assert parked == [True, False, False]
    assert [job.next_at is None for job in (held, passes, elsewhere)] == parked


async def test_the_same_target_of_another_tenant_is_another_target(
    worker: OpenConnection, operator: OpenConnection
) -> None:
    await submit_job(worker, a_submission(target="photo"))
    await hold_target(operator)
    theirs = a_submission(target="photo", tenant_id=TenantId("other"))

    submitted = await submit_job(worker, theirs)

    assert submitted.next_at is not None


async def test_of_a_batch_for_one_target_the_first_is_rung_and_the_others_are_parked(
    worker: OpenConnection,
) -> None:
    batch = [a_submission(target="photo") for _ in range(3)]

    answers = await submit_jobs(worker, batch)

    assert await who_is_parked(worker, batch) == [False, True, True]
    assert [getattr(answer, "next_at", None) is None for answer in answers] == [False, True, True]


async def test_in_a_batch_nobody_waits_for_one_of_tomorrow(worker: OpenConnection) -> None:
    tomorrow = a_submission(target="photo", run_at=datetime.now(UTC) + LATER)
    today = a_submission(target="photo")

    await submit_jobs(worker, [tomorrow, today])

    assert await who_is_parked(worker, (tomorrow, today)) == [False, False]
    assert await due_now(worker, today.job_id)


async def test_one_of_tomorrow_is_never_parked_and_rings_when_it_is_due(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    await an_elder(worker, superuser)
    tomorrow = datetime.now(UTC) + LATER

    submitted = await submit_job(worker, a_submission(target="photo", run_at=tomorrow))

    ring = await the_ring(worker, submitted.job_id)
    assert (ring["next_at"], submitted.next_at) == (tomorrow, None)


# Claim, end, and who is next.


async def test_a_claim_parks_what_must_wait_and_forgets_its_message(
    worker: OpenConnection,
) -> None:
    first, second = [a_submission(target="photo", preempts=True) for _ in range(2)]
    await submit_jobs(worker, [first, second])
    await announce(worker, second.job_id)

    answers = await claim_jobs(
        worker,
        [first.job_id, second.job_id],
        worker_id=await a_worker(worker),
        lanes=ALL_LANES,
        types=TYPES,
    )

    assert [answer.verdict for answer in answers] == [Verdict.CLAIMED, Verdict.TARGET_BUSY]
    assert await is_parked(worker, second.job_id)


async def test_each_end_rings_the_next_one_and_leaves_the_others_parked(
    worker: OpenConnection,
) -> None:
    me = await a_worker(worker)
    batch = [a_submission(target="photo") for _ in range(3)]
    await submit_jobs(worker, batch)

    ran: list[list[JobId]] = []
    for job in batch:
        waits = await who_is_parked(worker, batch[len(ran) :])
        assert waits == [False] + [True] * (len(waits) - 1)
        ran.append(await run(worker, job.job_id, me))

    assert ran == [[job.job_id] for job in batch[1:]] + [[]]


async def test_behind_a_retry_in_backoff_the_younger_stays_parked_until_that_has_run(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    elder = await an_elder(worker, superuser, JobState.PROCESSING)
    younger = await submit_job(worker, a_submission(target="photo"))
    await settle_job(worker, elder, UNAVAILABLE)
    assert await is_parked(worker, younger.job_id)

    await make_due(superuser, elder.job_id)

    assert [younger.job_id] == await run(worker, elder.job_id, elder.worker_id)


async def test_a_flag_on_the_elder_lets_the_younger_go_once_that_has_ended(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    elder = await an_elder(worker, superuser)
    younger = await submit_job(worker, a_submission(target="photo"))

    await cancel_job(worker, elder.job_id, code=CancelCode.CANCELLED, detail=None)
    await settle_job(worker, await hold_job(worker, elder.job_id, elder.worker_id), UNAVAILABLE)

    assert await due_now(worker, younger.job_id)


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.FAILED_RETRYABLE])
async def test_an_unroutable_message_of_a_paused_target_parks_nothing_that_has_a_time(
    worker: OpenConnection, operator: OpenConnection, superuser: OpenConnection, state: JobState
) -> None:
    """A resume rings only what is due: it would have been nobody's."""
    job = await an_elder(worker, superuser, state, due=False)
    await hold_target(operator)

    (answer,) = await claim_jobs(
        worker, [job.job_id], worker_id=job.worker_id, lanes=ALL_LANES, types=["other"]
    )

    assert answer.verdict is Verdict.UNROUTABLE
    assert not await is_parked(worker, job.job_id)


# Flags and retries.


async def two_of_a_target(worker: Connection, superuser: Connection) -> tuple[MadeJob, JobId]:
    elder = await an_elder(worker, superuser)
    parked = await submit_job(worker, a_submission(target="photo"))
    assert await is_parked(worker, parked.job_id)
    return elder, parked.job_id


async def test_a_flag_makes_a_parked_job_due_and_urgent(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    _, parked = await two_of_a_target(worker, superuser)

    _, rings = await cancel_job(worker, parked, code=CancelCode.CANCELLED, detail=None)

    ring = await the_ring(worker, parked)
    assert (URGENT, None) == (ring["priority"], ring["sent_at"])
    assert await due_now(worker, parked)
    assert [(parked, ring["next_at"])] == [(bell.job_id, bell.next_at) for bell in rings]
    assert Verdict.CANCELLED is (await claim_job(worker, parked, await a_worker(worker))).verdict


async def test_what_a_deleted_image_voids_is_due_and_urgent_too(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    image_id = new_job_id()
    payload = {"image_id": str(image_id)}
    jobs = [
        a_submission(type="process_image", target=f"image:{image_id}", payload=payload)
        for _ in range(2)
    ]
    await submit_jobs(worker, jobs)

    rings = await flag_void(worker, image_id, TENANT)

    assert {job.job_id for job in jobs} == {ring.job_id for ring in rings}
    for job in jobs:
        ring = await the_ring(worker, job.job_id)
        assert URGENT == ring["priority"]
        assert await due_now(worker, job.job_id)


async def test_a_retry_makes_a_parked_job_due_and_whoever_claims_it_parks_it_again(
    worker: OpenConnection, operator: OpenConnection, superuser: OpenConnection
) -> None:
    _, parked = await two_of_a_target(worker, superuser)

    (ring,) = await ring_now(operator, parked) or ()

    assert await due_now(worker, parked)
    assert parked == ring.job_id
    answer = await claim_job(worker, parked, await a_worker(worker))
    assert Verdict.TARGET_BUSY is answer.verdict
    assert await is_parked(worker, parked)


# Resume.


async def test_a_resume_rings_the_head_of_its_target_and_nobody_else(
    worker: OpenConnection, operator: OpenConnection
) -> None:
    await hold_target(operator)
    held = [a_submission(target="photo") for _ in range(3)]
    await submit_jobs(worker, held)

    assert await resume(operator, PHOTO)

    assert await who_is_parked(worker, held) == [False, True, True]
    assert await due_now(worker, held[0].job_id)


async def test_a_resume_leaves_parked_who_waits_for_a_running_job(
    worker: OpenConnection, operator: OpenConnection, superuser: OpenConnection
) -> None:
    running = await an_elder(worker, superuser, JobState.PROCESSING)
    await hold_target(operator)
    held = await submit_job(worker, a_submission(target="photo"))

    assert await resume(operator, PHOTO)

    assert await is_parked(worker, held.job_id)
    assert [held.job_id] == await end(worker, running)


@pytest.mark.parametrize("known", [True, False], ids=["a known target", "its first job"])
async def test_a_resume_waits_for_a_submit_that_still_saw_the_pause_and_rings_its_job(
    known: bool,  # noqa: FBT001 - a column of the table above
    worker: OpenConnection,
    api: OpenConnection,
    operator: OpenConnection,
    superuser: OpenConnection,
) -> None:
    if known:
        await an_elder(worker, superuser, JobState.COMPLETED)
    await hold_target(operator)

    submitting = driver_of(api).transaction()
    await submitting.start()
    submitted = await submit_job(api, a_submission(target="photo"))
    assert submitted.next_at is None
    async with meanwhile(superuser, api, operator, resume(operator, PHOTO)) as task:
        await submitting.commit()

    assert task.result() is True
    assert await due_now(worker, submitted.job_id)


# The slow step, should all of that have failed.


async def parked_by_mistake(superuser: OpenConnection, job_ids: Sequence[JobId]) -> None:
    await superuser.execute(
        "UPDATE rings SET next_at = 'infinity' WHERE job_id = ANY ($1::uuid[])", job_ids
    )


async def test_a_forgotten_head_is_found_page_by_page(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    jobs = [a_submission(target=f"photo-{n // 2}") for n in range(6)]
    await submit_jobs(worker, jobs)
    await parked_by_mistake(superuser, [job.job_id for job in jobs])

    rung, after = 0, NO_JOB
    while (page := await ring_heads(maintenance, after, limit=4)).last is not None:
        assert page.looked_at <= 4
        rung, after = rung + page.rung, page.last

    assert 3 == rung
    assert await who_is_parked(worker, jobs) == [False, True] * 3


async def test_who_waits_rightly_is_left_parked(
    database: Database,
    worker: OpenConnection,
    operator: OpenConnection,
    maintenance: OpenConnection,
    superuser: OpenConnection,
) -> None:
    await a_job(
        worker, superuser, state=JobState.PROCESSING, submission=a_submission(target="runs")
    )
    await pause(
        operator,
        Pause(scope=PauseScope.TARGET, name="paused", tenant_id=TENANT),
        by="tests",
        reason="a test",
    )
    await a_job(
        worker,
        superuser,
        state=JobState.FAILED_RETRYABLE,
        due=False,
        submission=a_submission(target="in backoff"),
    )
    await submit_job(worker, a_submission(target="locked"))
    targets = ("runs", "paused", "in backoff", "locked")
    waits = [await submit_job(worker, a_submission(target=name)) for name in targets]
    await parked_by_mistake(superuser, [waits[-1].job_id])

    async with superuser.transaction():
        await superuser.execute("SELECT FROM targets WHERE target = 'locked' FOR UPDATE")
        page = await ring_heads(maintenance, NO_JOB, limit=9)

    assert (4, 0) == (page.looked_at, page.rung)
    assert [True] * 4 == await who_is_parked(worker, waits)


async def test_a_head_that_was_announced_is_not_announced_again(
    worker: OpenConnection, maintenance: OpenConnection
) -> None:
    head, behind = [a_submission(target="photo") for _ in range(2)]
    await submit_jobs(worker, [head, behind])
    await announce(worker, head.job_id)

    page = await ring_heads(maintenance, NO_JOB, limit=9)

    ring = await ring_row(worker, head.job_id)
    assert (1, 0) == (page.looked_at, page.rung)
    assert ring is not None
    assert ring["sent_at"] is not None
