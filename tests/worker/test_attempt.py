"""What becomes of a job, whatever its handler does: every error is an outcome, none is a crash."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from imagefleet.errors import (
    ClaimLost,
    FleetError,
    IllegalTransition,
    InputRejected,
    Misconfigured,
    NotFound,
    RequestRejected,
    StoreRejected,
    Unavailable,
)
from imagefleet.jobs.kinds import Noop
from imagefleet.jobs.lifecycle import FAILURE_SENTENCES, Completed, Failed, Outcome, Released, Retry
from imagefleet.jobs.model import CancelCode, Claim, Lane
from imagefleet.runtime import Drain, supervise
from imagefleet.store.database import Connection
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.settling import Receipt, Settled
from imagefleet.worker.attempt import Attempt, Stop
from imagefleet.worker.handling import JobContext
from imagefleet.worker.isolation.report import (
    ChildCancelled,
    ChildCrashed,
    ChildDeadline,
    ChildFailed,
)
from imagefleet.worker.outcomes import LONGEST_DETAIL, outcome_of
from tests.support.bench import NOOP, Bench, Run, done, never, raising
from tests.support.children import reserve, task
from tests.support.eventually import eventually
from tests.support.factories import a_submission, a_worker, claim_job, expire_lock
from tests.support.races import somebody_waits
from tests.support.rows import attempts_rows, job_row

SECRET = "postgres://admin:hunter2@10.0.0.7 /etc/shadow"

# What is raised, what the attempt asks for, and the code; the public reads the code's sentence.
TABLE: list[tuple[BaseException, type[object], str | None]] = [
    (ClaimLost(SECRET), type(None), None),
    (NotFound("object"), Failed, "not_found"),
    (InputRejected("corrupt", "The image is damaged.", SECRET), Failed, "corrupt"),
    (
        RequestRejected("invalid_payload", "The payload is not valid.", SECRET),
        Failed,
        "invalid_payload",
    ),
    (ChildCrashed(SECRET), Retry, "crashed"),
    (ChildDeadline(SECRET), Retry, "deadline"),
    (TimeoutError(SECRET), Retry, "deadline"),
    (ChildCancelled(), Retry, "internal_error"),
    (ChildFailed(f"Traceback\n  line\nValueError: {SECRET}"), Retry, "internal_error"),
    (Unavailable("s3_throttled", "busy", SECRET), Retry, "unavailable"),
    (Unavailable("database_timeout", "busy", SECRET), Retry, "unavailable"),
    (Unavailable("database_unavailable", "busy", SECRET), Released, None),
    (StoreRejected("store_rejected", "no", SECRET), Retry, "internal_error"),
    (IllegalTransition(SECRET), Retry, "internal_error"),
    (Misconfigured(SECRET), Retry, "internal_error"),
    (FleetError("sqs_rejected", "no", SECRET), Retry, "internal_error"),
    (ValueError(SECRET), Retry, "internal_error"),
    (MemoryError(SECRET), Retry, "internal_error"),
    (SystemExit(SECRET), Retry, "internal_error"),
    (asyncio.CancelledError(SECRET), Retry, "internal_error"),
]


def named(value: object) -> str | None:
    if isinstance(value, FleetError):
        return f"{type(value).__name__}-{value.code}"
    return type(value).__name__ if isinstance(value, BaseException) else None


@pytest.mark.parametrize(("error", "kind", "code"), TABLE, ids=named)
def test_every_error_is_an_outcome_whose_public_words_are_fixed(
    error: BaseException, kind: type[object], code: str | None
) -> None:
    outcome = outcome_of(error)

    assert kind is type(outcome)
    if isinstance(outcome, Retry | Failed):
        assert code == outcome.code
        assert SECRET not in outcome.message
        assert outcome.message in {*FAILURE_SENTENCES.values(), *public_words(error)}
        told = (outcome.detail or "") + (outcome.log_excerpt or "")
        assert SECRET in told or not SECRET.startswith(str(error)[:5]), "operators see the reason"
    if isinstance(outcome, Retry):
        assert isinstance(error, ChildCrashed) == outcome.crashed
        assert outcome.charged


def public_words(error: BaseException) -> set[str]:
    return {error.public_message} if isinstance(error, InputRejected | RequestRejected) else set()


def test_what_postgres_cannot_store_is_written_as_it_can() -> None:
    outcome = outcome_of(ValueError("x" * 5000 + "a\0b\udcff"))

    assert isinstance(outcome, Retry)
    assert outcome.detail is not None
    assert outcome.detail.endswith("a\\x00b\\udcff")
    assert outcome.detail.encode()
    assert LONGEST_DETAIL + 1 == len(outcome.detail)


async def test_a_handler_sees_what_its_job_is(bench: Bench) -> None:
    seen: list[JobContext] = []

    async def run(job: JobContext) -> Completed:
        seen.append(job)
        return Completed()

    claim = await bench.claim(a_submission(payload={"note": "hello"}))
    assert Completed() == await bench.attempt(claim, run).work()

    (job,) = seen
    assert (claim.job_id, "tests", 1, None) == (
        job.job_id,
        job.correlation_id,
        job.attempt,
        job.cursor,
    )
    assert Noop(note="hello") == job.payload
    assert 100 < job.seconds_left <= 120
    assert not job.cancelled


async def test_a_field_that_a_newer_api_added_fails_no_job(bench: Bench) -> None:
    seen: list[JobContext] = []

    async def run(job: JobContext) -> Completed:
        seen.append(job)
        return Completed()

    claim = await bench.claim(a_submission(payload={"note": "hello", "colour": "red"}))

    assert Completed() == await bench.attempt(claim, run).work()
    assert [Noop(note="hello")] == [job.payload for job in seen]


async def test_what_needs_more_memory_than_its_worker_has_is_for_one_that_has_it(
    bench: Bench,
) -> None:
    async def run(job: JobContext) -> Completed:
        async with job.room_for_a_child(2 * 2**30):
            return Completed()

    async def outcome() -> Outcome | None:
        return await bench.attempt(await bench.claim(), run).work()

    await a_worker(bench.worker, memory_bytes=2**31 - 1)
    nobody = await outcome()
    await a_worker(bench.worker, memory_bytes=2**31)
    somebody = await outcome()

    assert isinstance(nobody, Failed)
    assert (nobody.code, nobody.message) == (
        "memory",
        "The image needs 2,048 MiB of memory, and no worker has more than 2,047.",
    )
    assert isinstance(somebody, Released)
    assert (somebody.why, somebody.after > timedelta()) == ("memory", True)


@pytest.mark.parametrize(("lane", "code"), [(Lane.GENERAL, "memory"), (Lane.QUARANTINE, None)])
async def test_a_suspect_may_use_more_memory_than_others(
    lane: Lane, code: str | None, bench: Bench
) -> None:
    needed = 700 * 2**20

    async def run(job: JobContext) -> Completed:
        return Completed(result=await job.run_isolated(task(reserve), {"bytes": needed}))

    async with bench.equipment.renderer:
        claim = await bench.claim(a_submission(lane=lane))
        outcome = await bench.attempt(claim, run).work()

    if code is None:
        assert Completed(result={"bytes": needed}) == outcome
    else:
        assert isinstance(outcome, Failed)
        assert code == outcome.code


@pytest.mark.parametrize(
    ("misbehave", "code"),
    [
        (raising(SystemExit(3)), "internal_error"),
        (raising(asyncio.CancelledError()), "internal_error"),
        (raising(ValueError("no")), "internal_error"),
    ],
)
async def test_no_handler_can_end_its_worker(bench: Bench, misbehave: Run, code: str) -> None:
    outcome = await bench.attempt(await bench.claim(), misbehave).work()

    assert isinstance(outcome, Retry)
    assert code == outcome.code


async def test_a_handler_that_returns_something_else_is_a_bug(bench: Bench) -> None:
    async def run(job: JobContext) -> object:
        return "done"

    outcome = await bench.attempt(await bench.claim(), run).work()  # type: ignore[arg-type]

    assert isinstance(outcome, Retry)
    assert "internal_error" == outcome.code


async def test_a_payload_that_does_not_fit_fails_for_good(bench: Bench) -> None:
    outcome = await bench.attempt(
        await bench.claim(a_submission(payload={"milliseconds": -1})), done
    ).work()

    assert isinstance(outcome, Failed)
    assert "invalid_payload" == outcome.code


async def test_a_deadline_ends_the_work_and_costs_an_attempt(bench: Bench) -> None:
    short = timedelta(milliseconds=50)
    attempt = bench.attempt(await bench.claim(), never, replace(NOOP, timeout=short))

    outcome = await attempt.work()

    assert isinstance(outcome, Retry)
    assert ("deadline", True) == (outcome.code, outcome.charged)


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        (Stop.DRAIN, Released(why="drain")),
        (Stop.BEAT_LOST, Released(why="beat_lost")),
        (Stop.CANCELLED, Released(why="cancelled")),
        (Stop.LOST, None),
    ],
)
@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_stop_ends_the_work_without_charge(
    bench: Bench, why: Stop, expected: Outcome | None, when: str
) -> None:
    at_work = asyncio.Event()

    async def run(job: JobContext) -> Completed:
        at_work.set()
        await job.stopping.wait()
        await asyncio.sleep(10)
        return Completed()

    attempt = bench.attempt(await bench.claim(), run)
    if when == "before":
        attempt.stop(why)
    async with asyncio.TaskGroup() as group:
        working = group.create_task(attempt.work())
        if when == "during":
            await at_work.wait()
            attempt.stop(why)
            attempt.stop(Stop.DRAIN)  # the first reason counts, and a second is harmless

    assert expected == working.result()


async def test_a_stop_while_a_handler_still_tidies_up_breaks_nothing(bench: Bench) -> None:
    tidying, tidied = asyncio.Event(), asyncio.Event()

    async def run(job: JobContext) -> Completed:
        try:
            await asyncio.sleep(10)
        finally:
            tidying.set()
            await tidied.wait()
        return Completed()

    attempt = bench.attempt(
        await bench.claim(), run, replace(NOOP, timeout=timedelta(milliseconds=20))
    )
    async with asyncio.TaskGroup() as group:
        working = group.create_task(attempt.work())
        await tidying.wait()
        attempt.stop(Stop.DRAIN)
        tidied.set()

    assert Released(why="drain") == working.result()


async def test_a_flagged_job_is_settled_without_its_handler(
    bench: Bench, superuser: Connection
) -> None:
    submission = await bench.submit()
    await cancel_job(bench.worker, submission.job_id, code=CancelCode.CANCELLED, detail="enough")
    answer = await bench.ask(submission)
    assert answer.claim is not None

    ran: list[JobContext] = []

    async def run(job: JobContext) -> Completed:
        ran.append(job)
        return Completed()

    receipt = await bench.attempt(answer.claim, run).run()

    assert [] == ran
    assert receipt is not None
    assert isinstance(receipt.outcome, Failed)
    row = await job_row(superuser, submission.job_id)
    assert ("failed", "cancelled", 0) == (row["state"], row["failure_code"], row["attempts"])


async def test_progress_is_written_extends_the_lock_and_is_found_by_the_next_attempt(
    bench: Bench, superuser: Connection
) -> None:
    claim = await bench.claim()
    await superuser.execute("UPDATE jobs SET locked_at = locked_at - interval '1 minute'")

    async def half(job: JobContext) -> Completed:
        await job.progress(1, 2, {"page": 1})
        raise Unavailable("database_unavailable", "away")

    receipt = await bench.attempt(claim, half).run()
    assert receipt is not None
    assert isinstance(receipt.outcome, Released)
    row = await job_row(superuser, claim.job_id)
    assert (1, 2, {"page": 1}, 0) == (
        row["progress_done"],
        row["progress_total"],
        row["progress_cursor"],
        row["attempts"],
    )

    again = await claim_job(bench.worker, claim.job_id, bench.worker_id)
    assert again.claim is not None
    assert {"page": 1} == again.claim.cursor


async def test_progress_tells_a_cancelled_job_to_stop(bench: Bench, superuser: Connection) -> None:
    claim = await bench.claim()
    await cancel_job(bench.worker, claim.job_id, code=CancelCode.CANCELLED, detail=None)

    async def run(job: JobContext) -> Completed:
        await job.progress(1)
        await asyncio.sleep(10)
        return Completed()

    receipt = await bench.attempt(claim, run).run()

    assert receipt is not None
    assert isinstance(receipt.outcome, Failed)
    assert "cancelled" == receipt.outcome.code


async def test_progress_of_a_lost_claim_ends_it_without_a_word(
    bench: Bench, superuser: Connection
) -> None:
    claim = await bench.claim()

    async def run(job: JobContext) -> Completed:
        await job.progress(1)
        return Completed()

    zombie = replace(claim, claim_no=claim.claim_no + 1)
    assert await bench.attempt(zombie, run).run() is None
    assert "processing" == (await job_row(superuser, claim.job_id))["state"]
    assert [] == await attempts_rows(superuser, claim.job_id)


# The lines that a worker can end at. One that is killed there is in tests/faults/test_kills.py.


def deletes(bench: Bench) -> list[str]:
    return [receipt.message_id for receipt in bench.queue.deleted]


@asynccontextmanager
async def nobody_settles(superuser: Connection, claim: Claim) -> AsyncIterator[None]:
    """Somebody sits on the job's row."""
    async with superuser.transaction():
        await superuser.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", claim.job_id)
        yield


