"""Ringing right after commit: together, never in the way, and never a promise."""

from datetime import datetime

import pytest

from imagefleet import doorbell as doorbell_module
from imagefleet.doorbell import Doorbell, ring_jobs
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import JobId, Lane, Ring, Submission, parse_message
from imagefleet.store.database import Connection, open_pool
from imagefleet.store.submissions import submit_job
from tests.support.database import Database
from tests.support.eventually import eventually
from tests.support.factories import a_submission
from tests.support.queues import FakeQueue
from tests.support.rows import ring_row


async def submitted(api: Connection, lane: Lane = Lane.FAST) -> Ring:
    submission = a_submission(lane=lane)
    answer = await submit_job(api, submission)
    assert answer.due_at is not None
    return ringing_for(submission, answer.due_at)


def ringing_for(submission: Submission, due_at: datetime) -> Ring:
    return Ring(
        job_id=submission.job_id,
        lane=submission.lane,
        due_at=due_at,
        tenant_id=submission.tenant_id,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )


def jobs_in(queue: FakeQueue) -> list[JobId]:
    return [parse_message(message.body).job_id for message in queue.sent]


async def was_confirmed(connection: Connection, ring: Ring) -> bool:
    row = await ring_row(connection, ring.job_id)
    return row is not None and row["rings"] == 1 and row["due_in"].total_seconds() > 30


async def test_rings_of_one_moment_share_a_call_and_are_confirmed(
    database: Database, api: Connection
) -> None:
    queue = FakeQueue()
    rings = [await submitted(api) for _ in range(5)]
    async with (
        database.pool("api") as pool,
        Doorbell(pool, {Lane.FAST: queue.as_queue()}).open() as doorbell,
    ):
        for ring in rings:
            doorbell.ring([ring])
        await eventually(lambda: queue.sent)

    assert ["send"] == queue.calls
    assert [ring.job_id for ring in rings] == jobs_in(queue)
    for ring in rings:
        assert await was_confirmed(api, ring)


async def test_a_message_carries_the_trace_and_the_tenant(api: Connection) -> None:
    queue = FakeQueue()
    ring = await submitted(api)

    assert [ring] == await ring_jobs({Lane.FAST: queue.as_queue()}, [ring])

    (message,) = queue.sent
    assert ring.traceparent == parse_message(message.body).traceparent
    assert {"traceparent": ring.traceparent} == message.attributes
    assert ring.tenant_id == message.group


async def test_each_lane_has_its_queue_and_one_that_fails_hurts_no_other(api: Connection) -> None:
    fast, general = FakeQueue(say=Unavailable("sqs_throttled", "busy")), FakeQueue()
    rings = [await submitted(api, lane) for lane in (Lane.FAST, Lane.GENERAL)]

    sent = await ring_jobs({Lane.FAST: fast.as_queue(), Lane.GENERAL: general.as_queue()}, rings)

    assert [rings[1]] == sent


@pytest.mark.parametrize("say", [Unavailable("sqs_unavailable", "away"), "InternalError"])
async def test_what_was_not_taken_is_left_to_the_dispatcher(
    database: Database, api: Connection, say: Unavailable | str
) -> None:
    queue = FakeQueue(say=say)
    ring = await submitted(api)
    async with (
        database.pool("api") as pool,
        Doorbell(pool, {Lane.FAST: queue.as_queue()}).open() as doorbell,
    ):
        doorbell.ring([ring])
        await eventually(lambda: queue.calls)

        queue.say = None
        again = await submitted(api)
        doorbell.ring([again])
        await eventually(lambda: queue.sent)

    assert not await was_confirmed(api, ring)
    assert await was_confirmed(api, again)


async def test_a_database_that_is_away_loses_the_confirmation_alone(api: Connection) -> None:
    queue = FakeQueue()
    ring = await submitted(api)
    nowhere = "postgresql://nobody:nothing@127.0.0.1:1/nowhere"
    async with (
        open_pool(nowhere, process="test", min_size=0) as pool,
        Doorbell(pool, {Lane.FAST: queue.as_queue()}).open() as doorbell,
    ):
        doorbell.ring([ring])

    assert [ring.job_id] == jobs_in(queue)


async def test_the_last_rings_are_sent_before_the_end(database: Database, api: Connection) -> None:
    queue = FakeQueue()
    async with (
        database.pool("api") as pool,
        Doorbell(pool, {Lane.FAST: queue.as_queue()}).open() as doorbell,
    ):
        ring = await submitted(api)
        doorbell.ring([ring])

    assert [ring.job_id] == jobs_in(queue)
    assert await was_confirmed(api, ring)


async def test_what_memory_should_not_hold_is_left_to_the_dispatcher(
    database: Database, api: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell_module, "MOST_WAITING", 2)
    queue = FakeQueue()
    rings = [await submitted(api) for _ in range(3)]
    async with (
        database.pool("api") as pool,
        Doorbell(pool, {Lane.FAST: queue.as_queue()}).open() as doorbell,
    ):
        doorbell.ring(rings)
        doorbell.ring(rings[2:])

    assert [ring.job_id for ring in rings[:2]] == jobs_in(queue)


async def test_every_use_of_the_database_is_surrounded_by_whoever_counts_it(
    database: Database, api: Connection
) -> None:
    uses: list[str] = []

    class Counted:
        def __enter__(self) -> None:
            uses.append("begun")

        def __exit__(self, *_: object) -> None:
            uses.append("ended")

    queue = FakeQueue()
    ring = await submitted(api)
    async with database.pool("api") as pool:
        bell = Doorbell(pool, {Lane.FAST: queue.as_queue()}, confirming=Counted)
        async with bell.open() as doorbell:
            doorbell.ring([ring])
            await eventually(lambda: uses)
            queue.say = "InternalError"
            doorbell.ring([await submitted(api)])

    assert ["begun", "ended"] == uses, "and none where nothing was sent"
