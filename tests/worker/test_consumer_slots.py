"""What a consumer begins where slots are turned, types are bound and suspects run alone."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from imagefleet.aws.queue import Received
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import ClaimAnswer, JobState, Lane, Submission, new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.worker.consumer import PAUSE_AFTER_ERROR
from imagefleet.worker.messages import BUSY_FOR
from imagefleet.worker.slots import Solitude, TypeSlots
from tests.support.bench import Bench
from tests.support.eventually import eventually
from tests.support.factories import a_job, a_submission
from tests.support.queues import FakeQueue, a_message, a_ringing
from tests.support.rows import job_row, ring_row
from tests.worker.listening import listening

NOTHING = timedelta()


# Slots that somebody turned, and types that were bound.


async def a_dispatcher_looks(superuser: Connection) -> None:
    await superuser.execute("UPDATE lanes SET looked_at = now()")


async def test_what_comes_for_slots_that_are_used_no_longer_is_given_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [await bench.submit() for _ in range(3)]
    async with listening(bench, slots=3) as heard:
        receive = heard.own.receive

        async def receive_while_it_changes(*, most: int, wait: timedelta) -> list[Received]:
            received = await receive(most=most, wait=wait)
            if received:
                heard.slots.use(1)
            return received

        monkeypatch.setattr(heard.own, "receive", receive_while_it_changes)
        await eventually(lambda: len(heard.own.asked) > 1)
        heard.ring(*jobs)
        await heard.runs(1)
        await eventually(lambda: len(heard.own.changed) == 2)

        assert {NOTHING} == set(heard.changes.values())
        assert 1 == len(heard.started)


async def test_only_so_many_of_a_type_begin_and_others_are_not_held_up(
    bench: Bench, superuser: Connection
) -> None:
    """What is too much goes back to its ring, due at once: another worker may have room."""
    await a_dispatcher_looks(superuser)
    own = TypeSlots()
    own.use({"noop": 1})
    jobs = [await bench.submit() for _ in range(3)]
    other = await bench.submit(a_submission(type="other"))
    async with listening(bench, slots=5, types=("noop", "other"), type_slots=own) as heard:
        heard.ring(*jobs, other)
        await heard.runs(2)
        await eventually(lambda: len(heard.own.deleted) == 2)

        assert {"noop": 1, "other": 1} == Counter(started.claim.type for started in heard.started)
        put_off = {job.job_id for job in jobs} - {heard.started[0].claim.job_id}
        for job_id in put_off:
            row = await ring_row(bench.worker, job_id)
            assert row is not None
            assert (row["sent_at"], row["next_in"] <= NOTHING) == (None, True)

        (running,) = [started for started in heard.started if started.claim.type == "noop"]
        running.leave()
        heard.own.waiting.append(a_ringing(put_off.pop()))
        await heard.runs(3)


async def test_a_job_that_is_not_claimed_takes_no_slot_of_its_type(bench: Bench) -> None:
    own = TypeSlots()
    own.use({"noop": 1})
    running = await bench.submit()
    await bench.ask(running)
    free = await bench.submit()
    async with listening(bench, slots=5, type_slots=own) as heard:
        heard.ring(running)
        await eventually(lambda: heard.own.changed)
        heard.ring(free)

        await heard.runs(1)

    assert free.job_id == heard.started[0].claim.job_id


async def test_what_has_no_room_is_not_asked_for_until_there_is_some(
    bench: Bench, superuser: Connection
) -> None:
    """It stays in the queue, for workers that have; of what there is room for no more is asked."""
    await a_dispatcher_looks(superuser)
    async with listening(bench, slots=5, type_slots=TypeSlots({"noop": 2})) as heard:
        heard.ring(*[await bench.submit() for _ in range(5)])
        await heard.runs(2)
        await eventually(lambda: len(heard.own.deleted) == 3)
        asked = len(heard.own.asked)
        heard.ring(*[await bench.submit() for _ in range(4)])

        heard.started[0].leave()
        await heard.runs(3)
        heard.started[1].leave()
        heard.started[2].leave()
        await heard.runs(5)

        assert {1, 2} >= set(heard.own.asked[asked:])
        assert (1, 3) == (len(heard.own.waiting), len(heard.own.deleted))


async def test_what_needs_no_room_comes_through_at_once_however_much_stands_before_it(
    bench: Bench, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_dispatcher_looks(superuser)
    monkeypatch.setattr("imagefleet.worker.consumer.WITHOUT_ROOM_FOR", 0.05)
    types, own = ("noop", "other"), TypeSlots({"noop": 1})
    crowd = [await bench.submit() for _ in range(9)]
    others = [await bench.submit(a_submission(type="other")) for _ in range(2)]
    async with listening(bench, slots=6, types=types, type_slots=own) as heard:
        heard.ring(*crowd, *others)

        await heard.runs(3)

        # All that there are slots for, and all again to see what else is there.
        assert [6, 5] == heard.own.asked[:2]


async def test_room_for_others_is_no_reason_to_ask_for_what_has_none(
    bench: Bench, superuser: Connection
) -> None:
    await a_dispatcher_looks(superuser)
    types, own = ("noop", "other"), TypeSlots({"noop": 1, "other": 3})
    jobs = [await bench.submit() for _ in range(4)]
    async with listening(bench, slots=3, types=types, type_slots=own) as heard:
        heard.ring(*jobs[:3])
        await heard.runs(1)
        await eventually(lambda: len(heard.own.deleted) == 2)
        assert [3] == heard.own.asked

        heard.ring(jobs[3])
        heard.started[0].leave()
        await heard.runs(2)
        assert [3, 1] == heard.own.asked


async def test_two_lanes_claim_at_once_and_never_use_the_same_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one may take is nobody else's until it is answered."""
    own, rooms, two = TypeSlots({"noop": 1}), list[object](), asyncio.Event()

    async def claim_beside_another(*given: object, **named: object) -> list[ClaimAnswer]:
        rooms.append(named["rooms"])
        if len(rooms) == 2:
            two.set()
        await two.wait()
        return await claim_jobs(*given, **named)  # type: ignore[arg-type]  # as it was asked

    monkeypatch.setattr("imagefleet.worker.consumer.claim_jobs", claim_beside_another)
    jobs = [await bench.submit(a_submission(lane=lane)) for lane in (Lane.FAST, Lane.GENERAL)]
    async with (
        listening(bench, type_slots=own) as fast,
        listening(bench, lane=Lane.GENERAL, type_slots=own) as general,
    ):
        fast.ring(jobs[0])
        general.ring(jobs[1])
        await eventually(lambda: fast.own.changed or general.own.changed)

        assert [{"noop": 1}, {"noop": 0}] == rooms[:2]
        await eventually(lambda: len(fast.started + general.started) == 1)