async def test_a_second_signal_gets_through_while_the_handler_works(
    bench: Bench, superuser: Connection
) -> None:
    claim, at_work = await bench.claim(), asyncio.Event()

    async def run(job: JobContext) -> Completed:
        at_work.set()
        return await never(job)

    attempt = bench.attempt(claim, run)
    async with asyncio.TaskGroup() as group:
        working = group.create_task(attempt.run())
        await at_work.wait()
        working.cancel()

    assert working.cancelled()
    assert "processing" == (await job_row(superuser, claim.job_id))["state"]
    assert [] == deletes(bench)


async def test_the_message_is_kept_until_the_outcome_is_committed(
    bench: Bench, superuser: Connection
) -> None:
    claim = await bench.claim()
    attempt = bench.attempt(claim, done)
    async with asyncio.TaskGroup() as group:
        async with nobody_settles(superuser, claim):
            group.create_task(attempt.run())
            await eventually(lambda: somebody_waits(superuser))
            assert [] == deletes(bench)
        await eventually(lambda: deletes(bench))

    assert "completed" == (await job_row(superuser, claim.job_id))["state"]


async def test_a_second_signal_gets_through_while_the_outcome_is_settled(
    bench: Bench, superuser: Connection
) -> None:
    """What was written by then stands, and its message comes again, to be told that it is over."""
    claim = await bench.claim()
    attempt = bench.attempt(claim, done)
    async with nobody_settles(superuser, claim), asyncio.TaskGroup() as group:
        settling = group.create_task(attempt.run())
        await eventually(lambda: somebody_waits(superuser))
        settling.cancel()

    assert settling.cancelled()
    receipt = await attempt.settle(Released(why="stopped"))
    assert Settled.ALREADY == receipt.settled
    assert "completed" == (await job_row(superuser, claim.job_id))["state"]
    assert [] == deletes(bench)


