"""The dead-letter queue: what a message is about, what a sweep leaves, what moving back is."""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID, uuid4

import pytest

from imagefleet.aws.queue import Message, Queue, Received
from imagefleet.errors import FleetError
from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.lifecycle import Released
from imagefleet.jobs.model import (
    CancelCode,
    JobId,
    JobMessage,
    JobState,
    Lane,
    encode_message,
    parse_message,
)
from imagefleet.maintenance.deadletters import (
    DeadLetterSender,
    DeadLetterSweeper,
    SweptDeadLetters,
    read,
)
from imagefleet.store.database import Connection, Pool
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.letters.dead_letter_queue import DeadMessage, judge_messages, take_due_sends
from imagefleet.store.letters.letters import (
    acknowledge_dead_letters,
    count_unacknowledged,
    get_dead_letter,
    prune_strays,
)
from imagefleet.store.letters.replays import replay_redriven
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.maintenance.dead_letters import SOON, failed, lying_in
from tests.support.eventually import Resting, eventually
from tests.support.factories import a_job, a_submission, settle_job
from tests.support.fleet import SOME_TIME, Place, inside
from tests.support.rows import job_row, ring_row


@pytest.fixture
async def sweeper(
    place: Place, pool: Pool, dead_letters: Queue, metrics: MaintenanceMetrics
) -> DeadLetterSweeper:
    return DeadLetterSweeper(pool, dead_letters, await place.queues(), uuid4(), metrics)


async def put(queue: Queue, *bodies: str) -> None:
    messages = [Message(body=body, group="tests") for body in bodies]
    assert set(await queue.send(messages)) == {None}


def plain(job_id: UUID) -> str:
    """As SQS's own policy moves it here."""
    return encode_message(JobMessage(job_id=JobId(job_id)))


# What lies there: the kind of message times the state of its job.

Make: TypeAlias = Callable[[Connection, Connection], Awaitable[JobId]]


def in_state(state: JobState, *, due: bool = True) -> Make:
    async def make(worker: Connection, superuser: Connection) -> JobId:
        return (await a_job(worker, superuser, state=state, due=due)).job_id

    return make


async def acknowledged(worker: Connection, superuser: Connection) -> JobId:
    job_id = await failed(worker, superuser)
    letter = await get_dead_letter(superuser, job_id)
    await acknowledge_dead_letters(superuser, [letter.id], by="ada", note=None)
    return job_id


async def replayed(worker: Connection, superuser: Connection) -> JobId:
    job_id = await failed(worker, superuser)
    await submit_job(superuser, a_submission(replay_of=job_id))
    return job_id


def stopped(code: CancelCode) -> Make:
    async def make(worker: Connection, superuser: Connection) -> JobId:
        job = await a_job(worker, superuser, state=JobState.PROCESSING, flag=code)
        await settle_job(worker, job, Released(why="drain"))
        return job.job_id

    return make


async def without_letter(worker: Connection, superuser: Connection) -> JobId:
    job_id = await failed(worker, superuser)
    await superuser.execute("DELETE FROM dead_letter_sends")
    await superuser.execute("DELETE FROM dead_letters WHERE job_id = $1", job_id)
    return job_id


async def nobody(worker: Connection, superuser: Connection) -> JobId:
    return JobId(uuid4())


TABLE: dict[str, tuple[Make, str, bool]] = {
    # the job: what its message is found to be about, and whether it stays
    "queued": (in_state(JobState.QUEUED), "rung", False),
    "queued for later": (in_state(JobState.QUEUED, due=False), "rung", False),
    "failed_retryable": (in_state(JobState.FAILED_RETRYABLE), "rung", False),
    "processing": (in_state(JobState.PROCESSING), "running", False),
    "completed": (in_state(JobState.COMPLETED), "finished", False),
    "cancelled": (stopped(CancelCode.CANCELLED), "finished", False),
    "image deleted": (stopped(CancelCode.IMAGE_DELETED), "finished", False),
    "failed": (failed, "waits", True),
    "failed by an operator": (stopped(CancelCode.FAILED_BY_OPERATOR), "waits", True),
    "failed, acknowledged": (acknowledged, "acknowledged", False),
    "failed, replayed": (replayed, "replayed", False),
    "failed, without a letter": (without_letter, "written", False),
    "unknown": (nobody, "stray", True),
}