@pytest.mark.parametrize("comes", [True, False])
async def test_a_lane_that_had_no_room_has_the_next_unless_it_does_not_come(
    bench: Bench, superuser: Connection, monkeypatch: pytest.MonkeyPatch, *, comes: bool
) -> None:
    """Its message has gone, and the other lane's work never ends: it would be first each time."""
    await a_dispatcher_looks(superuser)
    monkeypatch.setattr("imagefleet.worker.consumer.WITHOUT_ROOM_FOR", 0.05)
    monkeypatch.setattr("imagefleet.worker.slots.OWED_FOR", 60.0 if comes else 0.0)
    own = TypeSlots({"noop": 1})
    many = [await bench.submit(a_submission(lane=Lane.GENERAL)) for _ in range(2)]
    small = await bench.submit()
    async with (
        listening(bench, type_slots=own) as fast,
        listening(bench, lane=Lane.GENERAL, type_slots=own) as general,
    ):
        general.ring(many[0])
        await general.runs(1)
        fast.ring(small)
        await eventually(lambda: len(fast.own.deleted) == 1)

        general.started[0].leave()
        general.ring(many[1])
        await eventually(lambda: len(general.own.deleted) == 1)
        if comes:
            fast.ring(small)
            await fast.runs(1)
            fast.started[0].leave()
        general.ring(many[1])
        await general.runs(2)


