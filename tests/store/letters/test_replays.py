"""A replay is a new job made of the letter; a failure is replayed once, by whatever way."""

import asyncio
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from imagefleet.errors import RequestRejected
from imagefleet.jobs.images import image_target
from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.lifecycle import Completed, Outcome, Retry
from imagefleet.jobs.model import JobId, JobState, Lane, Ring, Submission
from imagefleet.jobs.replays import ReplayOrder, ReplayOutcome
from imagefleet.store.database import Connection
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.letters.dead_letter_queue import DeadMessage, judge_messages
from imagefleet.store.letters.letters import (
    LetterFilter,
    acknowledge_dead_letters,
    count_unacknowledged,
    get_dead_letter,
)
from imagefleet.store.letters.replays import (
    MOST_AT_ONCE,
    Replayed,
    count_outcomes,
    replay_letters,
    replay_page,
    replay_redriven,
)
from tests.support.database import Database
from tests.support.factories import (
    CORRUPT,
    a_job,
    a_submission,
    hold_job,
    settle_job,
)
from tests.support.fleet import SOME_TIME
from tests.support.rows import job_row, the_ring

REPLAYED, ALREADY = ReplayOutcome.REPLAYED, ReplayOutcome.ALREADY_REPLAYED
ORDER = ReplayOrder(by="ada", reason="fixed")


async def failed(
    worker: Connection, superuser: Connection, submission: Submission | None = None
) -> JobId:
    job = await a_job(worker, superuser, state=JobState.FAILED, submission=submission)
    return job.job_id


async def replay(connection: Connection, *ids: UUID, order: ReplayOrder = ORDER) -> list[Replayed]:
    return await replay_letters(connection, ids, order, BUILT_IN)


async def replay_one(
    connection: Connection, job_id: UUID, order: ReplayOrder = ORDER
) -> tuple[ReplayOutcome, JobId | None]:
    (answer,) = await replay(connection, job_id, order=order)
    return answer.outcome, answer.replayed_as


async def replays_of(superuser: Connection, job_id: JobId) -> int:
    count: int = await superuser.fetchval("SELECT count(*) FROM jobs WHERE replay_of = $1", job_id)
    return count


# What it is made of.

TAKEN_OVER = (
    "tenant_id",
    "lane",
    "type",
    "priority",
    "target",
    "preempts",
    "services",
    "pause_target_on_failure",
    "max_attempts",
    "payload",
    "dedup_key",
    "correlation_id",
    "parent_job_id",
)


