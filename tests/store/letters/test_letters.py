"""A failure leaves one letter for people and one send for the queue, or there was no failure."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias
from uuid import uuid4

import asyncpg
import pytest

from imagefleet.errors import NotFound
from imagefleet.jobs.lifecycle import Completed, Failed, Outcome, Released, Retry
from imagefleet.jobs.model import CancelCode, JobId, JobState, Lane, TenantId
from imagefleet.jobs.shapes.letters import WholeLetter
from imagefleet.store.database import Connection
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.letters.faults import group_dead_letters
from imagefleet.store.letters.letters import (
    LetterFilter,
    acknowledge_dead_letters,
    get_dead_letter,
    list_dead_letters,
)
from tests.support.database import driver_of
from tests.support.factories import (
    CORRUPT,
    UNAVAILABLE,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    settle_job,
)

FAILED, PROCESSING = JobState.FAILED, JobState.PROCESSING
OTHER = TenantId("other")

End: TypeAlias = Callable[[Connection, Connection], Awaitable[MadeJob]]
LETTERS = """
SELECT letters.job_id, letters.reason, letters.snapshot ->> 'state' AS state, sends.sends
  FROM dead_letters AS letters
  LEFT JOIN dead_letter_sends AS sends ON sends.dead_letter_id = letters.id
