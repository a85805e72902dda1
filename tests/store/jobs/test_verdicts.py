"""Every id that is asked for gets a verdict, and its message a way to go."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from imagefleet.jobs.lifecycle import Completed, Failed, Released, Retry
from imagefleet.jobs.model import (
    CancelCode,
    JobId,
    JobState,
    Lane,
    PauseScope,
    Verdict,
    new_job_id,
)
from imagefleet.store.fleet.breakers import force_open
from imagefleet.store.fleet.pauses import Pause, pause
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.rings import confirm_rings
from imagefleet.store.jobs.submissions import submit_job
from tests.conftest import OpenConnection
from tests.support.factories import (
    ALL_LANES,
    CORRUPT,
    TENANT,
    TYPES,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    announce,
    claim_job,
    expire_lock,
    make_due,
    open_breaker,
    ring_for,
    settle_job,
)
from tests.support.rows import job_row, ring_row, running_job

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


async def test_a_flagged_job_is_claimed_at_once_whatever_holds_it_back(
    worker: OpenConnection, superuser: OpenConnection, operator: OpenConnection
) -> None:
    await a_job(
        worker, superuser, state=JobState.PROCESSING, submission=a_submission(target="photo")
    )
    held_back = a_submission(
        type="a type nobody has",
        target="photo",
        run_at=datetime.now(UTC) + HOUR,
        services=("s3",),
        lane=Lane.QUARANTINE,
    )
    await submit_job(worker, held_back)
    await pause(operator, Pause(scope=PauseScope.ALL), by="tests", reason="a test")
    await force_open(operator, "s3", by="tests")
    await cancel_job(worker, held_back.job_id, code=CancelCode.CANCELLED, detail=None)
    me = await a_worker(worker)

    (answer,) = await claim_jobs(
        worker, [held_back.job_id], worker_id=me, lanes=[Lane.FAST], types=["noop"]
    )

    assert answer.verdict is Verdict.CANCELLED
    assert answer.claim is not None
    assert answer.claim.cancel_code is CancelCode.CANCELLED
    assert answer.claim.attempts == 0
    assert await running_job(worker, "photo") not in {held_back.job_id, None}
    job = MadeJob(job_id=held_back.job_id, claim_no=1, worker_id=me)
    await settle_job(worker, job, Released(why="cancelled"))
    row = await job_row(worker, held_back.job_id)
    assert (row["state"], row["failure_code"]) == ("failed", "cancelled")


async def test_one_id_received_twice_is_one_claim(worker: OpenConnection) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission())

    first, second = await claim_jobs(
        worker, [submitted.job_id] * 2, worker_id=me, lanes=ALL_LANES, types=TYPES
    )

    assert first.verdict is Verdict.CLAIMED
    assert (second.verdict, second.claim) == (Verdict.BUSY, None)


async def test_a_job_that_is_not_due_rings_when_it_is(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(worker, superuser, due=False)

    answer = await claim_job(worker, job.job_id, job.worker_id)

    row, ring = await job_row(worker, job.job_id), await ring_row(worker, job.job_id)
    assert (answer.verdict, answer.until) == (Verdict.NOT_DUE, row["run_at"])
    assert ring is not None
    assert (ring["next_at"], ring["sent_at"]) == (row["run_at"], None)


@pytest.mark.parametrize(
    "what",
    [
        Pause(scope=PauseScope.ALL),
        Pause(scope=PauseScope.LANE, name="fast"),
        Pause(scope=PauseScope.TYPE, name="noop"),
        Pause(scope=PauseScope.TARGET, name="photo", tenant_id=TENANT),
    ],
    ids=lambda what: what.scope,
)
async def test_a_paused_job_says_for_what_and_is_left_to_who_lifts_the_pause(
    worker: OpenConnection, operator: OpenConnection, what: Pause
) -> None:
    """Pauses of many jobs are decided for all of them at once; a target's jobs are parked."""
    submitted = await submit_job(worker, a_submission(target="photo"))
    await announce(worker, submitted.job_id)
    await pause(operator, what, by="tests", reason="a test")

    answer = await claim_job(worker, submitted.job_id, await a_worker(worker))

    ring = await ring_row(worker, submitted.job_id)
    assert answer.verdict is Verdict.PAUSED
    assert answer.why is not None
    assert answer.why.startswith(what.scope)
    assert answer.wait == MINUTE
    assert ring is not None
    assert (ring["sent_at"], ring["sends"]) == (None, 0)
    assert ring["parked"] is (what.scope is PauseScope.TARGET)
    if not ring["parked"]:
        assert timedelta(0) < ring["next_in"] <= timedelta(seconds=1)