async def test_the_message_of_a_claim_that_is_found_lost_speaks_for_its_heir(
    bench: Bench, superuser: Connection
) -> None:
    claim = await bench.claim()
    await expire_lock(superuser, claim.job_id)
    assert (await claim_job(bench.worker, claim.job_id, bench.worker_id)).claim is not None

    receipt = await bench.attempt(claim, done).run()
    assert await bench.attempt(claim, raising(ClaimLost(SECRET))).run() is None
    await asyncio.sleep(0.01)

    assert receipt is not None
    assert Settled.LOST == receipt.settled
    assert "processing" == (await job_row(superuser, claim.job_id))["state"]
    assert [] == deletes(bench)


async def test_a_settled_attempt_frees_its_slot_and_one_that_could_not_be_settled_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes of the job: a slot that is not freed is lost to the worker."""
    freed: list[str] = []
    attempts = bench.attempts(done)
    settled, unsettled, broken = [await bench.claim() for _ in range(3)]
    wrongs = {
        unsettled.job_id: Unavailable("database_unavailable", "away"),
        broken.job_id: OSError(),
    }

    async def settle(self: Attempt, outcome: Outcome) -> Receipt:
        if self.claim.job_id in wrongs:
            raise wrongs[self.claim.job_id]
        return await settle_really(self, outcome)

    settle_really = Attempt.settle
    monkeypatch.setattr(Attempt, "settle", settle)
    async with supervise(Drain()) as parts:
        attempts.owned_by(parts)
        for claim in (settled, unsettled, broken):
            attempts.start(claim, bench.delivery(claim), partial(freed.append, str(claim.job_id)))

    assert {str(claim.job_id) for claim in (settled, unsettled, broken)} == set(freed)
    assert {} == attempts.running
    assert {"finished": 1, "abandoned": 1} == attempts.tally
    await eventually(lambda: len(deletes(bench)) == 1)


async def test_a_second_signal_frees_the_slot_and_what_was_cut_short_is_given_back(
    bench: Bench, superuser: Connection
) -> None:
    claim, freed = await bench.claim(), asyncio.Event()
    attempts = bench.attempts(never)

    async def work() -> None:
        async with supervise(Drain()) as parts:
            attempts.owned_by(parts)
            attempts.start(claim, bench.delivery(claim), freed.set)

    async with asyncio.TaskGroup() as group:
        working = group.create_task(work())
        await eventually(lambda: any(attempt.deadline for attempt in attempts.running.values()))
        working.cancel()
    await attempts.give_back()

    assert freed.is_set()
    row = await job_row(superuser, claim.job_id)
    assert ("failed_retryable", 0) == (row["state"], row["attempts"])
    assert {"released": 1} == attempts.tally
