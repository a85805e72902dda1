"""Announcing what waits: whatever became of earlier messages, no more than there is room for."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from imagefleet.errors import Unavailable
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, JobState, Lane, TenantId, WorkerId, parse_message
from imagefleet.live import Live
from imagefleet.maintenance import dispatcher as dispatcher_module
from imagefleet.maintenance.dispatcher import Dispatcher
from imagefleet.store.database import Connection, Pool
from imagefleet.store.fleet.breakers import force_open, reset_breaker
from imagefleet.store.fleet.live_settings import turn, turn_back
from imagefleet.store.fleet.statistics import expect_messages
from imagefleet.store.fleet.workers import start_drain
from imagefleet.store.jobs.claims import NO_ROOM, claim_jobs
from imagefleet.store.jobs.rings import confirm_rings, rings_for
from imagefleet.store.jobs.submissions import submit_job
from tests.maintenance.dispatching import SPARE, a_dispatcher, rung, submitted
from tests.support.factories import (
    SLOTS,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    expire_lock,
    settle_job,
)
from tests.support.queues import FakeQueue
from tests.support.rows import ring_row

ROOM = SLOTS[Lane.FAST] + SPARE  # of the fast lane with one idle worker


class Killed(Exception):
    """Instead of a signal."""


def unreached(dispatcher: Dispatcher) -> str | None:
    return dispatcher.unreached


async def announced(api: Connection, **wishes: object) -> JobId:
    """A job whose message its submitter has sent."""
    submission = a_submission(**wishes)  # type: ignore[arg-type] # its own names
    await confirm_rings(api, rings_for([(submission, await submit_job(api, submission))]))
    return submission.job_id


async def waits_unsent(connection: Connection, job_id: JobId) -> bool:
    row = await ring_row(connection, job_id)
    assert row is not None
    return row["sent_at"] is None


async def room_of(connection: Connection, lane: Lane = Lane.FAST) -> int:
    room: int = await connection.fetchval("SELECT room FROM lanes WHERE lane = $1", lane)
    return room


async def test_what_waits_is_sent_and_marked_in_every_lane(
    api: Connection, lanes: dict[Lane, FakeQueue], dispatcher: Dispatcher
) -> None:
    quick, slow = await submitted(api, 3), await submitted(api, lane=Lane.GENERAL)

    assert 4 == await dispatcher.run_once()
    assert 0 == await dispatcher.run_once()

    assert (sorted(quick), slow) == (sorted(rung(lanes[Lane.FAST])), rung(lanes[Lane.GENERAL]))
    assert [False] * 4 == [await waits_unsent(api, job_id) for job_id in [*quick, *slow]]
    assert {"send"} == {call for queue in lanes.values() for call in queue.calls}


async def test_a_message_says_when_it_was_announced(
    api: Connection, fast: FakeQueue, dispatcher: Dispatcher
) -> None:
    before = await api.fetchval("SELECT now()")
    await submitted(api)

    await dispatcher.run_once()

    at = parse_message(fast.sent[0].body).announced_at
    assert at is not None
    assert before < at <= await api.fetchval("SELECT now()")


# A message that is not there is sent at the next look, in a lane that is never silent.


async def test_a_job_whose_send_failed_is_sent_at_the_next_look(
    api: Connection, fast: FakeQueue, dispatcher: Dispatcher
) -> None:
    jobs = await submitted(api)
    for refusal in (Unavailable("sqs_unavailable", "away"), "InternalError"):
        fast.say = refusal
        assert 0 == await dispatcher.run_once()
        assert "nothing was taken" == unreached(dispatcher)
        assert await waits_unsent(api, jobs[0])

    fast.say = None
    assert 1 == await dispatcher.run_once()
    assert unreached(dispatcher) is None
    assert jobs == rung(fast)


@pytest.mark.parametrize("dies", ["before the send", "after the send"])
async def test_a_dispatcher_that_dies_has_hidden_nothing(
    api: Connection,
    pool: Pool,
    lanes: dict[Lane, FakeQueue],
    fast: FakeQueue,
    dispatcher: Dispatcher,
    monkeypatch: pytest.MonkeyPatch,
    dies: str,
) -> None:
    jobs = await submitted(api)

    async def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as broken:
        broken.setattr(
            dispatcher_module,
            "ring_jobs" if dies == "before the send" else "confirm_rings",
            die,
        )
        first = a_dispatcher(pool, lanes)
        with pytest.raises(Killed):
            await first.run_once()
    await first.leave()  # or its two seconds run out

    assert 1 == await dispatcher.run_once()
    assert set(jobs) == set(rung(fast))


async def test_what_an_open_breaker_deferred_is_sent_once_that_is_closed(
    api: Connection,
    worker: Connection,
    operator: Connection,
    superuser: Connection,
    dispatcher: Dispatcher,
    me: WorkerId,
) -> None:
    job_id = await announced(api, services=("s3",))
    await force_open(operator, "s3", by="tests")
    await claim_job(worker, job_id, me)
    # Instead of waiting for the second that a held job is put off.
    await superuser.execute("UPDATE rings SET next_at = now() WHERE job_id = $1", job_id)

    assert 0 == await dispatcher.run_once()

    await reset_breaker(operator, "s3", by="tests")
    assert 1 == await dispatcher.run_once()


async def test_who_was_freed_by_an_exhausted_job_is_sent_though_it_was_sent_before(
    api: Connection,
    worker: Connection,
    superuser: Connection,
    fast: FakeQueue,
    dispatcher: Dispatcher,
    me: WorkerId,
) -> None:
    first, second = await submitted(api, 2, target="image:7", max_attempts=1)
    await claim_job(worker, first, me)
    await superuser.execute("UPDATE rings SET sent_at = now(), sends = 3, next_at = now()")
    await expire_lock(superuser, first)
    await claim_job(worker, first, me)

    assert 1 == await dispatcher.run_once()
    assert [second] == rung(fast)


@pytest.mark.parametrize("evidence", ["silence", "a later one"])
async def test_a_lost_message_is_sent_again_when_a_beat_tells_what_was_heard(
    api: Connection, superuser: Connection, fast: FakeQueue, dispatcher: Dispatcher, evidence: str
) -> None:
    job_id = await announced(api)
    await dispatcher.run_once()
    assert [] == rung(fast)

    await superuser.execute("UPDATE rings SET sent_at = now() - interval '40 seconds'")
    await dispatcher.run_once()
    assert [] == rung(fast), "nobody has heard anything"

    column = "silent_at" if evidence == "silence" else "heard_at"
    await superuser.execute(f"UPDATE workers SET {column} = ARRAY[now(), NULL, NULL]")  # noqa: S608 - of two
    await dispatcher.run_once()

    assert [job_id] == rung(fast)


PLACES = "SELECT job_id, ctid::text AS place FROM rings"


async def places(connection: Connection) -> dict[JobId, str]:
    """Where each row lies; whoever writes it moves it."""
    return {row["job_id"]: row["place"] for row in await connection.fetch(PLACES)}


async def test_what_is_announced_and_not_claimed_is_not_written_again(
    api: Connection, superuser: Connection, dispatcher: Dispatcher
) -> None:
    """By looks at which nothing is news: they have a message, and it may still come."""
    await submitted(api, 50)
    await dispatcher.run_once()
    await superuser.execute(
        "UPDATE rings SET sent_at = now() - interval '1 minute' WHERE sent_at IS NOT NULL"
    )
    before = await places(superuser)

    for _ in range(5):
        assert 0 == await dispatcher.run_once()

    assert before == await places(superuser)


async def test_of_a_deep_queue_no_more_is_given_up_at_a_look_than_the_lane_may_hold(
    api: Connection, superuser: Connection, dispatcher: Dispatcher
) -> None:
    """As after a time without a dispatcher: a later one was heard, and these stand there yet."""
    await submitted(api, 20 * ROOM)
    await superuser.execute("UPDATE rings SET sent_at = now() - interval '1 minute', sends = 1")
    await dispatcher.run_once()
    await superuser.execute("UPDATE workers SET heard_at = ARRAY[now(), NULL, NULL]")

    for _ in range(3):
        before = await places(superuser)
        await dispatcher.run_once()
        after = await places(superuser)
        assert 0 < sum(before[job_id] != after[job_id] for job_id in before) <= ROOM


async def test_of_a_silent_queue_everything_is_given_up_at_once(
    api: Connection, superuser: Connection, dispatcher: Dispatcher
) -> None:
    await submitted(api, 20 * ROOM)
    await superuser.execute("UPDATE rings SET sent_at = now() - interval '1 minute', sends = 1")
    await superuser.execute("UPDATE workers SET silent_at = ARRAY[now(), NULL, NULL]")

    await dispatcher.run_once()

    assert ROOM == await superuser.fetchval("SELECT count(*) FROM rings WHERE sent_at IS NOT NULL")


# The window: no more than the workers can take.


async def test_no_more_is_sent_than_there_are_free_slots_and_a_few(
    api: Connection, dispatcher: Dispatcher
) -> None:
    await submitted(api, 50)

    assert ROOM == await dispatcher.run_once()
    assert 0 == await dispatcher.run_once()
    assert ROOM == (await expect_messages(api))[Lane.FAST].window


async def test_without_a_worker_the_first_few_are_sent_to_be_seen_by_who_scales(
    api: Connection, pool: Pool, lanes: dict[Lane, FakeQueue]
) -> None:
    await submitted(api, 50)

    assert SPARE == await a_dispatcher(pool, lanes).run_once()


async def test_what_is_claimed_and_done_makes_room(
    api: Connection, worker: Connection, fast: FakeQueue, dispatcher: Dispatcher, me: WorkerId
) -> None:
    await submitted(api, 50)

    await dispatcher.run_once()
    await api.execute(  # they have waited for longest
        "UPDATE rings SET next_at = next_at - interval '1 hour' WHERE sent_at IS NOT NULL"
    )
    for job_id in rung(fast)[:3]:
        await claim_job(worker, job_id, me)
    assert 0 == await dispatcher.run_once(), "they take the three slots"

    for job_id in rung(fast)[:3]:
        await settle_job(worker, MadeJob(job_id=job_id, claim_no=1, worker_id=me), Completed())
    assert 3 <= await dispatcher.run_once() <= 6
    assert {1} == {*Counter(rung(fast)).values()}


async def test_what_came_back_for_want_of_room_was_not_finished(
    api: Connection,
    worker: Connection,
    superuser: Connection,
    fast: FakeQueue,
    dispatcher: Dispatcher,
    me: WorkerId,
) -> None:
    """A lane of slow jobs is not quick because workers receive more than they have room for."""
    await submitted(api, 50)
    await dispatcher.run_once()
    answers = await claim_jobs(
        worker, rung(fast), worker_id=me, lanes=[Lane.FAST], types=["noop"], rooms={"noop": 0}
    )
    assert {NO_ROOM} == {answer.why for answer in answers}

    assert ROOM == await dispatcher.run_once()
    assert ROOM == (await expect_messages(api))[Lane.FAST].window
    await a_job(worker, superuser, state=JobState.COMPLETED)
    await dispatcher.run_once()
    assert ROOM < (await expect_messages(api))[Lane.FAST].window


async def test_of_many_whole_requests_are_sent(
    api: Connection, worker: Connection, dispatcher: Dispatcher
) -> None:
    """What is left of ten is for the next look, which is soon."""
    for _ in range(2):
        await a_worker(worker)
    await submitted(api, 50)

    assert 3 * SLOTS[Lane.FAST] + SPARE == 13
    assert [10, 3, 0] == [await dispatcher.run_once() for _ in range(3)]


async def test_room_is_told_only_while_nobody_waits(
    api: Connection, dispatcher: Dispatcher
) -> None:
    await dispatcher.run_once()
    assert ROOM == await room_of(api)

    await submitted(api, 2)
    await dispatcher.run_once()
    assert ROOM - 2 == await room_of(api)

    await submitted(api, ROOM)
    await dispatcher.run_once()
    assert 0 == await room_of(api)


# One dispatcher a lane.


async def test_of_several_dispatchers_one_has_a_lane_and_nothing_is_sent_twice(
    api: Connection, worker: Connection, pool: Pool, lanes: dict[Lane, FakeQueue], fast: FakeQueue
) -> None:
    for _ in range(5):
        await a_worker(worker)
    jobs = await submitted(api, 18)

    dispatchers = [a_dispatcher(pool, lanes) for _ in range(4)]
    for _ in range(3):
        await asyncio.gather(*(each.run_once() for each in dispatchers))

    assert {1} == {*Counter(rung(fast)).values()}
    assert {*jobs} == {*rung(fast)}


async def test_a_lane_is_free_two_seconds_after_its_dispatcher_died_or_when_it_leaves(
    api: Connection, superuser: Connection, pool: Pool, lanes: dict[Lane, FakeQueue], me: WorkerId
) -> None:
    first, second, third = (a_dispatcher(pool, lanes) for _ in range(3))
    await first.run_once()
    await submitted(api)
    assert 0 == await second.run_once()

    await superuser.execute("UPDATE lanes SET until = until - interval '2 seconds'")
    assert 1 == await second.run_once()
    await submitted(api)
    assert 0 == await first.run_once()

    await second.leave()
    assert 1 == await third.run_once()


async def test_an_idle_look_asks_sqs_nothing_and_comes_no_more_often_than_set(
    api: Connection, pool: Pool, lanes: dict[Lane, FakeQueue], dispatcher: Dispatcher
) -> None:
    patient = a_dispatcher(pool, lanes, idle_interval=timedelta(hours=1))
    await patient.run_once()
    await patient.leave()
    await submitted(api)
    assert 0 == await patient.run_once()
    assert [[]] * 3 == [queue.calls for queue in lanes.values()]

    assert 1 == await dispatcher.run_once()


async def test_a_job_whose_lock_ran_out_unrescued_is_rung_though_it_has_no_ring_row(
    worker: Connection, superuser: Connection, fast: FakeQueue, dispatcher: Dispatcher
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

    assert 1 == await dispatcher.ring_expired()
    assert [lost.job_id] == rung(fast), "its message may still come by itself before"


async def test_forgotten_heads_are_rung_page_by_page(
    api: Connection,
    superuser: Connection,
    fast: FakeQueue,
    dispatcher: Dispatcher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher_module, "HEADS", 3)
    heads = [(await submitted(api, 4, target=f"image:{n}"))[0] for n in range(5)]
    await superuser.execute("UPDATE rings SET next_at = 'infinity'")

    assert 5 == await dispatcher.ring_heads()
    assert 0 == await dispatcher.ring_heads()
    await dispatcher.run_once()

    assert {*heads} == {*rung(fast)}


# What operators turn.


async def test_the_slots_of_a_type_are_shared_by_all_tenants_lanes_and_looks(
    api: Connection,
    operator: Connection,
    superuser: Connection,
    pool: Pool,
    lanes: dict[Lane, FakeQueue],
    worker: Connection,
    me: WorkerId,
) -> None:
    for n in range(5):
        await superuser.execute("INSERT INTO tenants (id, name) VALUES ($1, $1)", f"t{n}")
        for lane in (Lane.FAST, Lane.GENERAL):
            await submitted(api, 3, tenant_id=TenantId(f"t{n}"), lane=lane)
    await turn(operator, "slots.type.noop", 2, by="me", reason="why")
    live = Live()
    await live.look(pool)
    dispatcher = a_dispatcher(pool, lanes, live=live)

    # As many again as there is room for; at the first look no lane knew of the other.
    assert [8, 0, 0] == [await dispatcher.run_once() for _ in range(3)]
    quick, slow = rung(lanes[Lane.FAST]), rung(lanes[Lane.GENERAL])
    assert (4, 4) == (len(quick), len(slow))
    for job_id in (*quick, *slow[:2]):
        await claim_job(worker, job_id, me)
        done = MadeJob(job_id=job_id, claim_no=1, worker_id=me)
        await settle_job(worker, done, Completed())
    assert 2 == await dispatcher.run_once()
    assert (5, 5) == tuple(len(rung(lanes[lane])) for lane in (Lane.FAST, Lane.GENERAL))


async def test_a_type_without_slots_is_not_announced_until_it_has_some_again(
    api: Connection,
    operator: Connection,
    pool: Pool,
    lanes: dict[Lane, FakeQueue],
    fast: FakeQueue,
    me: WorkerId,
) -> None:
    waiting = await submitted(api, 5)
    live = Live()
    dispatcher = a_dispatcher(pool, lanes, live=live)
    for slots, announced in ((0, 0), (2, 4), (None, 5)):
        if slots is None:
            await turn_back(operator, "slots.type.noop")
        else:
            await turn(operator, "slots.type.noop", slots, by="me", reason="why")
        await live.look(pool)
        await dispatcher.run_once()
        assert announced == len(rung(fast))
        # Nobody waits behind what nobody is to do.
        assert slots == 2 or await room_of(api) > 0

    assert set(waiting) == set(rung(fast))


async def test_what_workers_have_no_room_for_waits_its_turn_and_who_submits_leaves_it_to_that(
    api: Connection,
    worker: Connection,
    pool: Pool,
    lanes: dict[Lane, FakeQueue],
    fast: FakeQueue,
) -> None:
    """By what each worker said when it came, and holds; one that drains takes nothing."""
    first, second = [await a_worker(worker, type_slots={"noop": 2}) for _ in range(2)]
    dispatcher = a_dispatcher(pool, lanes)
    await dispatcher.run_once()
    assert await room_of(api) > 0
    await submitted(api, 12)

    # Each has two, and as many again.
    assert 8 == await dispatcher.run_once()
    assert 0 == await room_of(api)
    jobs = rung(fast)
    for me, job_id in zip((first, first, second), jobs, strict=False):
        await claim_job(worker, job_id, me)
    assert 0 == await dispatcher.run_once(), "what is held makes no room"
    await settle_job(worker, MadeJob(job_id=jobs[0], claim_no=1, worker_id=first), Completed())
    assert [1, 0] == [await dispatcher.run_once() for _ in range(2)]
    await start_drain(worker, first)
    await claim_job(worker, jobs[3], second)
    assert [0, 0] == [await dispatcher.run_once() for _ in range(2)]
    assert 0 == await room_of(api)

    await a_worker(worker)
    assert 3 == await dispatcher.run_once(), "one of an earlier release takes whatever comes"


async def test_who_drains_has_no_room(
    api: Connection, worker: Connection, pool: Pool, lanes: dict[Lane, FakeQueue]
) -> None:
    leaving, _ = [await a_worker(worker, type_slots={"noop": 1}) for _ in range(2)]
    await start_drain(worker, leaving)
    await submitted(api, 9)

    assert 2 == await a_dispatcher(pool, lanes).run_once()


async def test_in_a_lane_only_those_have_room_that_listen_to_it(
    api: Connection, worker: Connection, pool: Pool, lanes: dict[Lane, FakeQueue], fast: FakeQueue
) -> None:
    """Many workers of the other lane are no reason to announce what one has no room for."""
    await a_worker(worker, lanes=[Lane.FAST], type_slots={"noop": 1})
    for _ in range(4):
        await a_worker(worker, lanes=[Lane.GENERAL], type_slots={"noop": 2})
    await submitted(api, 9)
    dispatcher = a_dispatcher(pool, lanes)

    assert [2, 0] == [await dispatcher.run_once() for _ in range(2)]
    await submitted(api, 30, lane=Lane.GENERAL)
    assert 16 == sum([await dispatcher.run_once() for _ in range(5)])
    assert 0 == await room_of(api)

    # What the others have much of takes nothing from this one.
    elsewhere = await a_worker(worker, lanes=[])
    for job_id in rung(fast):
        await claim_job(worker, job_id, elsewhere)
    assert [1, 1, 0] == [await dispatcher.run_once() for _ in range(3)]
    assert 4 == len(rung(fast))


async def test_of_slow_jobs_nothing_is_announced_ahead(
    api: Connection,
    worker: Connection,
    superuser: Connection,
    pool: Pool,
    lanes: dict[Lane, FakeQueue],
    fast: FakeQueue,
) -> None:
    """It would only be received in vain until one of them ends."""
    me = await a_worker(worker, type_slots={"noop": 2})
    dispatcher = a_dispatcher(pool, lanes)
    await submitted(api, 9)
    assert 4 == await dispatcher.run_once()
    for job_id in rung(fast):
        await claim_job(worker, job_id, me)
    async with superuser.transaction():
        await superuser.execute("SET LOCAL session_replication_role = replica")  # time goes by
        await superuser.execute(
            "UPDATE jobs SET claimed_at = now() - interval '2 seconds' WHERE state = 'processing'"
        )
    for claim_no, job_id in enumerate(rung(fast)[:3]):
        done = MadeJob(job_id=job_id, claim_no=1, worker_id=me)
        await settle_job(worker, done, Completed())
        assert [0, 0, 1][claim_no] == await dispatcher.run_once()


async def test_a_suspect_is_announced_whatever_room_others_have(
    api: Connection,
    worker: Connection,
    pool: Pool,
    lanes: dict[Lane, FakeQueue],
) -> None:
    await a_worker(worker, type_slots={"noop": 1})
    await submitted(api, 9)
    dispatcher = a_dispatcher(pool, lanes)
    await dispatcher.run_once()
    (suspect,) = await submitted(api, 1, lane=Lane.QUARANTINE)

    await dispatcher.run_once()

    assert [suspect] == rung(lanes[Lane.QUARANTINE])