async def test_an_open_breaker_holds_back_what_needs_its_service_and_its_closing_is_seen_at_once(
    worker: OpenConnection,
) -> None:
    """It may close at any moment, and nobody writes a row for each job that it held back."""
    me = await a_worker(worker)
    needy = await submit_job(worker, a_submission(services=("s3",)))
    await announce(worker, needy.job_id)
    other = await submit_job(worker, a_submission(services=("smtp",)))
    await open_breaker(worker)

    held_back = await claim_job(worker, needy.job_id, me)
    passed = await claim_job(worker, other.job_id, me)

    ring = await ring_row(worker, needy.job_id)
    retry_at = await worker.fetchval("SELECT retry_at FROM circuit_breakers WHERE service = 's3'")
    assert (held_back.verdict, held_back.until) == (Verdict.BREAKER, retry_at)
    assert ring is not None
    assert ring["sent_at"] is None
    assert timedelta(0) < ring["next_in"] <= timedelta(seconds=1)
    assert passed.verdict is Verdict.CLAIMED


async def test_a_message_in_the_wrong_lane_is_rung_in_the_right_one(
    worker: OpenConnection,
) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission(lane=Lane.QUARANTINE))
    await announce(worker, submitted.job_id)

    (answer,) = await claim_jobs(
        worker, [submitted.job_id], worker_id=me, lanes=[Lane.FAST], types=TYPES
    )

    ring = await ring_row(worker, submitted.job_id)
    assert answer.verdict is Verdict.ELSEWHERE
    assert ring is not None
    assert (ring["lane"], ring["sent_at"]) == ("quarantine", None)
    assert ring["next_in"] <= timedelta(0)


async def test_a_type_this_worker_lacks_is_rung_again_for_others(worker: OpenConnection) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission(type="delete_image"))
    await announce(worker, submitted.job_id)

    (answer,) = await claim_jobs(
        worker, [submitted.job_id], worker_id=me, lanes=ALL_LANES, types=["noop"]
    )

    ring = await ring_row(worker, submitted.job_id)
    assert answer.verdict is Verdict.UNROUTABLE
    assert ring is not None
    assert ring["sent_at"] is None
    assert timedelta(0) < ring["next_in"] <= timedelta(seconds=1)


DEFERRED: dict[Verdict, str] = {
    Verdict.NOT_DUE: "UPDATE jobs SET run_at = now() + interval '1 hour'",
    Verdict.PAUSED: "INSERT INTO pauses (scope, paused_by, reason) VALUES ('all', 'x', 'x')",
    Verdict.TARGET_BUSY: "UPDATE targets SET running_job = gen_random_uuid()",
    Verdict.BREAKER: "INSERT INTO circuit_breakers (service, state, opened_at, retry_at, forced) "
    "VALUES ('s3', 'open', now(), now(), true)",
    Verdict.UNROUTABLE: "UPDATE jobs SET type = 'delete_image'; "
    "UPDATE rings SET type = 'delete_image'",
    Verdict.ELSEWHERE: "UPDATE jobs SET lane = 'quarantine'",
}


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("verdict", DEFERRED)
async def test_a_confirmation_that_comes_after_a_deferral_marks_nothing(
    worker: OpenConnection, api: OpenConnection, superuser: OpenConnection, verdict: Verdict
) -> None:
    """Its message was received, answered and deleted before who sent it came to say so."""
    submitted = await submit_job(worker, a_submission(target="photo", services=("s3",)))
    sent = await ring_for(worker, submitted.job_id)
    await superuser.execute("SET session_replication_role = replica")
    await superuser.execute(DEFERRED[verdict])

    (answer,) = await claim_jobs(
        worker,
        [submitted.job_id],
        worker_id=await a_worker(worker),
        lanes=[Lane.FAST],
        types=["noop"],
    )
    await confirm_rings(api, [sent])

    ring = await ring_row(worker, submitted.job_id)
    assert verdict is answer.verdict
    assert ring is not None
    assert (ring["sent_at"], ring["sends"]) == (None, 0)


