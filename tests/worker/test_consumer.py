"""Receiving and claiming: what becomes of every message, and how many are asked for."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from imagefleet.aws.queue import Received
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import (
    Claim,
    ClaimAnswer,
    JobId,
    JobMessage,
    Lane,
    PauseScope,
    Submission,
    encode_message,
    new_job_id,
)
from imagefleet.runtime import Drain
from imagefleet.store.database import Connection, open_pool
from imagefleet.store.fleet.pauses import (
    Pause,
    pause,
)
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.worker.consumer import PAUSE_AFTER_ERROR, Consumer, Ears
from imagefleet.worker.lease import Lease
from imagefleet.worker.messages import (
    BUSY_FOR,
    CONTENDED_FOR,
    UNKNOWN_RECEIVES,
    Delivery,
)
from imagefleet.worker.settler import Takeovers
from imagefleet.worker.slots import Hearing, Slots, Solitude, TypeSlots
from tests.support.bench import Bench
from tests.support.eventually import eventually
from tests.support.factories import a_submission, expire_lock
from tests.support.queues import LONGEST_POLL, FakeQueue, a_message, a_ringing
from tests.support.rows import attempts_rows, job_row, ring_row
from tests.support.wires import a_wire

NOTHING = timedelta()


class FakeLease:
    """A beat that is as old as the test says."""

    def __init__(self) -> None:
        self.is_stale = False
        self.is_waited_for = asyncio.Event()
        self._beaten = asyncio.Event()

    async def until_fresh(self) -> None:
        while self.is_stale:
            self.is_waited_for.set()
            await self._beaten.wait()

    @property
    def fresh(self) -> bool:
        return not self.is_stale


@dataclass
class Listening:
    """A consumer of two slots, its queues, and what it started."""

    bench: Bench
    own: FakeQueue
    dead_letters: FakeQueue
    slots: Slots
    lease: FakeLease
    hearing: Hearing
    consumer: Consumer
    drain: Drain
    started: list[tuple[Claim, Delivery, Callable[[], None]]] = field(default_factory=list)

    async def runs(self, count: int) -> None:
        await eventually(lambda: len(self.started) == count)

    @property
    def changes(self) -> dict[str, timedelta]:
        return {receipt.message_id: span for receipt, span in self.own.changed}


@asynccontextmanager
async def listening(
    bench: Bench,
    *,
    lane: Lane = Lane.FAST,
    slots: int = 2,
    helps: FakeQueue | None = None,
    types: tuple[str, ...] = ("noop",),
    solitude: Solitude | None = None,
    type_slots: TypeSlots | None = None,
) -> AsyncIterator[Listening]:
    own, dead_letters, drain, lease = FakeQueue("own"), FakeQueue("dead"), Drain(), FakeLease()
    started: list[tuple[Claim, Delivery, Callable[[], None]]] = []
    room, hearing = Slots(slots), Hearing(Lane)
    ears = Ears(
        pool=bench.pool,
        worker_id=bench.worker_id,
        types=types,
        lease=cast("Lease", lease),
        solitude=solitude or Solitude(),
        unclaimed=bench.unclaimed(dead_letters),
        hearing=hearing,
        metrics=bench.equipment.metrics,
        takeovers=Takeovers(bench.pool, bench.worker_id, bench.equipment.metrics),
        start=lambda *one: started.append(one),
        type_slots=type_slots or TypeSlots(),
    )
    queues = [(lane, own.as_queue())]
    if helps is not None:
        queues.append((Lane.FAST, helps.as_queue()))
    consumer = Consumer(lane, room, queues, ears, timedelta(seconds=20))
    async with asyncio.TaskGroup() as group:
        group.create_task(consumer.run(drain))
        yield Listening(bench, own, dead_letters, room, lease, hearing, consumer, drain, started)
        drain.request("the test is over")
    assert 0 == room.reserved


async def test_a_claimed_job_starts_and_its_message_is_kept(bench: Bench) -> None:
    submission = await bench.submit()
    async with listening(bench) as heard:
        heard.own.waiting.append(a_ringing(submission.job_id))
        await heard.runs(1)

    ((claim, delivery, _),) = heard.started
    assert submission.job_id == claim.job_id == delivery.message.job_id
    assert ([], []) == (heard.own.deleted, heard.own.changed)
    assert (1, 1) == (heard.slots.busy, heard.slots.free)


async def test_never_more_is_asked_for_than_is_free(bench: Bench) -> None:
    submissions = [await bench.submit() for _ in range(3)]
    async with listening(bench) as heard:
        heard.own.waiting += [a_ringing(one.job_id) for one in submissions]
        await heard.runs(2)
        asked = len(heard.own.asked)
        assert [2] * asked == heard.own.asked
        assert 1 == len(heard.own.waiting), "nothing is received while no slot is free"

        heard.started[0][2]()
        await heard.runs(3)
        assert [1] == heard.own.asked[asked : asked + 1]


async def test_slots_that_free_together_are_asked_for_together(bench: Bench) -> None:
    submissions = [await bench.submit() for _ in range(2)]
    async with listening(bench) as heard:
        heard.own.waiting += [a_ringing(one.job_id) for one in submissions]
        await heard.runs(2)
        asked = len(heard.own.asked)
        for _, _, leave in heard.started:
            leave()
            await asyncio.sleep(0)
        await eventually(lambda: len(heard.own.asked) > asked)

    assert 2 == heard.own.asked[asked]


async def test_one_receive_may_bring_every_kind_of_message(
    bench: Bench, operator: Connection, superuser: Connection
) -> None:
    runs, paused = await bench.submit(), await bench.submit(a_submission(target="t"))
    what = Pause(scope=PauseScope.TARGET, name="t", tenant_id="acme")
    await pause(operator, what, by="tests", reason="tests")
    held = await bench.claim()
    elsewhere = await bench.submit(a_submission(lane=Lane.GENERAL))
    stranger = a_message("not ours")
    async with listening(bench, slots=10) as heard:
        heard.own.waiting += [
            a_ringing(runs.job_id),
            a_ringing(runs.job_id),
            a_ringing(paused.job_id),
            a_ringing(held.job_id),
            a_ringing(elsewhere.job_id),
            a_ringing(new_job_id()),
            stranger,
        ]
        await heard.runs(1)
        await eventually(lambda: len(heard.own.deleted) == 3)
        await eventually(lambda: len(heard.own.changed) == 3)

    ((claim, *_),) = heard.started
    assert runs.job_id == claim.job_id
    assert ["not ours"] == [message.body for message in heard.dead_letters.sent]
    assert {"reason": "unreadable", "queue": "own"} == heard.dead_letters.sent[0].attributes
    ring = await ring_row(superuser, elsewhere.job_id)
    assert ring is not None
    assert "general" == ring["lane"]
    text = bench.equipment.metrics.exposition().decode()
    for verdict in ("claimed", "busy", "paused", "elsewhere", "unknown", "unreadable"):
        assert f'claim_verdict_total{{verdict="{verdict}"}}' in text


async def test_an_unknown_job_is_buried_once_nobody_can_commit_it_any_more(bench: Bench) -> None:
    job_id = new_job_id()
    async with listening(bench) as heard:
        heard.own.waiting.append(a_ringing(job_id, receive_count=UNKNOWN_RECEIVES - 1))
        await eventually(lambda: heard.own.changed)
        assert [] == heard.dead_letters.sent

        heard.own.waiting.append(a_ringing(job_id, receive_count=UNKNOWN_RECEIVES))
        await eventually(lambda: heard.own.deleted)

    assert "unknown_job" == heard.dead_letters.sent[0].attributes["reason"]


async def test_what_cannot_be_buried_is_not_deleted(bench: Bench) -> None:
    async with listening(bench) as heard:
        heard.dead_letters.say = "InternalError"
        heard.own.waiting.append(a_message("not ours"))
        await eventually(lambda: heard.dead_letters.calls)

    assert [] == heard.own.deleted


async def test_an_expired_lock_of_the_last_attempt_is_ended_and_its_message_deleted(
    bench: Bench, superuser: Connection
) -> None:
    claim = await bench.claim(a_submission(max_attempts=1))
    await expire_lock(superuser, claim.job_id)
    async with listening(bench) as heard:
        with capture_logs() as lines:
            heard.own.waiting.append(a_ringing(claim.job_id))
            await eventually(lambda: heard.own.deleted)

    assert "failed" == (await job_row(superuser, claim.job_id))["state"]
    assert [("job.exhausted", "failed", "lock_expired")] == ends_in(lines)
    assert 1.0 == counted(bench, 'job_processed_total{job_type="noop",status="failed"}')


async def test_what_is_taken_over_is_told_by_whoever_takes_it(
    bench: Bench, superuser: Connection
) -> None:
    claim = await bench.claim()
    await expire_lock(superuser, claim.job_id)
    with capture_logs() as lines:
        async with listening(bench) as heard:
            heard.own.waiting.append(a_ringing(claim.job_id))
            await heard.runs(1)

    assert [("job.taken_over", "processing", "lock_expired")] == ends_in(lines)
    assert 1.0 == counted(bench, 'job_processed_total{job_type="noop",status="processing"}')


def ends_in(lines: Sequence[Mapping[str, object]]) -> list[tuple[object, ...]]:
    return [(line["event"], line["state"], line["why"]) for line in lines if "outcome" in line]


def counted(bench: Bench, series: str) -> float:
    lines = bench.equipment.metrics.exposition().decode().splitlines()
    (found,) = [line for line in lines if line.startswith(series)]
    return float(found.rpartition(" ")[2])


async def test_a_type_that_this_worker_lacks_is_left_to_its_ring(
    bench: Bench, superuser: Connection
) -> None:
    """The dispatcher announces it again, where a living worker has the type."""
    submission = await bench.submit()
    async with listening(bench, types=("process_image",)) as heard:
        heard.own.waiting.append(a_ringing(submission.job_id))
        await eventually(lambda: heard.own.deleted)

    ring = await ring_row(superuser, submission.job_id)
    assert [] == heard.own.changed
    assert ring is not None
    assert ring["sent_at"] is None


# What it has heard, by lane; dispatchers know from it which messages are lost.

ANNOUNCED_AT = datetime(2026, 1, 1, tzinfo=UTC)
TOMORROW = datetime.now(UTC) + timedelta(days=1)
NEWER = timedelta(minutes=1)


async def test_a_message_by_which_a_job_was_claimed_is_heard_and_no_other(bench: Bench) -> None:
    runs, later = await bench.submit(), await bench.submit(a_submission(run_at=TOMORROW))
    async with listening(bench) as heard:
        messages = {runs.job_id: ANNOUNCED_AT, later.job_id: ANNOUNCED_AT + NEWER}
        heard.own.waiting += [
            a_message(encode_message(JobMessage(job_id=job_id, announced_at=at)))
            for job_id, at in messages.items()
        ]
        await heard.runs(1)
        await eventually(lambda: heard.own.deleted)

    assert {Lane.FAST: ANNOUNCED_AT} == heards(heard.hearing)


async def test_a_long_poll_that_brings_nothing_is_a_silence_since_it_began(bench: Bench) -> None:
    async with listening(bench) as heard:
        before = asyncio.get_running_loop().time()
        await eventually(lambda: len(heard.own.asked) > 2)
        told = heard.hearing.told()
        after = asyncio.get_running_loop().time()

    silences = dict(zip(Lane, told.silent_for, strict=True))
    span = silences.pop(Lane.FAST)
    assert [None, None] == list(silences.values())
    assert span is not None
    assert NOTHING < span <= timedelta(seconds=after - before) + timedelta(seconds=LONGEST_POLL)


async def test_a_poll_that_does_not_wait_is_no_silence(bench: Bench) -> None:
    """General slots ask the fast lane in passing: an answer of one server of many."""
    helps = FakeQueue("helps")
    async with listening(bench, lane=Lane.GENERAL, helps=helps) as heard:
        await eventually(lambda: NOTHING in helps.polls and heard.hearing.told().silent_for[1])

    silent = dict(zip(Lane, heard.hearing.told().silent_for, strict=True))
    assert silent[Lane.FAST] is None
    assert silent[Lane.GENERAL] is not None


async def test_a_poll_that_fails_or_brings_something_is_no_silence(bench: Bench) -> None:
    submission = await bench.submit()
    async with listening(bench, slots=1) as heard:
        heard.own.waiting.append(a_ringing(submission.job_id))
        await heard.runs(1)
        assert [None] * 3 == heard.hearing.told().silent_for
        heard.own.say = Unavailable("sqs_unavailable", "away")
        asked = len(heard.own.asked)
        heard.started[0][2]()
        await eventually(lambda: len(heard.own.asked) > asked)

        assert [None] * 3 == heard.hearing.told().silent_for


def heards(hearing: Hearing) -> dict[Lane, datetime]:
    told = zip(Lane, hearing.told().heard_at, strict=True)
    return {lane: at for lane, at in told if at is not None}


async def test_nothing_is_received_while_the_beat_is_old(bench: Bench) -> None:
    async with listening(bench) as heard:
        heard.lease.is_stale = True
        await eventually(heard.lease.is_waited_for.is_set)
        asked = len(heard.own.asked)
        message = a_ringing(new_job_id())
        heard.own.waiting.append(message)

    assert asked == len(heard.own.asked)
    assert [message] == heard.own.waiting


async def test_a_poll_that_outlived_the_beat_is_given_back_unclaimed(
    bench: Bench, superuser: Connection
) -> None:
    submission = await bench.submit()
    async with listening(bench) as heard:
        await eventually(lambda: heard.own.asked)
        heard.lease.is_stale = True
        await heard.consumer._take(
            Lane.FAST, heard.own.as_queue(), [a_ringing(submission.job_id)], heard.drain
        )
        await eventually(lambda: heard.own.changed)

    assert [NOTHING] == [span for _, span in heard.own.changed]
    assert "queued" == (await job_row(superuser, submission.job_id))["state"]


async def test_what_a_cancelled_receive_brings_goes_back_at_once(bench: Bench) -> None:
    late = a_ringing(new_job_id())
    async with listening(bench) as heard:
        heard.own.lost = [late]
    await eventually(lambda: heard.own.changed)

    assert [(late.receipt, NOTHING)] == heard.own.changed


async def test_a_failing_queue_is_asked_again_and_told_of(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagefleet.worker.consumer.PAUSE_AFTER_ERROR", NOTHING)
    submission = await bench.submit()
    async with listening(bench) as heard:
        heard.own.say = Unavailable("sqs_throttled", "busy")
        await eventually(lambda: heard.consumer.deaf == "sqs_throttled")
        heard.own.say = None
        heard.own.waiting.append(a_ringing(submission.job_id))
        await heard.runs(1)
        await eventually(lambda: heard.consumer.deaf is None)


async def test_a_claim_that_fails_leaves_the_messages_for_later(
    bench: Bench, superuser: Connection
) -> None:
    submission = await bench.submit()
    async with (
        open_pool(
            "postgresql://nobody:nothing@127.0.0.1:1/nowhere", process="test", min_size=0
        ) as nowhere,
        listening(bench) as heard,
    ):
        object.__setattr__(heard.consumer._ears, "pool", nowhere)
        heard.own.waiting.append(a_ringing(submission.job_id))
        await eventually(lambda: heard.own.changed)

    assert [CONTENDED_FOR] == [span for _, span in heard.own.changed]
    assert "queued" == (await job_row(superuser, submission.job_id))["state"]
    assert 2 == heard.slots.free


# Helping.


async def test_general_slots_ask_fast_only_after_an_empty_general_receive(bench: Bench) -> None:
    fast = FakeQueue("fast")
    quick = [await bench.submit() for _ in range(3)]
    slow = await bench.submit(a_submission(lane=Lane.GENERAL))
    fast.waiting += [a_ringing(one.job_id) for one in quick]
    async with listening(bench, lane=Lane.GENERAL, slots=1, helps=fast) as heard:
        heard.own.waiting.append(a_ringing(slow.job_id))
        await heard.runs(1)
        assert slow.job_id == heard.started[0][0].job_id
        assert [] == fast.asked, "general had something"

        for count in range(2, 5):
            heard.started[-1][2]()
            await heard.runs(count)

    assert {NOTHING} == set(fast.polls), "it never waits on the queue of others"
    assert {one.job_id for one in quick} == {one[0].job_id for one in heard.started[1:]}
    # One empty poll of its own pays for all the help of the next second.
    assert len(heard.own.asked) <= 3


async def test_an_idle_general_lane_polls_its_own_queue_long(bench: Bench) -> None:
    fast = FakeQueue("fast")
    async with listening(bench, lane=Lane.GENERAL, helps=fast) as heard:
        await eventually(lambda: len(heard.own.asked) >= 3)

    assert {timedelta(seconds=20)} == set(heard.own.polls)
    assert abs(len(fast.asked) - len(heard.own.asked)) <= 1


# Slots that somebody turned, and types that were bound.


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
        heard.own.waiting += [a_ringing(one.job_id) for one in jobs]
        await heard.runs(1)
        await eventually(lambda: len(heard.own.changed) == 2)

        assert {NOTHING} == set(heard.changes.values())
        assert 1 == len(heard.started)


async def test_only_so_many_of_a_type_begin_and_others_are_not_held_up(
    bench: Bench, superuser: Connection
) -> None:
    """What is too much is put off as what this worker lacks: the ring row says when it is due."""
    own = TypeSlots()
    own.use({"noop": 1})
    jobs = [await bench.submit() for _ in range(3)]
    other = await bench.submit(a_submission(type="other"))
    async with listening(bench, slots=5, types=("noop", "other"), type_slots=own) as heard:
        heard.own.waiting += [a_ringing(one.job_id) for one in (*jobs, other)]
        await heard.runs(2)
        await eventually(lambda: len(heard.own.deleted) == 2)

        assert {"noop": 1, "other": 1} == Counter(claim.type for claim, *_ in heard.started)
        put_off = {one.job_id for one in jobs} - {heard.started[0][0].job_id}
        for job_id in put_off:
            row = await ring_row(bench.worker, job_id)
            assert row is not None
            assert row["sent_at"] is None

        (running,) = [one for one in heard.started if one[0].type == "noop"]
        running[2]()
        again = put_off.pop()
        await superuser.execute("UPDATE rings SET next_at = now() WHERE job_id = $1", again)
        heard.own.waiting.append(a_ringing(again))
        await heard.runs(3)


async def test_a_job_that_is_not_claimed_takes_no_slot_of_its_type(bench: Bench) -> None:
    own = TypeSlots()
    own.use({"noop": 1})
    running = await bench.submit()
    await bench.ask(running)
    free = await bench.submit()
    async with listening(bench, slots=5, type_slots=own) as heard:
        heard.own.waiting.append(a_ringing(running.job_id))
        await eventually(lambda: heard.own.changed)
        heard.own.waiting.append(a_ringing(free.job_id))

        await heard.runs(1)

    assert free.job_id == heard.started[0][0].job_id


async def test_what_was_claimed_is_told_and_begun_though_the_next_claim_fails(
    bench: Bench, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a type with few slots two claims are made: the answers of the first are committed."""
    own = TypeSlots()
    own.use({"other": 0})
    last = await bench.claim(a_submission(max_attempts=1))
    await expire_lock(superuser, last.job_id)
    taken = await bench.claim()
    await expire_lock(superuser, taken.job_id)
    late = await bench.submit(a_submission(type="other"))
    asked: list[Sequence[JobId]] = []

    async def claim_once(
        connection: Connection,
        job_ids: Sequence[JobId],
        **others: Any,  # noqa: ANN401 - handed on
    ) -> list[ClaimAnswer]:
        asked.append(job_ids)
        if len(asked) == 2:
            raise Unavailable("database_unavailable", "gone")
        return await claim_jobs(connection, job_ids, **others)

    monkeypatch.setattr("imagefleet.worker.consumer.claim_jobs", claim_once)
    messages = [a_ringing(one.job_id) for one in (last, taken, late)]
    with capture_logs() as lines:
        async with listening(bench, slots=3, types=("noop", "other"), type_slots=own) as heard:
            heard.own.waiting += messages
            await eventually(lambda: heard.own.deleted and heard.own.changed)

            assert [taken.job_id] == [claim.job_id for claim, *_ in heard.started]
            assert [messages[0].receipt] == heard.own.deleted
            assert [(messages[2].receipt, CONTENDED_FOR)] == heard.own.changed
            assert {"noop": 1} == own._busy
            await eventually(lambda: (heard.slots.reserved, heard.slots.busy) == (2, 1))

    assert [{last.job_id, taken.job_id}, {late.job_id}] == [set(one) for one in asked[:2]]
    assert {"job.exhausted", "job.taken_over"} == {event for event, *_ in ends_in(lines)}
    assert 2.0 == sum(
        counted(bench, f'job_attempts_total{{outcome="{outcome}"}}')
        for outcome in ("exhausted", "taken_over")
    )