def announced(job_id: UUID) -> str:
    return json.dumps({"v": 1, "job_id": str(job_id), "dead_letter": str(uuid4()), "type": "noop"})


@pytest.mark.parametrize("body", [plain, announced])
async def test_each_message_is_about_what_its_job_says(
    body: Callable[[UUID], str],
    maintenance: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    messages = {
        name: about(body(await make(worker, superuser))) for name, (make, _, _) in TABLE.items()
    }

    judgements = await judge_messages(maintenance, list(messages.values()))

    abouts = [judgement.found.value for judgement in judgements]
    assert {name: expected for name, (_, expected, _) in TABLE.items()} == dict(
        zip(messages, abouts, strict=True)
    )


async def test_a_sweep_leaves_what_waits_for_somebody_and_nothing_else(
    sweeper: DeadLetterSweeper, dead_letters: Queue, worker: Connection, superuser: Connection
) -> None:
    jobs = {name: await make(worker, superuser) for name, (make, _, _) in TABLE.items()}
    bodies = {plain(job_id): name for name, job_id in jobs.items()}
    # Once the first message has made the letter, the second is about one that waits.
    alone = "failed, without a letter"
    bodies |= {announced(job_id): name for name, job_id in jobs.items() if name != alone}
    await put(dead_letters, *bodies, "hello")

    counted = await sweeper.sweep()

    left = [
        message.body for message in await lying_in(dead_letters)
    ]  # at once: they are visible again
    stay = [body for body, name in bodies.items() if TABLE[name][2]]
    assert len(bodies) + 1 == counted.total()
    assert sorted([*stay, "hello"]) == sorted(left)


def about(body: str) -> DeadMessage:
    return read(a_received(body))


def a_received(body: str, **attributes: str) -> Received:
    return Received(
        receipt=None,  # type: ignore[arg-type]
        body=body,
        receive_count=1,
        sent_at=SOME_TIME,
        attributes=attributes,
        redriven_from=None,
    )


async def test_an_open_job_is_rung_and_makes_no_letter(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser)
    later = await a_job(worker, superuser, due=False)
    flagged = await a_job(worker, superuser, due=False, flag=CancelCode.CANCELLED)
    jobs = (job, later, flagged)
    await superuser.execute("UPDATE rings SET sends = 8, sent_at = now() - interval '6 hours'")

    await judge_messages(maintenance, [about(plain(job.job_id)) for job in jobs])

    rows = [await ring_row(superuser, job.job_id) for job in jobs]
    rings = [ring for ring in rows if ring is not None]
    assert [(None, 0)] * 3 == [(ring["sent_at"], ring["sends"]) for ring in rings]
    rung, unrung, urgent = [ring["next_in"] for ring in rings]
    assert rung <= timedelta()
    assert timedelta(minutes=50) < unrung < timedelta(hours=2)  # its own time
    assert urgent <= timedelta(), "who ends it need not wait for its time"
    assert 0 == await count_unacknowledged(maintenance)


async def test_a_running_job_gets_its_message_back_in_its_lane(
    sweeper: DeadLetterSweeper,
    place: Place,
    dead_letters: Queue,
    worker: Connection,
    superuser: Connection,
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await put(dead_letters, plain(job.job_id))

    await sweeper.sweep()

    (message,) = await (await place.queue(Lane.FAST)).receive(most=10, wait=SOON)
    assert job.job_id == parse_message(message.body).job_id
    assert [] == await lying_in(dead_letters)


async def test_a_running_job_that_could_not_be_rung_keeps_its_message(
    pool: Pool,
    dead_letters: Queue,
    metrics: MaintenanceMetrics,
    worker: Connection,
    superuser: Connection,
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await put(dead_letters, plain(job.job_id))

    await DeadLetterSweeper(pool, dead_letters, {}, uuid4(), metrics).sweep()

    assert [plain(job.job_id)] == [message.body for message in await lying_in(dead_letters)]


async def test_a_failure_without_a_letter_gets_the_one_it_should_have_had(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    job_id = await failed(worker, superuser)
    lost = await get_dead_letter(superuser, job_id)
    await superuser.execute("DELETE FROM dead_letter_sends")
    await superuser.execute("DELETE FROM dead_letters")

    await judge_messages(maintenance, [about(plain(job_id)), about(announced(job_id))])

    letter = await get_dead_letter(superuser, job_id)
    kept = (
        "job_id",
        "tenant",
        "job_type",
        "reason",
        "fingerprint",
        "message",
        "detail",
        "snapshot",
    )
    assert {name: getattr(lost, name) for name in kept} == {
        name: getattr(letter, name) for name in kept
    }
    assert [letter.id] == [send.letter_id for send in await take_due_sends(maintenance, limit=9)]


async def test_nothing_is_deleted_that_could_not_be_judged(
    sweeper: DeadLetterSweeper, dead_letters: Queue, superuser: Connection
) -> None:
    await put(dead_letters, "hello")
    await superuser.execute("REVOKE INSERT ON dead_letters FROM imagefleet_maintenance")

    with pytest.raises(FleetError):
        await sweeper.sweep()

    depth = await dead_letters.depth()
    assert 1 == depth.visible + depth.in_flight


# Strays.


async def found_to_be(maintenance: Connection, messages: list[DeadMessage]) -> list[str]:
    return [judged.found.value for judged in await judge_messages(maintenance, messages)]


async def test_the_same_stray_is_one_letter_until_somebody_knows(
    maintenance: Connection, operator: Connection, superuser: Connection
) -> None:
    both = [about("hello"), about("hello")]
    first = await found_to_be(maintenance, both)
    second = await found_to_be(maintenance, both)

    (row,) = await superuser.fetch("SELECT id, job_id, tenant_id FROM dead_letters")
    await acknowledge_dead_letters(operator, [row["id"]], by="ada", note="known")
    third = await found_to_be(maintenance, both)

    assert (None, None) == (row["job_id"], row["tenant_id"])
    assert (["stray"] * 2, ["waits"] * 2, ["acknowledged"] * 2) == (first, second, third)


async def test_a_stray_that_comes_after_it_was_acknowledged_is_news(
    sweeper: DeadLetterSweeper,
    dead_letters: Queue,
    operator: Connection,
    maintenance: Connection,
    superuser: Connection,
) -> None:
    await put(dead_letters, "hello")
    await sweeper.sweep()
    ids = [row["id"] for row in await superuser.fetch("SELECT id FROM dead_letters")]
    await acknowledge_dead_letters(operator, ids, by="ada", note=None)
    assert {"acknowledged": 1} == await sweeper.sweep()
    await superuser.execute(
        "UPDATE dead_letters SET acknowledged_at = acknowledged_at - interval '1 minute'"
    )

    await put(dead_letters, "hello")

    assert {"stray": 1} == await sweeper.sweep()
    assert {"waits": 1} == await sweeper.sweep()
    assert 1 == await count_unacknowledged(maintenance)


@pytest.mark.parametrize("body", ["x" * 200_000, "a\0b", "\ud800", "{", "\u2028"])
async def test_a_stray_of_any_making_is_kept_and_bounded(
    body: str, maintenance: Connection, superuser: Connection
) -> None:
    message = read(a_received(body, queue="q" * 5000))

    (judgement,) = await judge_messages(maintenance, [message])

    snapshot = await superuser.fetchval("SELECT snapshot FROM dead_letters")
    assert "stray" == judgement.found.value
    assert len(json.dumps(snapshot)) < 5000


async def test_strays_of_one_queue_are_one_group(
    maintenance: Connection, superuser: Connection
) -> None:
    bodies = [("hello", "fast"), ("salut", "fast"), ("hello!", "general"), (plain(uuid4()), "fast")]
    messages = [read(a_received(body, queue=queue)) for body, queue in bodies]
    await judge_messages(maintenance, messages)

    rows = await superuser.fetch(
        "SELECT reason, detail, count(*) FROM dead_letters GROUP BY fingerprint, 1, 2 ORDER BY 1, 2"
    )
    assert [
        ("unknown_job", "fast", 1),
        ("unreadable", "fast", 2),
        ("unreadable", "general", 1),
    ] == [tuple(row) for row in rows]


async def test_an_acknowledged_stray_is_forgotten_after_retention_and_no_other_letter(
    maintenance: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    await judge_messages(maintenance, [about("old"), about("young"), about("open")])
    await failed(worker, superuser)  # whose letter goes with the job
    await superuser.execute(
        """
        UPDATE dead_letters
           SET acknowledged_by = 'ada',
               acknowledged_at = now() - CASE snapshot ->> 'body' WHEN 'young' THEN interval '1 day'
                                              ELSE interval '31 days' END
         WHERE snapshot ->> 'body' IS DISTINCT FROM 'open'
        """
    )

    pages = [await prune_strays(maintenance, limit=10) for _ in range(2)]

    assert [1, 0] == [page.pruned for page in pages]
    left = "SELECT coalesce(snapshot ->> 'body', 'of a job') FROM dead_letters ORDER BY 1"
    assert ["of a job", "open", "young"] == [row[0] for row in await superuser.fetch(left)]


# The whole step.


async def test_one_sweep_a_period_is_enough_for_the_fleet(
    sweeper: DeadLetterSweeper, superuser: Connection
) -> None:
    first, second = await sweeper.run_once(), await sweeper.run_once()

    report = await superuser.fetchval("SELECT report FROM periods WHERE finished_at IS NOT NULL")
    assert (SweptDeadLetters(taken=True), SweptDeadLetters(taken=False)) == (first, second)
    assert {"found": {}, "closed": 0} == report


async def test_a_replay_by_redrive_is_acknowledged_by_the_sweep(
    sweeper: DeadLetterSweeper,
    worker: Connection,
    maintenance: Connection,
    superuser: Connection,
) -> None:
    job_id = await failed(worker, superuser)
    replay = await replay_redriven(worker, job_id, BUILT_IN)

    swept = await sweeper.run_once()

    letter = await get_dead_letter(superuser, job_id)
    assert replay is not None
    assert (1, 0) == (swept.closed, await count_unacknowledged(maintenance))
    assert "sqs-redrive" == letter.acknowledged_by
    assert f"replayed as {replay.replayed_as}" == letter.acknowledged_note


# Moving back.


async def move_back(dead_letters: Queue, lane: Queue) -> int:
    """What StartMessageMoveTask does: bodies and attributes as they are, in another queue."""
    messages = await lying_in(dead_letters)
    copies = [Message(body=each.body, group="x", attributes=each.attributes) for each in messages]
    assert set(await lane.send(copies)) <= {None}
    await dead_letters.delete([each.receipt for each in messages])
    return len(messages)


async def test_a_message_that_is_moved_back_replays_its_job_once(
    place: Place,
    pool: Pool,
    dead_letters: Queue,
    metrics: MaintenanceMetrics,
    worker: Connection,
    superuser: Connection,
) -> None:
    sender = DeadLetterSender(pool, dead_letters, metrics, rest=Resting())
    job_id, known = await failed(worker, superuser), await acknowledged(worker, superuser)
    await sender.run_once()
    await superuser.execute(
        "INSERT INTO dead_letter_sends (dead_letter_id) SELECT id FROM dead_letters"
    )
    await sender.run_once()  # each twice

    lane = await place.queue(Lane.GENERAL)
    moved = await move_back(dead_letters, lane)
    async with inside(place, "worker") as running:
        await running.tells("job.redriven", times=4)
        await running.tells("job.completed")

        async def all_is_said() -> bool:
            depth = await lane.depth()
            return depth.visible + depth.in_flight == 0

        await eventually(all_is_said, within=5)

    rows = await superuser.fetch("SELECT id, replay_of FROM jobs WHERE replay_of IS NOT NULL")
    assert (4, [job_id]) == (moved, [row["replay_of"] for row in rows])
    assert JobState.COMPLETED == (await job_row(superuser, JobId(rows[0]["id"])))["state"]
    assert known not in {row["replay_of"] for row in rows}


async def test_an_ordinary_message_of_a_failed_job_replays_nothing(
    place: Place, worker: Connection, superuser: Connection
) -> None:
    job_id = await failed(worker, superuser)
    lane = await place.queue(Lane.FAST)
    await put(lane, plain(job_id))

    async with inside(place, "worker"):

        async def is_deleted() -> bool:
            depth = await lane.depth()
            return depth.visible + depth.in_flight == 0

        await eventually(is_deleted, within=10)

    assert 1 == await superuser.fetchval("SELECT count(*) FROM jobs")