def born(age: timedelta) -> JobId:
    milliseconds = int((datetime.now(UTC) - age).timestamp() * 1000)
    return JobId(UUID(int=milliseconds << 80 | new_job_id().int & (2**80 - 1)))


@pytest.mark.parametrize(
    ("job_id", "verdict"),
    [
        pytest.param(new_job_id(), Verdict.UNKNOWN, id="young"),
        pytest.param(born(timedelta(days=29)), Verdict.UNKNOWN, id="within retention"),
        pytest.param(born(timedelta(days=31)), Verdict.FINISHED, id="older than retention"),
        pytest.param(JobId(uuid4()), Verdict.UNKNOWN, id="of another making"),
    ],
)
async def test_an_id_without_a_row_is_unknown_unless_it_was_pruned(
    worker: OpenConnection, job_id: JobId, verdict: Verdict
) -> None:
    answer = await claim_job(worker, job_id, await a_worker(worker))

    assert answer.verdict is verdict


@pytest.mark.parametrize("outcome", [Completed(), CORRUPT])
async def test_a_finished_job_is_finished(
    worker: OpenConnection, superuser: OpenConnection, outcome: Completed | Failed
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await settle_job(worker, job, outcome)

    answer = await claim_job(worker, job.job_id, job.worker_id)

    assert answer.verdict is Verdict.FINISHED


@pytest.mark.parametrize("what", ["pause", "breaker", "lane"])
async def test_an_expired_lock_that_may_not_be_taken_over_keeps_its_message(
    worker: OpenConnection, superuser: OpenConnection, operator: OpenConnection, what: str
) -> None:
    """It has no ring that could bring it back: with any other answer the message is deleted."""
    job = await a_job(
        worker,
        superuser,
        state=JobState.PROCESSING,
        lock_expired=True,
        submission=a_submission(services=("s3",)),
    )
    other = await a_worker(worker)
    lanes = list(ALL_LANES)
    if what == "pause":
        await pause(operator, Pause(scope=PauseScope.ALL), by="tests", reason="a test")
    elif what == "breaker":
        await force_open(operator, "s3", by="tests")
    else:
        lanes = [Lane.GENERAL]

    (answer,) = await claim_jobs(worker, [job.job_id], worker_id=other, lanes=lanes, types=TYPES)

    assert answer.verdict is Verdict.BUSY
    assert answer.wait == MINUTE
    assert (await job_row(worker, job.job_id))["claim_no"] == 1


async def test_an_expired_lock_is_taken_over_though_an_older_job_has_become_due(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    """Otherwise each waits for the other: the older for the target, the younger for its turn."""
    older = await submit_job(worker, a_submission(target="photo", run_at=datetime.now(UTC) + HOUR))
    younger = await a_job(
        worker,
        superuser,
        state=JobState.PROCESSING,
        lock_expired=True,
        submission=a_submission(target="photo"),
    )
    await make_due(superuser, older.job_id)
    other = await a_worker(worker)

    waits = await claim_job(worker, older.job_id, other)
    taken_over = await claim_job(worker, younger.job_id, other)

    assert (waits.verdict, waits.why) == (Verdict.TARGET_BUSY, str(younger.job_id))
    assert taken_over.verdict is Verdict.CLAIMED


async def test_a_takeover_of_a_flagged_job_only_settles_it(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(
        worker,
        superuser,
        state=JobState.PROCESSING,
        flag=CancelCode.CANCELLED,
        submission=a_submission(target="photo"),
    )
    await expire_lock(superuser, job.job_id)
    other = await a_worker(worker)

    answer = await claim_job(worker, job.job_id, other)

    assert answer.verdict is Verdict.CANCELLED
    assert answer.claim is not None
    assert answer.claim.attempts == 1  # not charged again
    heir = MadeJob(job_id=job.job_id, claim_no=2, worker_id=other)
    receipt = await settle_job(worker, heir, Retry(code="unavailable", message="-"))
    assert isinstance(receipt.outcome, Failed)
    assert await running_job(worker, "photo") is None