"""


async def letters(connection: Connection) -> list[tuple[object, ...]]:
    return [tuple(row) for row in await connection.fetch(LETTERS)]


def settled_with(
    outcome: Outcome, *, max_attempts: int = 5, lane: Lane = Lane.FAST, **how: object
) -> End:
    async def end(worker: Connection, superuser: Connection) -> MadeJob:
        submission = a_submission(max_attempts=max_attempts, lane=lane)
        job = await a_job(worker, superuser, state=PROCESSING, submission=submission, **how)  # type: ignore[arg-type]
        await settle_job(worker, job, outcome)
        return job

    return end


def found_exhausted_by_a_claim(lane: Lane) -> End:
    async def end(worker: Connection, superuser: Connection) -> MadeJob:
        submission = a_submission(max_attempts=1, lane=lane)
        job = await a_job(
            worker, superuser, state=PROCESSING, lock_expired=True, submission=submission
        )
        await claim_job(worker, job.job_id, await a_worker(worker))
        return job

    return end


def rescued(lane: Lane, flag: CancelCode | None = None) -> End:
    async def end(worker: Connection, superuser: Connection) -> MadeJob:
        submission = a_submission(lane=lane)
        job = await a_job(worker, superuser, state=PROCESSING, flag=flag, submission=submission)
        for seen in await look_at_workers(superuser):
            await rescue_worker(superuser, seen)
        return job

    return end


CRASH = Retry(code="crashed", message="It crashed.", crashed=True)
UNWRITABLE = Completed(result={"a": "\0"})  # jsonb has no such character

ENDS_THAT_ARE_FAILURES: dict[str, tuple[End, str]] = {
    "a permanent error": (settled_with(CORRUPT), "corrupt"),
    "the last attempt": (settled_with(UNAVAILABLE, max_attempts=1), "unavailable"),
    "a crash in quarantine": (settled_with(CRASH, lane=Lane.QUARANTINE), "poison"),
    "a result that cannot be written": (settled_with(UNWRITABLE), "settle_rejected"),
    "an operator's decision": (
        settled_with(Released(why="drain"), flag=CancelCode.FAILED_BY_OPERATOR),
        "failed_by_operator",
    ),
    "a lock that expired on the last attempt": (
        found_exhausted_by_a_claim(Lane.FAST),
        "attempts_exhausted",
    ),
    "a lock that expired in quarantine": (
        found_exhausted_by_a_claim(Lane.QUARANTINE),
        "attempts_exhausted",
    ),
    "a worker lost in quarantine": (rescued(Lane.QUARANTINE), "poison"),
}


@pytest.mark.parametrize("name", ENDS_THAT_ARE_FAILURES)
async def test_each_way_to_fail_leaves_one_letter_and_one_send(
    name: str, worker: Connection, superuser: Connection
) -> None:
    end, reason = ENDS_THAT_ARE_FAILURES[name]

    job = await end(worker, superuser)

    assert [(job.job_id, reason, "failed", 0)] == await letters(superuser)


ENDS_THAT_ARE_NOT: dict[str, End] = {
    "completed": settled_with(Completed()),
    "to be retried": settled_with(UNAVAILABLE),
    "released": settled_with(Released(why="drain")),
    "cancelled": settled_with(Released(why="drain"), flag=CancelCode.CANCELLED),
    "cancelled before it was claimed": settled_with(
        Released(why="drain"), flag=CancelCode.CANCELLED, flagged_before_claim=True
    ),
    "its image was deleted": settled_with(UNAVAILABLE, flag=CancelCode.IMAGE_DELETED),
    "its worker was lost": rescued(Lane.FAST),
    "its worker was lost, and it was cancelled": rescued(Lane.QUARANTINE, CancelCode.CANCELLED),
}


@pytest.mark.parametrize("name", ENDS_THAT_ARE_NOT)
async def test_what_is_no_failure_of_ours_leaves_no_letter(
    name: str, worker: Connection, superuser: Connection
) -> None:
    await ENDS_THAT_ARE_NOT[name](worker, superuser)

    assert [] == await letters(superuser)


async def test_a_failure_that_is_rolled_back_leaves_no_letter_and_no_send(
    worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=PROCESSING)

    undo = driver_of(worker).transaction()
    await undo.start()
    await settle_job(worker, job, CORRUPT)
    inside = await letters(worker)
    await undo.rollback()

    assert (1, []) == (len(inside), await letters(superuser))
    assert 0 == await superuser.fetchval("SELECT count(*) FROM dead_letter_sends")


async def test_a_letter_that_cannot_be_written_is_no_failure_either(
    worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=PROCESSING)
    await superuser.execute("ALTER TABLE dead_letter_sends ADD CHECK (false)")

    with pytest.raises(asyncpg.CheckViolationError):
        await driver_of(worker).execute(
            """
            UPDATE jobs SET state = 'failed', failure_code = 'x', failure_message = 'x',
                            locked_by = NULL, locked_at = NULL, finished_at = now()
             WHERE id = $1
            """,
            job.job_id,
        )

    state = await superuser.fetchval("SELECT state FROM jobs")
    assert ("processing", []) == (state, await letters(superuser))


async def test_a_letter_keeps_the_job_as_it_was_when_it_failed(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    submission = a_submission(payload={"milliseconds": 7})
    job = await a_job(worker, superuser, state=FAILED, submission=submission)

    letter = await get_dead_letter(operator, job.job_id)

    assert ("corrupt", "The image is damaged.", "bad header") == (
        letter.reason,
        letter.message,
        letter.detail,
    )
    assert ({"milliseconds": 7}, 1, 1) == (
        letter.snapshot["payload"],
        letter.snapshot["attempts"],
        letter.snapshot["claim_no"],
    )


# Fingerprints.


async def fingerprint_of(
    worker: Connection,
    superuser: Connection,
    *,
    detail: str | None,
    code: str = "corrupt",
    type: str = "noop",  # noqa: A002 - the field's own name
) -> str:
    job = await a_job(worker, superuser, state=PROCESSING, submission=a_submission(type=type))
    await settle_job(worker, job, Failed(code=code, message="It failed.", detail=detail))
    return (await get_dead_letter(superuser, job.job_id)).fingerprint


UUIDS = ("1f0e9c52-6c1b-4d7a-9a53-0d1f6f2f8f11", "cf0d4759-2ddb-44b6-aa9c-2a7674c4e81a")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("3 of 5 attempts", "12 of 100 attempts"),
        (f"worker {UUIDS[0]} went silent", f"worker {UUIDS[1]} went silent"),
        (f"no object i/{UUIDS[0]}/1.2/800.webp", f"no object i/{UUIDS[1]}/17.1/1600.webp"),
        ("sha256 9F86D081884C7D65 differs", "sha256 2c26b46b68ffc68ff differs"),
        ("at 2026-01-01T10:00:00", "at 2027-12-31T23:59:59"),
        (None, ""),
    ],
)
async def test_the_same_fault_of_other_jobs_is_one_group(
    one: str | None, two: str, worker: Connection, superuser: Connection
) -> None:
    first = await fingerprint_of(worker, superuser, detail=one)

    assert first == await fingerprint_of(worker, superuser, detail=two)


async def test_other_faults_are_other_groups(worker: Connection, superuser: Connection) -> None:
    found = [
        await fingerprint_of(worker, superuser, detail="bad header"),
        await fingerprint_of(worker, superuser, detail="bad trailer"),
        await fingerprint_of(worker, superuser, detail=None),
        await fingerprint_of(worker, superuser, detail="bad header", code="unsupported"),
        await fingerprint_of(worker, superuser, detail="bad header", type="process_image"),
    ]

    assert 5 == len(set(found))


# Reading and acknowledging.


async def failed_jobs(worker: Connection, superuser: Connection, count: int) -> list[MadeJob]:
    return [await a_job(worker, superuser, state=FAILED) for _ in range(count)]


async def listed(
    operator: Connection,
    filters: LetterFilter | None = None,
    *,
    after: WholeLetter | None = None,
    limit: int = 50,
) -> list[WholeLetter]:
    return await list_dead_letters(operator, filters or LetterFilter(), after=after, limit=limit)


def jobs_of(page: list[WholeLetter]) -> list[JobId | None]:
    return [letter.job_id for letter in page]


@pytest.mark.parametrize("open_only", [True, False])
async def test_pages_of_letters_are_whole_and_oldest_first(
    open_only: bool,  # noqa: FBT001 - the values are above
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    jobs = await failed_jobs(worker, superuser, 5)
    found: list[WholeLetter] = []

    filters = LetterFilter(open_only=open_only)
    while page := await listed(operator, filters, after=found[-1] if found else None, limit=2):
        found += page

    assert [job.job_id for job in jobs] == jobs_of(found)


async def test_a_letter_is_acknowledged_once(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    job, other = await failed_jobs(worker, superuser, 2)
    letter = await get_dead_letter(operator, job.job_id)
    first = await acknowledge_dead_letters(operator, [letter.id], by="ada", note="known")

    second = await acknowledge_dead_letters(operator, [letter.id], by="ben", note=None)

    letter = await get_dead_letter(operator, letter.id)
    assert (1, 0) == (first, second)
    assert ("ada", "known") == (letter.acknowledged_by, letter.acknowledged_note)
    assert [other.job_id] == jobs_of(await listed(operator))


async def test_a_letter_whose_job_was_replayed_is_dealt_with(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    replayed, other = await failed_jobs(worker, superuser, 2)
    replay = await submit_job(operator, a_submission(replay_of=replayed.job_id))

    letter = await get_dead_letter(operator, replayed.job_id)

    assert replay.job_id == letter.replayed_as
    assert [other.job_id] == jobs_of(await listed(operator))
    assert [replayed.job_id, other.job_id] == jobs_of(
        await listed(operator, LetterFilter(open_only=False))
    )


async def test_each_filter_of_letters_shows_what_it_names(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    plain = await a_job(worker, superuser, state=FAILED)
    theirs = await a_job(worker, superuser, state=FAILED, submission=a_submission(tenant_id=OTHER))
    image = await a_job(
        worker, superuser, state=FAILED, submission=a_submission(type="process_image")
    )
    poison = await rescued(Lane.QUARANTINE)(worker, superuser)
    fingerprint = (await get_dead_letter(operator, plain.job_id)).fingerprint

    found = {
        "tenant": jobs_of(await listed(operator, LetterFilter(tenant_id=OTHER))),
        "type": jobs_of(await listed(operator, LetterFilter(type="process_image"))),
        "reason": jobs_of(await listed(operator, LetterFilter(reason="poison"))),
        "fingerprint": jobs_of(await listed(operator, LetterFilter(fingerprint=fingerprint))),
        "nothing": jobs_of(await listed(operator, LetterFilter(tenant_id=OTHER, reason="poison"))),
    }

    assert {
        "tenant": [theirs.job_id],
        "type": [image.job_id],
        "reason": [poison.job_id],
        "fingerprint": [plain.job_id, theirs.job_id],
        "nothing": [],
    } == found


async def test_open_letters_are_grouped_by_their_fault(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    same = await failed_jobs(worker, superuser, 3)
    await rescued(Lane.QUARANTINE)(worker, superuser)
    known = await get_dead_letter(operator, same[0].job_id)
    await acknowledge_dead_letters(operator, [known.id], by="ada", note=None)

    groups = await group_dead_letters(operator)

    newest = await get_dead_letter(operator, same[2].job_id)
    assert [("corrupt", 2), ("poison", 1)] == [(group.reason, group.letters) for group in groups]
    assert (newest.id, newest.died_at) == (groups[0].example, groups[0].last_died_at)


async def test_an_unknown_letter_is_not_found(operator: Connection) -> None:
    with pytest.raises(NotFound):
        await get_dead_letter(operator, uuid4())