async def test_room_that_a_claim_keeps_is_waited_for_until_it_is_answered(
    bench: Bench, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane of quick jobs claims all the time, and would keep all room for nothing."""
    await a_dispatcher_looks(superuser)
    monkeypatch.setattr("imagefleet.worker.slots.ANSWERED_WITHIN", 60.0)
    own, waits, answered = TypeSlots({"other": 1}), asyncio.Event(), TypeSlots.answered
    found: list[dict[str, int]] = []

    async def seen_to_wait(slots: TypeSlots) -> None:
        if not slots.rooms["other"]:
            waits.set()
        await answered(slots)
        found.append(slots.rooms)

    monkeypatch.setattr(TypeSlots, "answered", seen_to_wait)
    quick = await bench.submit(a_submission(lane=Lane.GENERAL))
    pictures = await bench.submit(a_submission(type="other"))
    async with (
        listening(bench, lane=Lane.GENERAL, type_slots=own) as general,
        listening(bench, types=("noop", "other"), type_slots=own) as fast,
    ):
        async with superuser.transaction():
            await superuser.execute("SELECT FROM rings WHERE job_id = $1 FOR UPDATE", quick.job_id)
            general.ring(quick)
            await eventually(lambda: own.rooms == {"other": 0})
            fast.ring(pictures)
            await asyncio.wait_for(waits.wait(), 10)
        await fast.runs(1)
        assert ([{"other": 1}] * 2, []) == (found, fast.own.changed)


async def test_who_waited_for_the_claim_of_another_lane_claims_nothing_after_a_drain_began(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagefleet.worker.slots.ANSWERED_WITHIN", 60.0)
    own, waits, answered = TypeSlots({"noop": 1}), asyncio.Event(), TypeSlots.answered

    async def seen_to_wait(slots: TypeSlots) -> None:
        waits.set()
        await answered(slots)

    monkeypatch.setattr(TypeSlots, "answered", seen_to_wait)
    job = await bench.submit()
    async with listening(bench, type_slots=own) as heard:
        with own.kept(Lane.GENERAL, 1):
            heard.ring(job)
            await asyncio.wait_for(waits.wait(), 10)
            heard.drain.request("the test says so")
        await eventually(lambda: heard.own.changed)

    assert ([], [NOTHING]) == (heard.started, [*heard.changes.values()])


async def test_a_claim_that_hangs_holds_up_no_other_lane_and_keeps_its_room(
    bench: Bench, superuser: Connection
) -> None:
    await a_dispatcher_looks(superuser)
    own = TypeSlots({"noop": 2})
    stuck = await bench.submit(a_submission(lane=Lane.GENERAL))
    two = [await bench.submit() for _ in range(2)]
    async with (
        listening(bench, type_slots=own) as fast,
        listening(bench, lane=Lane.GENERAL, type_slots=own) as general,
    ):
        async with superuser.transaction():
            await superuser.execute("SELECT FROM rings WHERE job_id = $1 FOR UPDATE", stuck.job_id)
            general.ring(stuck)
            await eventually(lambda: own.rooms == {"noop": 1})
            fast.ring(*two)
            await fast.runs(1)
            await eventually(lambda: fast.own.deleted)
            assert (1, 0, {"noop": 0}) == (len(fast.started), len(general.started), own.rooms)

        await general.runs(1)
        assert 1 == len(fast.started)
        fast.started[0].leave()
        general.started[0].leave()
        assert {"noop": 2} == own.rooms


async def test_a_claim_that_fails_gives_its_room_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim(*_: object, **_wishes: object) -> None:
        raise Unavailable("database_unavailable", "gone")

    own = TypeSlots({"noop": 1})
    async with listening(bench, type_slots=own) as heard:
        monkeypatch.setattr("imagefleet.worker.consumer.claim_jobs", claim)
        heard.ring(await bench.submit())
        await eventually(lambda: heard.own.changed)

    assert {"noop": 1} == own.rooms


async def test_what_comes_to_its_own_lane_does_not_wait_for_room_in_that_it_helps(
    bench: Bench, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile it leaves that lane to its own listener, and comes back."""
    await a_dispatcher_looks(superuser)
    monkeypatch.setattr("imagefleet.worker.consumer.WITHOUT_ROOM_FOR", 60.0)
    types, own, fast = ("noop", "other"), TypeSlots({"noop": 1}), FakeQueue("fast")
    crowd = [await bench.submit() for _ in range(3)]
    others = [
        await bench.submit(a_submission(type="other", lane=lane))
        for lane in (Lane.FAST, Lane.GENERAL)
    ]
    async with listening(
        bench, lane=Lane.GENERAL, slots=6, types=types, type_slots=own, helps=fast
    ) as heard:
        fast.waiting += [a_ringing(job.job_id) for job in crowd]
        await heard.runs(1)
        await eventually(lambda: len(fast.deleted) == 2)
        asked = len(fast.asked)
        fast.waiting.append(a_ringing(others[0].job_id))
        heard.ring(others[1])
        await heard.runs(2)
        await eventually(lambda: len(heard.own.asked) > 5)

        assert (asked, 1) == (len(fast.asked), len(fast.waiting))
        assert timedelta() not in heard.own.polls, "it spins"
        heard.consumer._helps_from = 0.0
        await heard.runs(3)


async def test_jobs_that_ran_before_the_change_are_counted(
    bench: Bench, superuser: Connection
) -> None:
    await a_dispatcher_looks(superuser)
    own = TypeSlots()
    first, second = await bench.submit(), await bench.submit()
    async with listening(bench, slots=5, type_slots=own) as heard:
        heard.ring(first)
        await heard.runs(1)
        own.use({"noop": 1})
        heard.ring(second)

        await eventually(lambda: heard.own.deleted)

        assert 1 == len(heard.started)


# Suspects.


async def a_suspect(bench: Bench) -> Submission:
    return await bench.submit(a_submission(lane=Lane.QUARANTINE))


async def test_a_suspect_is_claimed_when_nothing_else_runs_and_nothing_else_while_it_does(
    bench: Bench, superuser: Connection
) -> None:
    solitude = Solitude()
    first, second, suspect = await bench.submit(), await bench.submit(), await a_suspect(bench)
    async with (
        listening(bench, solitude=solitude) as fast,
        listening(bench, lane=Lane.QUARANTINE, slots=1, solitude=solitude) as quarantine,
    ):
        fast.ring(first)
        await fast.runs(1)
        quarantine.ring(suspect)
        await eventually(lambda: solitude.is_shut)
        fast.ring(second)
        assert "queued" == (await job_row(superuser, suspect.job_id))["state"]

        fast.started[0].leave()
        await quarantine.runs(1)
        # What a receive brings that was on its way is for other workers.
        on_its_way = a_ringing(second.job_id)
        await fast.consumer._admit(Lane.FAST, fast.own.as_queue(), [on_its_way], fast.drain)
        await eventually(lambda: (on_its_way.receipt, NOTHING) in fast.own.changed)
        assert 1 == len(fast.started)
        assert "queued" == (await job_row(superuser, second.job_id))["state"]

        quarantine.started[0].leave()
        fast.ring(second)
        await fast.runs(2)


async def test_a_suspect_that_would_wait_too_long_is_left_to_others(bench: Bench) -> None:
    solitude = Solitude()
    solitude.patience = timedelta(milliseconds=50)
    suspect = await a_suspect(bench)
    solitude.enter()
    async with listening(bench, lane=Lane.QUARANTINE, slots=1, solitude=solitude) as heard:
        heard.ring(suspect)
        await eventually(lambda: len(heard.own.changed) == 2)

    assert not solitude.is_shut
    # Out of sight for as long as this worker may wait, and then back soon.
    assert [solitude.patience / 2 + PAUSE_AFTER_ERROR, BUSY_FOR] == [
        span for _, span in heard.own.changed
    ]


async def test_what_is_no_suspect_any_more_shuts_nobody_out(bench: Bench) -> None:
    solitude = Solitude()
    async with listening(bench, lane=Lane.QUARANTINE, slots=1, solitude=solitude) as heard:
        heard.own.waiting += [a_ringing(new_job_id()), a_message("not ours")]
        await eventually(lambda: heard.own.deleted and heard.own.changed, within=10)

    assert not solitude.is_shut


async def test_a_second_message_of_a_suspect_that_has_ended_waits_for_nobody(
    bench: Bench, worker: Connection, superuser: Connection
) -> None:
    solitude = Solitude()
    suspect = await a_job(
        worker,
        superuser,
        state=JobState.COMPLETED,
        submission=a_submission(lane=Lane.QUARANTINE),
    )
    solitude.enter()
    async with listening(bench, lane=Lane.QUARANTINE, slots=1, solitude=solitude) as heard:
        heard.own.waiting.append(a_ringing(suspect.job_id))
        await eventually(lambda: heard.own.deleted)

        assert not solitude.is_shut
        assert heard.own.changed == []


async def test_a_drain_does_not_wait_for_a_suspects_turn(bench: Bench) -> None:
    solitude = Solitude()
    suspect = await a_suspect(bench)
    solitude.enter()
    async with listening(bench, lane=Lane.QUARANTINE, slots=1, solitude=solitude) as heard:
        heard.ring(suspect)
        await eventually(lambda: solitude.is_shut)
    await eventually(lambda: len(heard.own.changed) == 2)

    assert NOTHING == heard.own.changed[-1][1]
    assert not solitude.is_shut
