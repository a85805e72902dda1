"""Reading dead letters: which filters there are, and that no question reads through the history."""

import hashlib
import json
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from imagefleet.errors import RequestRejected
from imagefleet.jobs.model import JobState, TenantId
from imagefleet.store.database import Connection
from imagefleet.store.letters import dead_letter_queue, faults, letters, replays
from imagefleet.store.letters.dead_letter_queue import DeadMessage, judge_messages
from imagefleet.store.letters.faults import HOURS, count_hourly, group_dead_letters
from imagefleet.store.letters.letters import (
    LetterFilter,
    acknowledge_dead_letters,
    count_unacknowledged,
    get_dead_letter,
    get_dead_letters,
    list_dead_letters,
)
from tests.support.database import driver_of
from tests.support.factories import TENANT, MadeJob, a_job, a_submission
from tests.support.rows import job_row

OTHER = TenantId("other")


async def failures(worker: Connection, superuser: Connection) -> tuple[MadeJob, MadeJob, MadeJob]:
    """Of two types and of two tenants."""
    noop = await a_job(worker, superuser, state=JobState.FAILED)
    image = a_submission(type="process_image")
    theirs = a_submission(type="process_image", tenant_id=OTHER)
    return (
        noop,
        await a_job(worker, superuser, state=JobState.FAILED, submission=image),
        await a_job(worker, superuser, state=JobState.FAILED, submission=theirs),
    )


async def acknowledge_all(operator: Connection) -> None:
    ids = [letter.id for letter in await list_dead_letters(operator, LetterFilter())]
    assert len(ids) == await acknowledge_dead_letters(operator, ids, by="ada", note=None)


