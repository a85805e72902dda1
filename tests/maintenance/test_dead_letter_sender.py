"""What failed is announced in the dead-letter queue, at least once, and not too much of it."""

import json
from uuid import uuid4

import pytest

from imagefleet.aws.queue import Queue
from imagefleet.jobs.model import JobState
from imagefleet.maintenance.deadletters import DeadLetterSender, DeadLetterSweeper, Sent, announcing
from imagefleet.store.database import Connection, Pool
from imagefleet.store.letters.dead_letter_queue import take_due_sends
from imagefleet.store.letters.letters import count_unacknowledged, get_dead_letter
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.maintenance.dead_letters import failed, lying_in
from tests.support.database import Database
from tests.support.eventually import Resting
from tests.support.factories import a_job, a_submission
from tests.support.fleet import Place

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def sender(pool: Pool, dead_letters: Queue, metrics: MaintenanceMetrics) -> DeadLetterSender:
    return DeadLetterSender(pool, dead_letters, metrics, rest=Resting())


async def test_a_failure_is_announced_with_what_people_want_to_see_but_not_its_payload(
    sender: DeadLetterSender, dead_letters: Queue, worker: Connection, superuser: Connection
) -> None:
    submission = a_submission(payload={"note": "secret"})
    job = await a_job(worker, superuser, state=JobState.FAILED, submission=submission)
    letter = await get_dead_letter(superuser, job.job_id)

    sent = await sender.run_once()

    (message,) = await lying_in(dead_letters)
    assert Sent(due=1, sent=1) == sent
    assert {
        "v": 1,
        "job_id": str(job.job_id),
        "dead_letter": str(letter.id),
        "type": "noop",
        "failure": "corrupt",
        "attempts": 1,
    } == json.loads(message.body)
    assert Sent(due=0, sent=0) == await sender.run_once()


async def test_an_announcement_carries_the_trace_of_its_job(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    await failed(worker, superuser)
    await superuser.execute(
        """
        UPDATE dead_letters
           SET snapshot = snapshot || jsonb_build_object('traceparent', $1::text)
        """,
        TRACE,
    )

    (send,) = await take_due_sends(maintenance, limit=10)

    assert TRACE == json.loads(announcing(send).body)["traceparent"]


async def test_all_that_is_due_is_announced_batch_by_batch(
    pool: Pool,
    dead_letters: Queue,
    metrics: MaintenanceMetrics,
    worker: Connection,
    superuser: Connection,
) -> None:
    for _ in range(5):
        await failed(worker, superuser)
    resting = Resting()

    sent = await DeadLetterSender(pool, dead_letters, metrics, rest=resting, batch=2).run_once()

    assert (Sent(due=5, sent=5), 2) == (sent, len(resting.rests))


async def test_what_the_queue_does_not_take_is_sent_later(
    place: Place,
    pool: Pool,
    metrics: MaintenanceMetrics,
    worker: Connection,
    superuser: Connection,
) -> None:
    await failed(worker, superuser)
    nowhere = await place.session.queue(f"{place.emulator.url}/000000000000/{uuid4()}")

    sent = await DeadLetterSender(pool, nowhere, metrics, rest=Resting()).run_once()

    waits = "SELECT sends, due_at > now() + interval '50 seconds' FROM dead_letter_sends"
    assert Sent(due=1, sent=0) == sent
    assert (1, True) == tuple(await superuser.fetchrow(waits) or ())


async def test_a_sender_that_dies_before_it_forgets_has_only_sent_twice(
    sender: DeadLetterSender,
    pool: Pool,
    dead_letters: Queue,
    metrics: MaintenanceMetrics,
    maintenance: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    await failed(worker, superuser)
    due = await take_due_sends(maintenance, limit=10)
    await dead_letters.send([announcing(send) for send in due])  # and died
    assert Sent(due=0, sent=0) == await sender.run_once()
    await superuser.execute("UPDATE dead_letter_sends SET due_at = now()")

    await sender.run_once()

    sweeper = DeadLetterSweeper(pool, dead_letters, {}, uuid4(), metrics)
    assert {"waits": 2} == await sweeper.sweep()
    assert 1 == await count_unacknowledged(maintenance)


async def test_two_senders_never_wait_for_each_other_nor_send_the_same(
    maintenance: Connection, database: Database, worker: Connection, superuser: Connection
) -> None:
    for _ in range(3):
        await failed(worker, superuser)

    async with database.connect("maintenance") as other, maintenance.transaction():
        mine = await take_due_sends(maintenance, limit=2)
        theirs = await take_due_sends(other, limit=10)

    assert (2, 1) == (len(mine), len(theirs))
    assert not {send.letter_id for send in mine} & {send.letter_id for send in theirs}
