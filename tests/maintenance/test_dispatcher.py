"""Ringing what is due: with an idle queue, a full one, none at all, and several dispatchers."""

import asyncio
from collections.abc import Sequence

import pytest

from imagefleet.aws.queue import Depth
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import JobId, JobState, Lane, parse_message
from imagefleet.maintenance.dispatcher import Dispatched, Dispatcher
from imagefleet.store.database import Connection, Pool
from imagefleet.store.rings import look_at_due_rings
from imagefleet.store.submissions import submit_job
from imagefleet.telemetry.upkeep import MaintenanceMetrics
from tests.support.database import Database
from tests.support.factories import a_job, a_submission
from tests.support.queues import FakeQueue
from tests.support.rows import ring_row

FULL = Depth(visible=7, in_flight=0, delayed=0)


@pytest.fixture
def lanes() -> dict[Lane, FakeQueue]:
    return {lane: FakeQueue(lane.value) for lane in Lane}


def a_dispatcher(pool: Pool, lanes: dict[Lane, FakeQueue], *, batch: int = 100) -> Dispatcher:
    queues = {lane: queue.as_queue() for lane, queue in lanes.items()}
    return Dispatcher(pool, queues, MaintenanceMetrics(()), batch=batch)


def unreached(dispatcher: Dispatcher) -> str | None:
    return dispatcher.unreached


def rung(queue: FakeQueue) -> list[JobId]:
    return [parse_message(message.body).job_id for message in queue.sent]


async def due(
    api: Connection,
    superuser: Connection,
    count: int = 1,
    *,
    rings: int = 0,
    lane: Lane = Lane.FAST,
    hours_ago: int = 0,
) -> list[JobId]:
    """Jobs whose ring is due, and was rung so often before, first so many hours ago."""
    jobs = [a_submission(lane=lane) for _ in range(count)]
    for one in jobs:
        await submit_job(api, one)
        await superuser.execute(
            "UPDATE rings SET due_at = now() - interval '1 second', rings = $2,"
            " since = now() - make_interval(hours => $3) WHERE job_id = $1",
            one.job_id,
            rings,
            hours_ago,
        )
    return [one.job_id for one in jobs]


async def rings_of(connection: Connection, jobs: Sequence[JobId]) -> list[tuple[int, bool]]:
    """How often each was rung, and whether it is due."""
    rows = [await ring_row(connection, job_id) for job_id in jobs]
    return [(row["rings"], row["due_in"].total_seconds() <= 0) for row in rows if row is not None]


async def test_nothing_due_is_nothing_sent_and_nothing_asked(
    database: Database, api: Connection, lanes: dict[Lane, FakeQueue]
) -> None:
    await submit_job(api, a_submission())  # due in five seconds

    async with database.pool("maintenance") as pool:
        assert Dispatched(due=0, sent=0) == await a_dispatcher(pool, lanes).run_once()

    assert [[]] * 3 == [queue.calls for queue in lanes.values()]


async def test_first_rings_are_sent_whatever_the_queue_holds_and_without_asking(
    database: Database, api: Connection, superuser: Connection, lanes: dict[Lane, FakeQueue]
) -> None:
    fast = await due(api, superuser, 3)
    general = await due(api, superuser, lane=Lane.GENERAL)

    async with database.pool("maintenance") as pool:
        assert Dispatched(due=4, sent=4) == await a_dispatcher(pool, lanes).run_once()

    assert {*fast} == {*rung(lanes[Lane.FAST])}
    assert general == rung(lanes[Lane.GENERAL])
    assert ["send"] == lanes[Lane.FAST].calls
    assert [(1, False)] * 3 == await rings_of(superuser, fast)


@pytest.mark.parametrize(("depth", "again"), [(FakeQueue().depths, True), (FULL, False)])
async def test_repeats_are_sent_only_into_a_silent_queue(
    database: Database,
    api: Connection,
    superuser: Connection,
    lanes: dict[Lane, FakeQueue],
    depth: Depth,
    again: bool,  # noqa: FBT001
) -> None:
    jobs = await due(api, superuser, 2, rings=1)
    lanes[Lane.FAST].depths = depth

    async with database.pool("maintenance") as pool:
        dispatcher = a_dispatcher(pool, lanes)
        await dispatcher.run_once()
        assert Dispatched(due=0, sent=0) == await dispatcher.run_once()

    assert (set(jobs) if again else set()) == set(rung(lanes[Lane.FAST]))
    assert 1 == lanes[Lane.FAST].calls.count("depth"), "an answer is good for a while"
    assert [(2 if again else 1, False)] * 2 == await rings_of(superuser, jobs)