async def test_the_history_is_listed_whole_by_tenant_or_by_fault(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    noop, image, theirs = await failures(worker, superuser)
    fingerprint = (await get_dead_letter(operator, image.job_id)).fingerprint
    await acknowledge_all(operator)

    found = [
        [letter.job_id for letter in await list_dead_letters(operator, filters)]
        for filters in (
            LetterFilter(),
            LetterFilter(open_only=False),
            LetterFilter(open_only=False, tenant_id=OTHER),
            LetterFilter(open_only=False, fingerprint=fingerprint),
        )
    ]

    assert [
        [],
        [noop.job_id, image.job_id, theirs.job_id],
        [theirs.job_id],
        [image.job_id, theirs.job_id],
    ] == found


@pytest.mark.parametrize(
    "filters",
    [
        LetterFilter(open_only=False, type="noop"),
        LetterFilter(open_only=False, reason="corrupt"),
        LetterFilter(open_only=False, tenant_id=OTHER, fingerprint="f"),
    ],
)
async def test_a_question_that_would_read_the_whole_history_is_refused(
    filters: LetterFilter, operator: Connection
) -> None:
    with pytest.raises(RequestRejected) as refused:
        await list_dead_letters(operator, filters)

    assert "invalid_filter" == refused.value.code


async def test_groups_can_be_asked_for_with_the_same_filters(
    operator: Connection,
    maintenance: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    await failures(worker, superuser)
    await judge_messages(maintenance, [a_stray()])

    everything = await group_dead_letters(operator)
    theirs = await group_dead_letters(operator, LetterFilter(tenant_id=OTHER))
    of_each = await group_dead_letters(operator, LetterFilter(type="process_image"), by_tenant=True)

    assert {("noop", 1, 1), ("process_image", 2, 2), (None, 1, 0)} == {
        (group.job_type, group.letters, group.replayable) for group in everything
    }
    assert [("process_image", 1)] == [(group.job_type, group.letters) for group in theirs]
    assert {("process_image", 2)} == {
        (group.job_type, group.tenants) for group in everything if group.job_type == "process_image"
    }
    assert {(TENANT, 1), (OTHER, 1)} == {(group.tenant, group.letters) for group in of_each}


async def test_a_group_names_five_of_its_tenants_and_the_message_of_its_newest(
    operator: Connection, maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    for number in range(6, 0, -1):
        job = a_submission(tenant_id=TenantId(f"t{number}"))
        made = await a_job(worker, superuser, state=JobState.FAILED, submission=job)
        await superuser.execute(
            "UPDATE dead_letters SET message = $2 WHERE job_id = $1", made.job_id, f"said {number}"
        )
    await judge_messages(maintenance, [a_stray()])

    of_all, stray = await group_dead_letters(operator)
    of_each = await group_dead_letters(operator, LetterFilter(type="noop"), by_tenant=True)

    assert (6, ["t1", "t2", "t3", "t4", "t5"]) == (of_all.tenants, of_all.tenant_names)
    newest = await get_dead_letter(operator, of_all.example)
    assert "said 1" == newest.message == of_all.message
    assert (0, [], "It is not ours.") == (stray.tenants, stray.tenant_names, stray.message)
    assert {(f"t{n}", f"said {n}") for n in range(1, 7)} == {
        (group.tenant, group.message) for group in of_each
    }
    assert all([group.tenant] == group.tenant_names for group in of_each)


def a_stray() -> DeadMessage:
    return DeadMessage(
        job_id=None,
        reason="unreadable",
        message="It is not ours.",
        detail="fast",
        sha256="0",
        snapshot={"body": "hello"},
        sent_at=datetime.now(UTC),
    )


async def test_letters_are_found_by_their_own_ids_and_by_those_of_their_jobs(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    noop, image, _ = await failures(worker, superuser)
    letter = await get_dead_letter(operator, noop.job_id)

    found = await get_dead_letters(operator, [image.job_id, letter.id, uuid4()])

    assert [noop.job_id, image.job_id] == [one.job_id for one in found]


async def test_only_what_nobody_has_dealt_with_is_counted(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    noop, _, _ = await failures(worker, superuser)
    letter = await get_dead_letter(operator, noop.job_id)

    before = await count_unacknowledged(operator)
    await acknowledge_dead_letters(operator, [letter.id], by="ada", note=None)

    assert (3, 2) == (before, await count_unacknowledged(operator))


async def test_a_letter_says_when_its_job_died(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    noop, _, _ = await failures(worker, superuser)

    letter = await get_dead_letter(operator, noop.job_id)

    assert (await job_row(superuser, noop.job_id))["finished_at"] == letter.died_at


# Plans.

HISTORY = 20_000
# One in a thousand is open; one tenant, one fault and one reason are rare. Half were replayed.
LOAD = f"""
SET LOCAL session_replication_role = replica;
INSERT INTO jobs (id, tenant_id, type, lane, correlation_id, created_by, replay_of, generation)
SELECT md5('job ' || n)::uuid, 'acme', 'noop', 'fast', 'c', 'load', md5(n::text)::uuid, 1
  FROM generate_series(1, {HISTORY}, 2) AS n WHERE n % 1000 <> 1;
INSERT INTO rings (job_id, lane, tenant_id, type, priority)
SELECT id, lane, tenant_id, type, priority FROM jobs;
INSERT INTO ledger (accepted) SELECT count(*) FROM jobs;
INSERT INTO ledger_entries (hour, type, lane, queued)
SELECT hour_of(id), type, lane, count(*) FROM jobs GROUP BY 1, 2, 3;
INSERT INTO dead_letters (id, job_id, tenant_id, type, reason, fingerprint, message, snapshot,
                          died_at, acknowledged_at, acknowledged_by)
SELECT md5('letter ' || n)::uuid, CASE WHEN n % 10 <> 3 THEN md5(n::text)::uuid END,
       CASE WHEN n % 9000 = 5 THEN 'rare' ELSE 'acme' END, 'noop',
       CASE WHEN n % 9000 = 5 THEN 'poison' ELSE 'corrupt' END,
       CASE WHEN n % 9000 = 5 THEN 'rare' ELSE 'often' END, 'm',
       jsonb_build_object('sha256', n::text), now() - interval '1 day' + interval '1 second' * n,
       CASE WHEN n % 1000 <> 1 THEN now() END, CASE WHEN n % 1000 <> 1 THEN 'load' END
  FROM generate_series(1, {HISTORY}) AS n;
INSERT INTO dead_letter_sends (dead_letter_id, due_at)
SELECT id, now() - interval '1 hour' FROM dead_letters;
"""  # noqa: S608 - a number of this file
START = "NULL, NULL, 50"
MIDDLE = "now() - interval '20 hours', NULL, 50"


def id_of(name: str) -> str:
    return str(UUID(hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()))


STRAY = {"reason": "unreadable", "message": "m", "detail": "fast", "snapshot": {}}
SENT_AT = [datetime.now(UTC) - timedelta(days=1), datetime.now(UTC)]
ASKED = json.dumps(
    [
        STRAY
        | {"n": n, "job_id": id_of(f"job {n}"), "sha256": str(n), "sent_at": str(SENT_AT[n % 2])}
        for n in range(10)
    ]
)
ONE = "md5('letter 1')::uuid"
IDS = "ARRAY [" + ", ".join(f"md5('letter {n}')::uuid" for n in range(1, 4000, 400)) + "]"

QUESTIONS = {
    "open": (letters.LIST_OPEN_LETTERS, f"{START}, NULL, NULL, NULL, NULL, NULL"),
    "open, by a rare reason": (
        letters.LIST_OPEN_LETTERS,
        f"{START}, now(), NULL, NULL, 'poison', NULL",
    ),
    "open, by a rare fault": (
        letters.LIST_OPEN_LETTERS,
        f"{START}, NULL, NULL, NULL, NULL, 'rare'",
    ),
    "history": (letters.LIST_LETTERS, f"{START}, NULL"),
    "history, deep": (letters.LIST_LETTERS, f"{MIDDLE}, now()"),
    "history of a rare tenant": (letters.LIST_LETTERS_OF_TENANT, f"{START}, NULL, 'rare'"),
    "history of a tenant, deep": (letters.LIST_LETTERS_OF_TENANT, f"{MIDDLE}, NULL, 'acme'"),
    "history of a rare fault": (letters.LIST_LETTERS_OF_FAULT, f"{START}, NULL, 'rare'"),
    "history of a fault, deep": (letters.LIST_LETTERS_OF_FAULT, f"{MIDDLE}, NULL, 'often'"),
    "groups": (faults.GROUP_LETTERS, "50, NULL, NULL, NULL, NULL, false, NULL, NULL"),
    "groups of tenants": (faults.GROUP_LETTERS, "50, NULL, NULL, NULL, NULL, true, NULL, now()"),
    "fault that begins so": (faults.FIND_FAULTS, "'often', 5"),
    "letters that begin alike": (
        letters.FIND_LETTERS,
        f"{ONE}, {ONE}, 10",
    ),
    "some": (letters.GET_LETTERS, IDS),
    "count": (letters.COUNT_UNACKNOWLEDGED, None),
    "acknowledge": (letters.ACKNOWLEDGE, f"{IDS}, 'ada', NULL"),
    "close replayed": (replays.CLOSE_REPLAYED, IDS),
    "find replayed": (replays.FIND_REPLAYED, "500"),
    "sends": (dead_letter_queue.TAKE_DUE_SENDS, "10"),
    "forget sends": (dead_letter_queue.FORGET_SENDS, IDS),
    "messages": (dead_letter_queue.JUDGE_MESSAGES, f"'{ASKED}'"),
}


async def test_no_question_reads_through_the_history(superuser: Connection) -> None:
    async with superuser.transaction():
        await superuser.execute(LOAD)
    await superuser.execute("VACUUM ANALYZE")

    pages = {}
    for mode in ("force_generic_plan", "force_custom_plan"):
        await superuser.execute(f"SET plan_cache_mode = {mode}")
        for name, (statement, arguments) in QUESTIONS.items():
            pages[name, mode] = await pages_read(superuser, statement, arguments)

    # A page of a list looks up each letter's replay, three pages of index at a time.
    assert {} == {name: count for name, count in pages.items() if count > 200}


async def pages_read(connection: Connection, statement: str, arguments: str | None) -> int:
    """Pages of tables and indexes that it touches, in an execution that is undone."""
    undo = driver_of(connection).transaction()
    await undo.start()
    await connection.execute(f"PREPARE question AS {statement}")
    call = "question" if arguments is None else f"question({arguments})"
    explained = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {call}")
    await connection.execute("DEALLOCATE question")
    await undo.rollback()
    plan = json.loads(explained)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def test_a_fault_tells_how_often_it_struck_in_each_hour_whoever_has_seen_to_it(
    operator: Connection,
    worker: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faults, "MOST_AN_HOUR", 3)
    ages = [timedelta(minutes=1)] * 5 + [timedelta(hours=hours, minutes=30) for hours in (5, 5, 30)]
    for age in ages:
        job = await a_job(worker, superuser, state=JobState.FAILED)
        await superuser.execute(
            "UPDATE dead_letters SET died_at = died_at - $2::interval WHERE job_id = $1",
            job.job_id,
            age,
        )
    seen = await superuser.fetchval("SELECT job_id FROM dead_letters ORDER BY died_at OFFSET 1")
    letter = await get_dead_letter(operator, seen)
    await acknowledge_dead_letters(operator, [letter.id], by="ada", note=None)

    (fault,) = await group_dead_letters(operator)
    hourly = (await count_hourly(operator, [fault.fingerprint]))[fault.fingerprint]

    assert {HOURS - 1: 3, HOURS - 6: 2} == {
        hour: count for hour, count in enumerate(hourly) if count
    }
    assert (7, HOURS) == (fault.letters, len(hourly))
    assert {} == await count_hourly(operator, [])