async def test_a_replay_is_the_same_job_anew_and_says_whose_idea_it_was(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    submission = replace(
        a_submission(
            payload={"note": "again", "colour": "of a newer release"},
            target="t:1",
            priority=30,
            max_attempts=3,
            services=("s3",),
            pause_target_on_failure=True,
            idempotency_key="key",
            fingerprint="f",
            dedup_key="dedup",
        ),
        parent_job_id=JobId(uuid4()),
        correlation_id="c-1",
    )
    job_id = await failed(worker, superuser, submission)

    (answer,) = await replay(operator, job_id)

    assert answer.replayed_as is not None
    old, new = await job_row(superuser, job_id), await job_row(superuser, answer.replayed_as)
    assert {name: old[name] for name in TAKEN_OVER} == {name: new[name] for name in TAKEN_OVER}
    assert (job_id, 1, "fixed", "ada") == (
        new["replay_of"],
        new["generation"],
        new["replay_reason"],
        new["created_by"],
    )
    assert ("queued", 0, 0, None, 2) == (
        new["state"],
        new["attempts"],
        new["crashes"],
        new["idempotency_key"],
        new["target_seq"],
    )
    assert JobState.FAILED == old["state"]


async def test_a_replay_is_rung_like_any_job(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    job_id = await failed(worker, superuser)

    (answer,) = await replay(operator, job_id)

    assert isinstance(answer.ring, Ring)
    row = await the_ring(superuser, answer.ring.job_id)
    assert (answer.replayed_as, row["next_at"], Lane.FAST) == (
        answer.ring.job_id,
        answer.ring.next_at,
        answer.ring.lane,
    )


async def test_a_job_that_died_in_quarantine_starts_in_the_lane_of_its_kind(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    lanes = {}
    for name, priority in (("process_image", 100), ("process_image", 10), ("cancel_job", 100)):
        submission = a_submission(type=name, priority=priority, lane=Lane.QUARANTINE)
        job = await a_job(worker, superuser, state=JobState.PROCESSING, submission=submission)
        await settle_job(worker, job, Retry(code="crashed", message="It crashed.", crashed=True))
        (answer,) = await replay(operator, job.job_id)
        assert answer.replayed_as is not None
        lanes[name, priority] = (await job_row(superuser, answer.replayed_as))["lane"]

    stranger = a_submission(lane=Lane.QUARANTINE)
    job = await a_job(worker, superuser, state=JobState.FAILED, submission=stranger)
    (unknown,) = await replay_letters(operator, [job.job_id], ORDER, {})

    assert {
        ("process_image", 100): "general",
        ("process_image", 10): "fast",
        ("cancel_job", 100): "fast",
    } == lanes
    assert unknown.ring is not None
    assert Lane.GENERAL is unknown.ring.lane


async def test_the_replay_of_an_image_keeps_the_age_of_its_source(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    target = image_target(uuid4())
    old = await failed(worker, superuser, a_submission(type="process_image", target=target))
    newer = a_submission(type="process_image", target=target)
    await a_job(worker, superuser, state=JobState.COMPLETED, submission=newer)

    (first,) = await replay(operator, old)
    assert first.replayed_as is not None
    again = await run(worker, first.replayed_as, CORRUPT)
    (second,) = await replay(operator, again)

    assert second.replayed_as is not None
    rows = [await job_row(superuser, id_) for id_ in (first.replayed_as, second.replayed_as)]
    assert [(3, 1, 1), (4, 1, 2)] == [
        (row["target_seq"], row["payload"]["source_seq"], row["generation"]) for row in rows
    ]


async def run(worker: Connection, job_id: JobId, outcome: Outcome) -> JobId:
    await settle_job(worker, await hold_job(worker, job_id), outcome)
    return job_id


# Once.


async def test_a_failure_is_replayed_once_and_the_second_is_told_of_the_first(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    job_id = await failed(worker, superuser)
    letter = await get_dead_letter(operator, job_id)

    outcome, replayed_as = await replay_one(operator, letter.id)

    assert REPLAYED is outcome
    assert (ALREADY, replayed_as) == await replay_one(operator, job_id)
    assert (ALREADY, replayed_as) == await replay_one(operator, job_id, replace(ORDER, force=True))
    assert 1 == await replays_of(superuser, job_id)


async def test_the_same_letter_twice_in_one_request_is_one_replay(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    job_id = await failed(worker, superuser)
    letter = await get_dead_letter(operator, job_id)

    answers = await replay(operator, letter.id, job_id, letter.id)

    assert [REPLAYED] == [answer.outcome for answer in answers]
    assert 1 == await replays_of(superuser, job_id)


async def test_operators_and_a_redrive_at_once_make_one_replay(
    database: Database, worker: Connection, superuser: Connection
) -> None:
    ids = [await failed(worker, superuser) for _ in range(5)]

    async with database.pool("operator") as operators, database.pool("worker") as workers:

        async def by_hand() -> list[Replayed]:
            async with operators.connection() as connection:
                return await replay(connection, *ids)

        async def by_redrive(job_id: JobId) -> list[Replayed]:
            async with workers.connection() as connection:
                answer = await replay_redriven(connection, job_id, BUILT_IN)
                return [] if answer is None else [answer]

        answers = await asyncio.gather(
            by_hand(), by_hand(), *(by_redrive(job_id) for job_id in reversed(ids))
        )

    told = [one for answer in answers for one in answer]
    assert 5 == sum(replay.outcome is REPLAYED for replay in told)
    assert {REPLAYED, ALREADY, ReplayOutcome.ACKNOWLEDGED} >= {replay.outcome for replay in told}
    assert [1] * 5 == [await replays_of(superuser, job_id) for job_id in ids]


async def test_whoever_replays_has_dealt_with_the_letter(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    job_id = await failed(worker, superuser)

    _, replayed_as = await replay_one(operator, job_id)

    letter = await get_dead_letter(operator, job_id)
    assert 0 == await count_unacknowledged(operator)
    assert ("ada", f"replayed as {replayed_as}") == (
        letter.acknowledged_by,
        letter.acknowledged_note,
    )


# What is refused.


async def test_what_somebody_acknowledged_is_replayed_only_by_force(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    job_id = await failed(worker, superuser)
    letter = await get_dead_letter(operator, job_id)
    await acknowledge_dead_letters(operator, [letter.id], by="ben", note="known")

    refused = await replay_one(operator, job_id)
    redriven = await replay_redriven(worker, job_id, BUILT_IN)
    before = await replays_of(superuser, job_id)
    forced, _ = await replay_one(operator, job_id, replace(ORDER, force=True))

    assert redriven is not None
    assert (ReplayOutcome.ACKNOWLEDGED, None) == refused
    assert (ReplayOutcome.ACKNOWLEDGED, 0) == (redriven.outcome, before)
    letter = await get_dead_letter(operator, job_id)
    assert (REPLAYED, "ben") == (forced, letter.acknowledged_by)


async def test_a_letter_of_no_job_and_one_without_a_snapshot_cannot_be_replayed(
    operator: Connection,
    maintenance: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    stray = DeadMessage(
        job_id=None,
        reason="unreadable",
        message="It is not ours.",
        detail="fast",
        sha256="0",
        snapshot={},
        sent_at=SOME_TIME,
    )
    await judge_messages(maintenance, [stray])
    job_id = await failed(worker, superuser)
    await superuser.execute("UPDATE dead_letters SET snapshot = '{}' WHERE job_id IS NOT NULL")
    ids = [row["id"] for row in await superuser.fetch("SELECT id FROM dead_letters")]

    answers = await replay(operator, *ids)

    assert [ReplayOutcome.NOT_REPLAYABLE] * 2 == [answer.outcome for answer in answers]
    assert 0 == await replays_of(superuser, job_id)
    assert 2 == await count_unacknowledged(operator)


async def test_a_replay_waits_for_the_living_job_of_its_dedup_key(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    job_id = await failed(worker, superuser, a_submission(dedup_key="d"))
    living = await submit_job(worker, a_submission(dedup_key="d"))

    told = await replay_one(operator, job_id)

    assert (ReplayOutcome.DUPLICATE, living.job_id) == told
    assert 1 == await count_unacknowledged(operator)


async def test_ids_that_are_unknown_are_left_out_and_too_many_are_refused(
    operator: Connection,
) -> None:
    assert [] == await replay(operator, uuid4())
    with pytest.raises(RequestRejected):
        await replay(operator, *(uuid4() for _ in range(MOST_AT_ONCE + 1)))
    with pytest.raises(RequestRejected):
        await replay_page(operator, LetterFilter(), ORDER, BUILT_IN, limit=MOST_AT_ONCE + 1)


async def test_a_job_without_a_letter_is_not_redriven(
    worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=JobState.COMPLETED)

    assert await replay_redriven(worker, job.job_id, BUILT_IN) is None


# Many.


async def test_a_dry_run_tells_the_same_and_leaves_no_trace(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    ids = [await failed(worker, superuser, a_submission(target="t")) for _ in range(2)]
    same = [await failed(worker, superuser, a_submission(dedup_key="d")) for _ in range(2)]
    state = "SELECT (SELECT count(*) FROM jobs), (SELECT next_seq FROM targets)"
    before = await superuser.fetchrow(state)

    dry = await replay(operator, *ids, *same, order=replace(ORDER, dry_run=True))

    assert before == await superuser.fetchrow(state)
    assert 4 == await count_unacknowledged(operator)
    wet = await replay(operator, *ids, *same)
    assert [replay.outcome for replay in wet] == [replay.outcome for replay in dry]
    assert [REPLAYED] * 3 + [ReplayOutcome.DUPLICATE] == [replay.outcome for replay in dry]
    assert [(None, None)] * 4 == [(replay.replayed_as, replay.ring) for replay in dry]


async def test_a_canary_goes_first_and_the_rest_when_asked(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    ids = [await failed(worker, superuser) for _ in range(5)]
    fingerprint = (await get_dead_letter(operator, ids[0])).fingerprint
    other = await failed(worker, superuser, a_submission(type="cancel_job"))
    filters = LetterFilter(fingerprint=fingerprint)

    canary = await replay_page(operator, filters, ORDER, BUILT_IN, limit=2)
    after_canary = [await replays_of(superuser, job_id) for job_id in ids]
    pages = [canary]
    while pages[-1].last is not None:
        after = pages[-1].last
        page = await replay_page(operator, filters, ORDER, BUILT_IN, after=after, limit=2)
        pages.append(page)

    assert [1, 1, 0, 0, 0] == after_canary
    assert [2, 2, 1, 0] == [len(page.replayed) for page in pages]
    assert ids == [replay.job_id for page in pages for replay in page.replayed]
    assert 0 == await replays_of(superuser, other)


async def test_pages_go_past_what_cannot_be_replayed(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    stuck = await failed(worker, superuser, a_submission(dedup_key="d"))
    await submit_job(worker, a_submission(dedup_key="d"))
    fine = await failed(worker, superuser)

    first = await replay_page(operator, LetterFilter(), ORDER, BUILT_IN, limit=1)
    second = await replay_page(operator, LetterFilter(), ORDER, BUILT_IN, after=first.last, limit=1)

    assert [(stuck, ReplayOutcome.DUPLICATE), (fine, REPLAYED)] == [
        (replay.job_id, replay.outcome) for replay in (*first.replayed, *second.replayed)
    ]


async def test_whoever_replays_many_sees_how_they_fare(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    states = (JobState.COMPLETED, JobState.FAILED, JobState.FAILED, JobState.FAILED_RETRYABLE)
    ids = [(await a_job(worker, superuser, state=state)).job_id for state in states]
    queued = await submit_job(worker, a_submission())

    outcomes = await count_outcomes(operator, [*ids, queued.job_id])
    nothing = await count_outcomes(operator, [queued.job_id])

    assert (2, 1, 2) == (outcomes.open, outcomes.completed, outcomes.failed)
    assert (2 / 3, 0) == (outcomes.failure_ratio, nothing.failure_ratio)


async def test_a_replay_can_complete(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    _, replayed_as = await replay_one(operator, await failed(worker, superuser))
    assert replayed_as is not None

    await run(worker, replayed_as, Completed())

    outcomes = await count_outcomes(operator, [replayed_as])
    assert (0, 1, 0) == (outcomes.open, outcomes.completed, outcomes.failed)
