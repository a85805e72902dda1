"""Ringing right after commit: together, never in the way, and never a promise."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from imagefleet import doorbell as doorbell_module
from imagefleet.aws.queue import Failures, Message
from imagefleet.doorbell import Doorbell, Quota, ring_jobs
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import JobId, Lane, Ring, new_job_id, parse_message
from imagefleet.store.database import Connection, open_pool
from imagefleet.store.jobs.rings import LaneRoom, rings_for
from imagefleet.store.jobs.submissions import submit_job
from tests.support.database import Database
from tests.support.eventually import eventually
from tests.support.factories import TENANT, a_submission
from tests.support.queues import FakeQueue
from tests.support.rows import ring_row

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def submitted(api: Connection, lane: Lane = Lane.FAST) -> Ring:
    submission = replace(a_submission(lane=lane), traceparent=TRACE)
    (ring,) = rings_for([(submission, await submit_job(api, submission))])
    return ring


def jobs_in(queue: FakeQueue) -> list[JobId]:
    return [parse_message(message.body).job_id for message in queue.sent]


async def was_confirmed(connection: Connection, ring: Ring) -> bool:
    row = await ring_row(connection, ring.job_id)
    return row is not None and row["sent_at"] is not None and row["sends"] == 1


async def tell_room(maintenance: Connection, room: int, *, seconds_ago: float = 0) -> None:
    """As a dispatcher that looked just now, or so long ago."""
    await maintenance.execute(
        "UPDATE lanes SET room = $1, looked_at = now() - $2::interval",
        room,
        timedelta(seconds=seconds_ago),
    )


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
    assert ring.announced_at == parse_message(message.body).announced_at
    assert {"traceparent": ring.traceparent} == message.attributes
    assert ring.tenant_id == message.group


@pytest.mark.parametrize(("rings", "parts"), [(7, [7]), (47, [20, 20, 7]), (100, [30] * 3 + [10])])
async def test_many_are_sent_in_requests_of_ten(
    api: Connection, monkeypatch: pytest.MonkeyPatch, rings: int, parts: list[int]
) -> None:
    """All but the last, however many calls share them."""
    queue, sent = FakeQueue(), list[int]()
    send = queue.send

    async def counted(messages: Sequence[Message]) -> Failures:
        sent.append(len(messages))
        return await send(messages)

    monkeypatch.setattr(queue, "send", counted)

    await ring_jobs({Lane.FAST: queue.as_queue()}, [await submitted(api)] * rings)

    assert parts == sent


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


async def test_a_database_that_is_away_tells_of_no_room_and_leaves_all_to_the_dispatcher(
    api: Connection,
) -> None:
    """What it knows nothing of it cannot keep the order of; the rows know that nothing was sent."""
    queue = FakeQueue()
    ring = await submitted(api)
    nowhere = "postgresql://nobody:nothing@127.0.0.1:1/nowhere"
    async with (
        open_pool(nowhere, process="test", min_size=0) as pool,
        Doorbell(pool, {Lane.FAST: queue.as_queue()}).open() as doorbell,
    ):
        doorbell.ring([ring])

    assert [] == queue.sent
    assert not await was_confirmed(api, ring)


async def rung(database: Database, rings: Sequence[Ring]) -> list[JobId]:
    """Which of them a process rings that starts now."""
    queues = {lane: FakeQueue() for lane in Lane}
    async with (
        database.pool("api") as pool,
        Doorbell(pool, {lane: one.as_queue() for lane, one in queues.items()}).open() as doorbell,
    ):
        doorbell.ring(rings)
    return [job_id for queue in queues.values() for job_id in jobs_in(queue)]


@pytest.mark.parametrize(
    ("room", "seconds_ago", "rings"),
    [
        pytest.param(8, 0, 2, id="a quarter of the room"),
        pytest.param(1, 0, 1, id="a part of one is one"),
        pytest.param(0, 0, 0, id="none while others wait for their turn"),
        pytest.param(8, 3, 0, id="none when nobody has looked for a second"),
        pytest.param(0, 11, 4, id="all where nobody dispatches"),
    ],
)
async def test_a_process_rings_as_many_as_the_dispatcher_leaves_it(
    database: Database,
    api: Connection,
    maintenance: Connection,
    room: int,
    seconds_ago: float,
    rings: int,
) -> None:
    await tell_room(maintenance, room, seconds_ago=seconds_ago)
    made = [await submitted(api) for _ in range(4)]

    told = await rung(database, made)

    assert [ring.job_id for ring in made[:rings]] == told
    for place, ring in enumerate(made):
        assert await was_confirmed(api, ring) is (place < rings)


async def test_each_lane_has_its_own_room(
    database: Database, api: Connection, maintenance: Connection
) -> None:
    await tell_room(maintenance, 4)
    await maintenance.execute("UPDATE lanes SET room = 0 WHERE lane = 'general'")
    fast, general = await submitted(api), await submitted(api, Lane.GENERAL)

    assert [fast.job_id] == await rung(database, [general, fast])


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_room(
    room: int, *, looked_at: datetime = NOW, fresh: bool = True, abandoned: bool = False
) -> LaneRoom:
    return LaneRoom(
        lane=Lane.FAST, room=room, looked_at=looked_at, fresh=fresh, abandoned=abandoned
    )


def some_rings(count: int) -> list[Ring]:
    return [
        Ring(
            job_id=new_job_id(),
            lane=Lane.FAST,
            next_at=NOW,
            tenant_id=TENANT,
            announced_at=NOW,
        )
        for _ in range(count)
    ]


def test_only_a_new_look_gives_a_new_share() -> None:
    quota, rings = Quota(), some_rings(9)
    quota.told([a_room(8)], 0.0)
    first = quota.use(rings)
    quota.told([a_room(8)], 1.0)
    again = quota.use(rings)
    quota.told([a_room(8, looked_at=NOW + timedelta(seconds=0.2))], 2.0)

    assert (rings[:2], [], rings[:2]) == (first, again, quota.use(rings))


def test_a_share_is_not_saved_up() -> None:
    quota, rings = Quota(), some_rings(9)
    for look in range(5):
        quota.told([a_room(8, looked_at=NOW + timedelta(seconds=look))], float(look))

    assert rings[:2] == quota.use(rings)


def test_what_was_told_is_asked_again_after_a_fifth_of_a_second() -> None:
    quota = Quota()
    asked = [quota.is_old(0.0)]
    quota.told([a_room(8)], 0.0)

    assert [True, False, True] == [*asked, quota.is_old(0.19), quota.is_old(0.2)]


def test_a_lane_that_is_left_and_taken_again_has_turns_again() -> None:
    quota, rings = Quota(), some_rings(9)
    quota.told([a_room(0, fresh=False, abandoned=True)], 0.0)
    left = quota.use(rings)
    quota.told([a_room(0, looked_at=NOW + timedelta(seconds=1))], 1.0)

    assert (rings, []) == (left, quota.use(rings))


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
        timed = pool.timed_by(lambda *_: Counted())
        bell = Doorbell(timed, {Lane.FAST: queue.as_queue()})
        async with bell.open() as doorbell:
            doorbell.ring([ring])
            await eventually(lambda: uses)
            queue.say = "InternalError"
            doorbell.ring([await submitted(api)])

    assert ["begun", "ended"] == uses, "and none where nothing was sent"