async def test_jobs_that_ran_before_the_change_are_counted(bench: Bench) -> None:
    own = TypeSlots()
    first, second = await bench.submit(), await bench.submit()
    async with listening(bench, slots=5, type_slots=own) as heard:
        heard.own.waiting.append(a_ringing(first.job_id))
        await heard.runs(1)
        own.use({"noop": 1})
        heard.own.waiting.append(a_ringing(second.job_id))

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
        fast.own.waiting.append(a_ringing(first.job_id))
        await fast.runs(1)
        quarantine.own.waiting.append(a_ringing(suspect.job_id))
        await eventually(lambda: solitude.is_shut)
        fast.own.waiting.append(a_ringing(second.job_id))
        assert "queued" == (await job_row(superuser, suspect.job_id))["state"]

        fast.started[0][2]()
        await quarantine.runs(1)
        # What a receive brings that was on its way is for other workers.
        on_its_way = a_ringing(second.job_id)
        await fast.consumer._take(Lane.FAST, fast.own.as_queue(), [on_its_way], fast.drain)
        await eventually(lambda: (on_its_way.receipt, NOTHING) in fast.own.changed)
        assert 1 == len(fast.started)
        assert "queued" == (await job_row(superuser, second.job_id))["state"]

        quarantine.started[0][2]()
        fast.own.waiting.append(a_ringing(second.job_id))
        await fast.runs(2)