async def test_a_queue_that_is_never_silent_hides_nobody_for_longer_than_half_a_day(
    database: Database, api: Connection, superuser: Connection, lanes: dict[Lane, FakeQueue]
) -> None:
    old = await due(api, superuser, rings=3, hours_ago=13)
    lanes[Lane.FAST].depths = FULL

    async with database.pool("maintenance") as pool:
        await a_dispatcher(pool, lanes).run_once()

    assert old == rung(lanes[Lane.FAST])


async def test_without_sqs_the_rings_come_due_again(
    database: Database, api: Connection, superuser: Connection, lanes: dict[Lane, FakeQueue]
) -> None:
    jobs = await due(api, superuser)
    lanes[Lane.FAST].say = Unavailable("sqs_unavailable", "away")

    async with database.pool("maintenance") as pool:
        dispatcher = a_dispatcher(pool, lanes)
        assert Dispatched(due=1, sent=0) == await dispatcher.run_once()
        assert "nothing was taken" == unreached(dispatcher)

        lanes[Lane.FAST].say = None
        await superuser.execute("UPDATE rings SET due_at = now()")
        assert Dispatched(due=1, sent=1) == await dispatcher.run_once()
        assert unreached(dispatcher) is None

    assert jobs == rung(lanes[Lane.FAST])


async def test_of_several_dispatchers_each_ring_is_sent_by_one(
    database: Database, api: Connection, superuser: Connection, lanes: dict[Lane, FakeQueue]
) -> None:
    jobs = await due(api, superuser, 40)

    async with database.pool("maintenance") as pool:
        dispatchers = [a_dispatcher(pool, lanes, batch=10) for _ in range(4)]
        for _ in range(4):
            await asyncio.gather(*(one.run_once() for one in dispatchers))

    assert sorted(jobs) == sorted(rung(lanes[Lane.FAST]))


async def test_urgent_jobs_are_rung_first_and_a_batch_is_bounded(
    database: Database, api: Connection, superuser: Connection, lanes: dict[Lane, FakeQueue]
) -> None:
    await due(api, superuser, 3)
    urgent = a_submission(priority=10)
    await submit_job(api, urgent)
    await superuser.execute("UPDATE rings SET due_at = now() WHERE priority = 10")

    async with database.pool("maintenance") as pool:
        assert Dispatched(due=2, sent=2) == await a_dispatcher(pool, lanes, batch=2).run_once()

    assert urgent.job_id == rung(lanes[Lane.FAST])[0]


async def test_a_look_tells_lanes_with_something_due_and_whether_they_repeat(
    api: Connection, superuser: Connection, maintenance: Connection
) -> None:
    assert {} == await look_at_due_rings(maintenance, limit=10)

    await due(api, superuser, lane=Lane.FAST)
    await due(api, superuser, rings=1, lane=Lane.GENERAL)
    await due(api, superuser, rings=1, hours_ago=13, lane=Lane.QUARANTINE)

    assert {
        Lane.FAST: False,
        Lane.GENERAL: True,
        Lane.QUARANTINE: False,
    } == await look_at_due_rings(maintenance, limit=10)


async def test_a_job_whose_lock_ran_out_unrescued_is_rung_though_it_has_no_ring_row(
    database: Database,
    worker: Connection,
    superuser: Connection,
    lanes: dict[Lane, FakeQueue],
) -> None:
    await a_job(worker, superuser, state=JobState.PROCESSING)
    late, lost = [await a_job(worker, superuser, state=JobState.PROCESSING) for _ in range(2)]
    for job, seconds in ((late, 30), (lost, 90)):
        await superuser.execute(
            "UPDATE jobs SET locked_at = now() - fleet.lock_timeout - make_interval(secs => $2)"
            "  FROM fleet WHERE id = $1",
            job.job_id,
            seconds,
        )

    async with database.pool("maintenance") as pool:
        answer = await a_dispatcher(pool, lanes).ring_expired()

    assert Dispatched(due=1, sent=1) == answer
    assert [lost.job_id] == rung(lanes[Lane.FAST]), "its message may still come by itself before"
