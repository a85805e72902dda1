"""The claim, one connection at a time: what it takes, what it refuses, what it leaves behind."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from imagefleet.errors import ClaimLost
from imagefleet.jobs.lifecycle import Completed, Outcome, Released
from imagefleet.jobs.model import (
    JobState,
    Verdict,
    WorkerId,
)
from imagefleet.store.database import Connection
from imagefleet.store.jobs.claims import NO_ROOM, claim_jobs
from imagefleet.store.jobs.leases import Renewal, renew_claims, report_progress
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.store.jobs.rings import confirm_rings, rings_for
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.settling import Settled
from tests.conftest import OpenConnection
from tests.support.factories import (
    ALL_LANES,
    CORRUPT,
    TYPES,
    UNAVAILABLE,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    settle_job,
)
from tests.support.rows import attempts_rows, job_row, ring_row, running_job, the_ring

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
    ring = await the_ring(worker, successor.job_id)
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
    ring = await the_ring(worker, successor.job_id)
    assert ring["next_in"] <= timedelta(0)


async def test_of_a_type_no_more_are_claimed_than_there_is_room_for(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    """The most urgent and oldest; the others keep their place in their tenant's line."""
    await superuser.execute("UPDATE lanes SET looked_at = now()")
    wanted = [a_submission(priority=priority) for priority in (90, 100, 60, 100)]
    wanted.append(a_submission(type="other"))
    for submission in wanted:
        await submit_job(worker, submission)
    rung = await the_ring(worker, wanted[3].job_id)

    answers = await claim_jobs(
        worker,
        [submission.job_id for submission in wanted],
        worker_id=await a_worker(worker),
        lanes=ALL_LANES,
        types=(*TYPES, "other"),
        rooms={"noop": 2, "another": 0},
    )

    claimed, refused = Verdict.CLAIMED, Verdict.UNROUTABLE
    assert [claimed, refused, claimed, refused, claimed] == [answer.verdict for answer in answers]
    assert [None, NO_ROOM, None, NO_ROOM, None] == [answer.why for answer in answers]
    ring = await the_ring(worker, wanted[3].job_id)
    assert ring["sent_at"] is None
    assert ring["next_at"] == rung["next_at"] + timedelta(microseconds=1)


async def test_what_there_is_no_room_for_keeps_its_message_while_nobody_announces_it_again(
    worker: OpenConnection,
) -> None:
    """Maintenance is away."""
    submission = a_submission()
    rings = rings_for([(submission, await submit_job(worker, submission))])
    await confirm_rings(worker, rings)

    (answer,) = await claim_jobs(
        worker,
        [submission.job_id],
        worker_id=await a_worker(worker),
        lanes=ALL_LANES,
        types=TYPES,
        rooms={"noop": 0},
    )

    assert (Verdict.BUSY, NO_ROOM) == (answer.verdict, answer.why)
    assert (await the_ring(worker, submission.job_id))["sent_at"] is not None


async def test_what_there_is_no_room_for_keeps_its_target_free_and_its_elders_first(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    await superuser.execute("UPDATE lanes SET looked_at = now()")
    first, second = a_submission(target="photo"), a_submission(target="photo")
    for submission in (first, second):
        await submit_job(worker, submission)

    async def verdicts(room: int) -> list[Verdict]:
        answers = await claim_jobs(
            worker,
            [second.job_id, first.job_id],
            worker_id=await a_worker(worker),
            lanes=ALL_LANES,
            types=TYPES,
            rooms={"noop": room},
        )
        return [answer.verdict for answer in answers]

    assert [Verdict.TARGET_BUSY, Verdict.UNROUTABLE] == await verdicts(0)
    assert await running_job(worker, "photo") is None
    assert [Verdict.TARGET_BUSY, Verdict.CLAIMED] == await verdicts(1)


async def test_an_expired_lock_that_there_is_no_room_for_is_left_to_its_message(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    """It has no ring that could be set."""
    expired = await a_job(worker, superuser, state=JobState.PROCESSING, lock_expired=True)

    (answer,) = await claim_jobs(
        worker,
        [expired.job_id],
        worker_id=await a_worker(worker),
        lanes=ALL_LANES,
        types=TYPES,
        rooms={"noop": 0},
    )

    assert (Verdict.BUSY, None) == (answer.verdict, answer.claim)
