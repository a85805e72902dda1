"""The claim, one connection at a time: what it takes, what it refuses, what it leaves behind."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from imagefleet.errors import ClaimLost
from imagefleet.jobs.lifecycle import Completed, Failed, Outcome, Released, Retry
from imagefleet.jobs.model import (
    CancelCode,
    JobId,
    JobState,
    Lane,
    PauseScope,
    Verdict,
    WorkerId,
    new_job_id,
)
from imagefleet.store.database import Connection
from imagefleet.store.fleet.breakers import force_open
from imagefleet.store.fleet.pauses import Pause, pause
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.leases import Renewal, renew_claims, report_progress
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.store.jobs.rings import confirm_rings
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.settling import Settled
from tests.conftest import OpenConnection
from tests.support.factories import (
    ALL_LANES,
    CORRUPT,
    TENANT,
    TYPES,
    UNAVAILABLE,
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
from tests.support.rows import attempts_rows, job_row, ring_row, running_job

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
LOCK_TIMEOUT = timedelta(minutes=10)
SET_LOCK_AGE = "UPDATE jobs SET locked_at = now() - $2::interval WHERE id = $1"


async def test_a_claim_takes_the_job_charges_it_and_silences_its_ring(
    worker: OpenConnection,
) -> None:
    me = await a_worker(worker)
    submitted = await submit_job(worker, a_submission(payload={"n": 1}))

    answer = await claim_job(worker, submitted.job_id, me)

    assert answer.verdict is Verdict.CLAIMED
    assert answer.claim is not None
    assert answer.claim.claim_no == 1
    assert answer.claim.payload == {"n": 1}
    row = await job_row(worker, submitted.job_id)
    assert (row["state"], row["attempts"], row["locked_by"]) == ("processing", 1, me)
    assert await ring_row(worker, submitted.job_id) is None


async def test_a_claim_is_refused_while_another_is_alive(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)

    answer = await claim_job(worker, job.job_id, await a_worker(worker))

    row = await job_row(worker, job.job_id)
    assert answer.verdict is Verdict.BUSY
    assert answer.until == row["locked_at"] + LOCK_TIMEOUT
    assert (row["locked_by"], row["claim_no"]) == (job.worker_id, 1)


async def test_a_lock_holds_at_exactly_the_lock_timeout_and_not_a_microsecond_longer(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    other = await a_worker(worker)

    async with worker.transaction():  # in which now() stands still
        await worker.execute(SET_LOCK_AGE, job.job_id, LOCK_TIMEOUT)
        at_the_edge = await claim_job(worker, job.job_id, other)
        await worker.execute(SET_LOCK_AGE, job.job_id, LOCK_TIMEOUT + timedelta(microseconds=1))
        just_after = await claim_job(worker, job.job_id, other)

    assert at_the_edge.verdict is Verdict.BUSY
    assert at_the_edge.wait == timedelta(0)
    assert just_after.verdict is Verdict.CLAIMED


async def test_the_lock_timeout_is_the_row_that_every_process_reads(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await superuser.execute("UPDATE fleet SET lock_timeout = interval '90 seconds'")

    async with worker.transaction():
        await worker.execute(SET_LOCK_AGE, job.job_id, timedelta(seconds=91))
        answer = await claim_job(worker, job.job_id, await a_worker(worker))

    assert answer.verdict is Verdict.CLAIMED


async def test_a_takeover_raises_the_claim_number_and_ends_the_lost_claim(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING, lock_expired=True)
    other = await a_worker(worker)

    answer = await claim_job(worker, job.job_id, other)

    assert answer.claim is not None
    assert (answer.claim.claim_no, answer.claim.attempts, answer.claim.crashes) == (2, 2, 1)
    (ended,) = await attempts_rows(worker, job.job_id)
    assert (ended["claim_no"], ended["worker_id"]) == (1, job.worker_id)
    assert (ended["outcome"], ended["why"], ended["charged"]) == (
        "taken_over",
        "lock_expired",
        True,
    )
    assert ended["duration"] >= LOCK_TIMEOUT
    assert (await job_row(worker, job.job_id))["locked_by"] == other


async def beat(worker: Connection, zombie: MadeJob) -> None:
    renewal = Renewal(job_id=zombie.job_id, claim_no=zombie.claim_no, renewable_for=HOUR)

    answer = await renew_claims(worker, zombie.worker_id, [renewal])

    assert answer.alive
    assert answer.lost == {(zombie.job_id, zombie.claim_no)}


async def progress(worker: Connection, zombie: MadeJob) -> None:
    renewal = Renewal(job_id=zombie.job_id, claim_no=zombie.claim_no, renewable_for=HOUR)

    with pytest.raises(ClaimLost):
        await report_progress(worker, renewal, done=9, total=9, cursor={"at": 9})


def settle(outcome: Outcome) -> Callable[[Connection, MadeJob], Awaitable[None]]:
    async def settle_as_zombie(worker: Connection, zombie: MadeJob) -> None:
        receipt = await settle_job(worker, zombie, outcome)

        assert (receipt.settled, receipt.outcome) == (Settled.LOST, None)

    return settle_as_zombie


@pytest.mark.parametrize("taken", ["taken over", "retried since", "finished since"])
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(beat, id="renew"),
        pytest.param(progress, id="progress"),
        pytest.param(settle(Completed(result={"by": "zombie"})), id="complete"),
        pytest.param(settle(UNAVAILABLE), id="retry"),
        pytest.param(settle(CORRUPT), id="fail"),
        pytest.param(settle(Released(why="drain")), id="release"),
    ],
)
async def test_a_zombie_can_only_miss(
    worker: OpenConnection,
    superuser: OpenConnection,
    write: Callable[[Connection, MadeJob], Awaitable[None]],
    taken: str,
) -> None:
    zombie = await a_job(
        worker,
        superuser,
        state=JobState.PROCESSING,
        lock_expired=True,
        submission=a_submission(target="photo"),
    )
    other = await a_worker(worker)
    await claim_job(worker, zombie.job_id, other)
    heir = MadeJob(job_id=zombie.job_id, claim_no=2, worker_id=other)
    if taken == "retried since":
        await settle_job(worker, heir, UNAVAILABLE)
    elif taken == "finished since":
        await settle_job(worker, heir, Completed())
    before = [
        await job_row(worker, zombie.job_id),
        await ring_row(worker, zombie.job_id) and True,
        await attempts_rows(worker, zombie.job_id),
        await running_job(worker, "photo"),
    ]

    await write(worker, zombie)

    after = [
        await job_row(worker, zombie.job_id),
        await ring_row(worker, zombie.job_id) and True,
        await attempts_rows(worker, zombie.job_id),
        await running_job(worker, "photo"),
    ]
    assert before == after


async def test_another_claim_of_the_same_worker_is_another_claim(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    """The fence is the claim's number, not the worker's name."""
    first = await a_job(worker, superuser, state=JobState.PROCESSING)
    await settle_job(worker, first, Released(why="drain"))
    await claim_job(worker, first.job_id, first.worker_id)

    again = await settle_job(worker, first, Completed())
    renewal = Renewal(job_id=first.job_id, claim_no=1, renewable_for=HOUR)
    answer = await renew_claims(worker, first.worker_id, [renewal])

    assert again.settled is Settled.ALREADY  # it was released, by this very worker
    assert answer.lost == {(first.job_id, 1)}
    assert answer.strays == {(first.job_id, 2)}
    assert (await job_row(worker, first.job_id))["state"] == "processing"


async def test_a_worker_that_was_declared_dead_neither_claims_nor_beats(
    worker: OpenConnection, maintenance: OpenConnection
) -> None:
    me = await a_worker(worker)
    (seen,) = await look_at_workers(maintenance)
    await rescue_worker(maintenance, seen)
    submitted = await submit_job(worker, a_submission())

    answer = await renew_claims(worker, me, [])
    with pytest.raises(ClaimLost):
        await claim_job(worker, submitted.job_id, me)

    assert not answer.alive
    assert (await job_row(worker, submitted.job_id))["claim_no"] == 0
    assert await worker.fetchval("SELECT beats FROM workers WHERE id = $1", me) == 0


async def test_a_worker_that_never_registered_claims_nothing(worker: OpenConnection) -> None:
    submitted = await submit_job(worker, a_submission())

    with pytest.raises(ClaimLost):
        await claim_jobs(
            worker, [submitted.job_id], worker_id=WorkerId(uuid4()), lanes=ALL_LANES, types=TYPES
        )

    assert (await job_row(worker, submitted.job_id))["claim_no"] == 0


async def test_an_expired_lock_without_attempts_left_fails_and_frees_its_target(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    last = await a_job(
        worker,
        superuser,
        state=JobState.PROCESSING,
        lock_expired=True,
        submission=a_submission(target="photo", max_attempts=1),
    )
    successor = await submit_job(worker, a_submission(target="photo"))

    answer = await claim_job(worker, last.job_id, await a_worker(worker))

    assert (answer.verdict, answer.claim) == (Verdict.EXHAUSTED, None)
    row = await job_row(worker, last.job_id)
    assert (row["state"], row["failure_code"]) == ("failed", "attempts_exhausted")
    (ended,) = await attempts_rows(worker, last.job_id)
    assert (ended["outcome"], ended["worker_id"]) == ("exhausted", last.worker_id)
    assert await running_job(worker, "photo") is None
    ring = await ring_row(worker, successor.job_id)
    assert ring is not None
    assert ring["next_in"] <= timedelta(0)
    letters = await superuser.fetch("SELECT reason FROM dead_letters WHERE job_id = $1", row["id"])
    assert [letter["reason"] for letter in letters] == ["attempts_exhausted"]


async def test_an_exhausted_job_and_the_next_of_its_target_in_one_receive_ring_the_next(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    last = await a_job(
        worker,
        superuser,
        state=JobState.PROCESSING,
        lock_expired=True,
        submission=a_submission(target="photo", max_attempts=1),
    )
    successor = await submit_job(worker, a_submission(target="photo"))

    answers = await claim_jobs(
        worker,
        [successor.job_id, last.job_id],
        worker_id=await a_worker(worker),
        lanes=ALL_LANES,
        types=TYPES,
    )

    assert [answer.verdict for answer in answers] == [Verdict.TARGET_BUSY, Verdict.EXHAUSTED]
    ring = await ring_row(worker, successor.job_id)
    assert ring is not None
    assert ring["next_in"] <= timedelta(0)


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
