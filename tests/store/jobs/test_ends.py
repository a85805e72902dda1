"""Whoever ends a claim learns from that very statement what there is to count and to say."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

import pytest

from imagefleet.jobs.lifecycle import Completed, Failed, Outcome, Released, Retry
from imagefleet.jobs.model import CancelCode, Ended, JobId, JobState, Lane, WorkerId, new_job_id
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.store.jobs.unheard import find_claimed_ends, find_rescued_ends
from imagefleet.store.settling import Settled, Settlement, settle_jobs
from imagefleet.telemetry.metrics import END_EVENTS
from tests.conftest import OpenConnection
from tests.support.factories import (
    ALL_LANES,
    TYPES,
    UNAVAILABLE,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    hold_job,
    make_due,
    settle_job,
)
from tests.support.rows import attempts_rows, job_row


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """Who may do what here."""

    worker: Connection
    maintenance: Connection
    superuser: Connection


End = Callable[[Hands], Awaitable[Ended | None]]


def settled(outcome: Outcome, *, flag: CancelCode | None = None, tries: int = 5) -> End:
    async def end(hands: Hands) -> Ended | None:
        wanted = a_submission(max_attempts=tries)
        job = await a_job(
            hands.worker,
            hands.superuser,
            state=JobState.PROCESSING,
            flag=flag,
            flagged_before_claim=True,
            submission=wanted,
        )
        return (await settle_job(hands.worker, job, outcome)).ended

    return end


async def settled_at_the_second_try(hands: Hands) -> Ended | None:
    job = await a_job(hands.worker, hands.superuser, state=JobState.FAILED_RETRYABLE)
    again = await hold_job(hands.worker, job.job_id, job.worker_id)
    return (await settle_job(hands.worker, again, Completed())).ended


def rescued(lane: Lane) -> End:
    async def end(hands: Hands) -> Ended | None:
        await a_job(
            hands.worker,
            hands.superuser,
            state=JobState.PROCESSING,
            submission=a_submission(lane=lane),
        )
        (seen,) = await look_at_workers(hands.maintenance)
        rescue = await rescue_worker(hands.maintenance, seen)
        assert rescue is not None
        (ended,) = rescue.ended
        return ended

    return end


def found_expired(*, tries: int = 5) -> End:
    async def end(hands: Hands) -> Ended | None:
        job = await a_job(
            hands.worker,
            hands.superuser,
            state=JobState.PROCESSING,
            lock_expired=True,
            submission=a_submission(max_attempts=tries),
        )
        return (await claim_job(hands.worker, job.job_id, await a_worker(hands.worker))).ended

    return end


WAYS: dict[str, tuple[End, tuple[str, str, JobState, int]]] = {
    "it completes": (settled(Completed()), ("completed", "done", JobState.COMPLETED, 1)),
    "it completes at the second try": (
        settled_at_the_second_try,
        ("completed", "done", JobState.COMPLETED, 2),
    ),
    "it is to be retried": (
        settled(UNAVAILABLE),
        ("retried", "unavailable", JobState.FAILED_RETRYABLE, 1),
    ),
    "its last try fails": (
        settled(UNAVAILABLE, tries=1),
        ("failed", "unavailable", JobState.FAILED, 1),
    ),
    "it fails for good": (
        settled(Failed(code="corrupt", message="It is damaged.")),
        ("failed", "corrupt", JobState.FAILED, 1),
    ),
    "it is given back": (
        settled(Released(why="drain")),
        ("released", "drain", JobState.FAILED_RETRYABLE, 1),
    ),
    "it was cancelled": (
        settled(Released(why="flagged"), flag=CancelCode.CANCELLED),
        ("failed", "cancelled", JobState.FAILED, 0),
    ),
    "an operator ended it": (
        settled(Released(why="flagged"), flag=CancelCode.FAILED_BY_OPERATOR),
        ("failed", "failed_by_operator", JobState.FAILED, 0),
    ),
    "its image was deleted": (
        settled(Released(why="flagged"), flag=CancelCode.IMAGE_DELETED),
        ("failed", "image_deleted", JobState.FAILED, 0),
    ),
    "its result cannot be recorded": (
        settled(Completed(result={"a": "\0"})),
        ("failed", "settle_rejected", JobState.FAILED, 1),
    ),
    "its worker is lost": (
        rescued(Lane.FAST),
        ("rescued", "worker_lost", JobState.FAILED_RETRYABLE, 1),
    ),
    "its worker is lost in quarantine": (
        rescued(Lane.QUARANTINE),
        ("rescued", "poison", JobState.FAILED, 1),
    ),
    "another worker takes it over": (
        found_expired(),
        ("taken_over", "lock_expired", JobState.PROCESSING, 1),
    ),
    "its lock expires on the last try": (
        found_expired(tries=1),
        ("exhausted", "lock_expired", JobState.FAILED, 1),
    ),
}


OF_OTHERS = {"rescued", "taken_over", "exhausted"}


def test_the_table_has_every_end_that_is_told() -> None:
    assert {row[0] for _, row in WAYS.values()} == set(END_EVENTS)


@pytest.mark.parametrize("way", WAYS)
async def test_the_end_of_a_claim_is_returned_as_its_row_has_it(
    worker: OpenConnection,
    maintenance: OpenConnection,
    superuser: OpenConnection,
    way: str,
) -> None:
    end, expected = WAYS[way]

    ended = await end(Hands(worker=worker, maintenance=maintenance, superuser=superuser))

    assert ended is not None
    assert expected == (ended.outcome, ended.why, ended.state, ended.attempts)
    job = await job_row(superuser, ended.job_id)
    row = (await attempts_rows(superuser, ended.job_id))[ended.claim_no - 1]
    for name in ("claim_no", "tenant_id", "type", "lane", "worker_id"):
        assert row[name] == getattr(ended, name), name
    for name in ("duration", "queue_time", "outcome", "why"):
        assert row[name] == getattr(ended, name), name
    for name in ("state", "max_attempts", "correlation_id", "traceparent"):
        assert job[name] == getattr(ended, name), name


async def test_how_long_a_job_took_is_told_from_when_it_was_accepted_or_due(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    """A job that waited for its date did so because it was asked to."""

    async def accepted_an_hour_ago(*, due: bool, by_a_job: bool = False) -> Ended | None:
        job = await a_job(worker, superuser, state=JobState.PROCESSING)
        await superuser.execute(
            """
            UPDATE jobs
               SET created_at = now() - interval '1 hour',
                   run_at = CASE WHEN $2 THEN now() - interval '1 hour' ELSE run_at END,
                   parent_job_id = CASE WHEN $3 THEN id END
             WHERE id = $1
            """,
            job.job_id,
            due,
            by_a_job,
        )
        return (await settle_job(worker, job, Completed())).ended

    scheduled = await accepted_an_hour_ago(due=False)
    late = await accepted_an_hour_ago(due=True)
    of_another = await accepted_an_hour_ago(due=True, by_a_job=True)

    assert scheduled is not None
    assert scheduled.age is not None
    assert scheduled.age < timedelta(minutes=1)
    assert late is not None
    assert late.age is not None
    assert late.age >= timedelta(hours=1)
    assert of_another is not None
    assert of_another.age is None


async def test_a_job_that_was_given_back_took_as_long_as_all_of_its_tries(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    first = await a_job(worker, superuser, state=JobState.FAILED_RETRYABLE)
    await superuser.execute(
        "UPDATE jobs SET created_at = now() - interval '1 hour' WHERE id = $1", first.job_id
    )
    job = await hold_job(worker, first.job_id, first.worker_id)

    ended = (await settle_job(worker, job, Completed())).ended

    assert ended is not None
    assert ended.age is not None
    assert ended.age >= timedelta(hours=1)


async def settle_again(worker: Connection, job: MadeJob, outcome: Outcome) -> Ended | None:
    settlement = Settlement(
        job_id=job.job_id, claim_no=job.claim_no, outcome=outcome, policy=RetryPolicy()
    )
    (receipt,) = (await settle_jobs(worker, job.worker_id, [settlement])).receipts
    assert receipt.settled is Settled.ALREADY
    return receipt.ended


@pytest.mark.parametrize(
    "outcome",
    [
        Completed(),
        UNAVAILABLE,
        Failed(code="corrupt", message="It is damaged."),
        Released(why="drain"),
        Retry(code="crashed", message="m", crashed=True),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
async def test_what_was_settled_before_is_returned_as_it_was_then(
    worker: OpenConnection, superuser: OpenConnection, outcome: Outcome
) -> None:
    """Even when the job has moved on: whoever heard no answer has not told of it yet."""
    first = await a_job(worker, superuser, state=JobState.FAILED_RETRYABLE)
    job = await hold_job(worker, first.job_id, first.worker_id)

    written = (await settle_job(worker, job, outcome)).ended
    if not isinstance(outcome, Completed | Failed):
        await make_due(superuser, job.job_id)
        await claim_job(worker, job.job_id, await a_worker(worker))

    assert written is not None
    assert 2 == written.attempts
    assert written == await settle_again(worker, job, outcome)


async def test_a_flagged_job_that_was_settled_before_is_returned_as_it_was_then(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(
        worker,
        superuser,
        state=JobState.PROCESSING,
        flag=CancelCode.CANCELLED,
        flagged_before_claim=True,
    )

    written = (await settle_job(worker, job, Released(why="flagged"))).ended

    assert written is not None
    assert written == await settle_again(worker, job, Released(why="flagged"))


async def test_an_end_that_two_messages_found_is_returned_once(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    over, last = [
        await a_job(
            worker,
            superuser,
            state=JobState.PROCESSING,
            lock_expired=True,
            submission=a_submission(max_attempts=tries),
        )
        for tries in (5, 1)
    ]
    asked: list[JobId] = [over.job_id, last.job_id, over.job_id, last.job_id]

    answers = await claim_jobs(
        worker, asked, worker_id=await a_worker(worker), lanes=ALL_LANES, types=TYPES
    )

    ends = [None if answer.ended is None else answer.ended.outcome for answer in answers]
    assert ["taken_over", "exhausted", None, None] == ends


@pytest.mark.parametrize("way", [way for way, (_, row) in WAYS.items() if row[0] in OF_OTHERS])
async def test_the_end_of_anothers_claim_is_found_by_who_wrote_it(
    worker: OpenConnection,
    maintenance: OpenConnection,
    superuser: OpenConnection,
    way: str,
) -> None:
    ended = await WAYS[way][0](Hands(worker=worker, maintenance=maintenance, superuser=superuser))
    assert ended is not None
    (by,) = [row["ended_by"] for row in await attempts_rows(superuser, ended.job_id)]

    if ended.outcome == "rescued":
        claims = [ended.fence, (new_job_id(), 1)]
        assert [ended] == await find_rescued_ends(maintenance, by, claims)
        assert [] == await find_rescued_ends(maintenance, uuid4(), claims)
    else:
        jobs = [ended.job_id, new_job_id()]
        assert [ended] == await find_claimed_ends(worker, WorkerId(by), jobs)
        assert [] == await find_claimed_ends(worker, ended.worker_id, jobs)


@pytest.mark.parametrize("way", [way for way, (_, row) in WAYS.items() if row[0] not in OF_OTHERS])
async def test_the_end_of_ones_own_claim_names_nobody_else(
    worker: OpenConnection,
    maintenance: OpenConnection,
    superuser: OpenConnection,
    way: str,
) -> None:
    ended = await WAYS[way][0](Hands(worker=worker, maintenance=maintenance, superuser=superuser))

    assert ended is not None
    assert {None} == {row["ended_by"] for row in await attempts_rows(superuser, ended.job_id)}