async def test_a_suspect_that_would_wait_too_long_is_left_to_others(bench: Bench) -> None:
    solitude = Solitude()
    solitude.patience = timedelta(milliseconds=50)
    suspect = await a_suspect(bench)
    solitude.enter()
    async with listening(bench, lane=Lane.QUARANTINE, slots=1, solitude=solitude) as heard:
        heard.own.waiting.append(a_ringing(suspect.job_id))
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


async def test_a_drain_does_not_wait_for_a_suspects_turn(bench: Bench) -> None:
    solitude = Solitude()
    suspect = await a_suspect(bench)
    solitude.enter()
    async with listening(bench, lane=Lane.QUARANTINE, slots=1, solitude=solitude) as heard:
        heard.own.waiting.append(a_ringing(suspect.job_id))
        await eventually(lambda: solitude.is_shut)
    await eventually(lambda: len(heard.own.changed) == 2)

    assert NOTHING == heard.own.changed[-1][1]
    assert not solitude.is_shut


@pytest.mark.parametrize("outcome", ["taken_over", "exhausted"])
async def test_what_a_claim_ended_is_told_once_though_its_answer_is_lost(
    bench: Bench, superuser: Connection, outcome: str
) -> None:
    tries = 1 if outcome == "exhausted" else 5
    claim = await bench.claim(a_submission(max_attempts=tries))
    await expire_lock(superuser, claim.job_id)
    other = a_ringing((await bench.submit()).job_id)
    async with (
        a_wire(bench.database.url("worker")) as wire,
        open_pool(wire.url, process="test-worker", min_size=1, max_size=2) as pool,
        listening(replace(bench, pool=pool)) as heard,
    ):
        with capture_logs() as lines:
            wire.cut_after = claim.job_id.bytes
            heard.own.waiting.append(a_ringing(claim.job_id))
            await eventually(lambda: "receive.failed" in {line["event"] for line in lines})
            assert [] == ends_in(lines)
            assert outcome in await outcomes(superuser, claim.job_id)
            wire.mend()
            await eventually(lambda: ends_in(lines), within=10)
            heard.own.waiting += [other, a_ringing(claim.job_id)]
            await heard.runs(1)

    assert [outcome] == [line["outcome"] for line in lines if "outcome" in line]
    assert [outcome] == await outcomes(superuser, claim.job_id)
    counted = bench.equipment.metrics.exposition().decode()
    assert f'job_attempts_total{{outcome="{outcome}"}} 1.0' in counted


async def outcomes(connection: Connection, job_id: JobId) -> list[str]:
    return [row["outcome"] for row in await attempts_rows(connection, job_id)]
