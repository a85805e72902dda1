"""Receiving and claiming: what becomes of every message, and how many are asked for."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from imagefleet.errors import Unavailable
from imagefleet.jobs.model import JobId, Lane, PauseScope, new_job_id, parse_message
from imagefleet.store.database import Connection, open_pool
from imagefleet.store.fleet.pauses import Pause, pause
from imagefleet.worker.messages import CONTENDED_FOR, UNKNOWN_RECEIVES
from tests.support.bench import Bench
from tests.support.eventually import eventually
from tests.support.factories import a_submission, expire_lock
from tests.support.queues import FakeQueue, a_message, a_ringing
from tests.support.rows import attempts_rows, job_row, ring_row
from tests.support.wires import a_wire
from tests.worker.listening import counted, ends_in, listening

NOTHING = timedelta()


async def test_a_claimed_job_starts_and_its_message_is_kept(bench: Bench) -> None:
    submission = await bench.submit()
    async with listening(bench) as heard:
        heard.ring(submission)
        await heard.runs(1)

    (started,) = heard.started
    assert submission.job_id == started.claim.job_id == started.delivery.message.job_id
    assert ([], []) == (heard.own.deleted, heard.own.changed)
    assert (1, 1) == (heard.slots.busy, heard.slots.free)


async def test_never_more_is_asked_for_than_is_free(bench: Bench) -> None:
    submissions = [await bench.submit() for _ in range(3)]
    async with listening(bench) as heard:
        heard.ring(*submissions)
        await heard.runs(2)
        asked = len(heard.own.asked)
        assert [2] * asked == heard.own.asked
        assert 1 == len(heard.own.waiting), "nothing is received while no slot is free"

        heard.started[0].leave()
        await heard.runs(3)
        assert [1] == heard.own.asked[asked : asked + 1]


async def test_while_a_batch_is_claimed_the_next_receive_is_on_its_way(
    bench: Bench, superuser: Connection
) -> None:
    """As long as slots are free, and no further one: what that brings waits for the first."""
    jobs = [await bench.submit() for _ in range(3)]
    async with listening(bench, slots=4) as heard:
        async with superuser.transaction():
            await superuser.execute("LOCK TABLE workers IN ACCESS EXCLUSIVE MODE")
            heard.ring(jobs[0])
            await eventually(lambda: heard.own.asked[-1:] == [3] and not heard.own.waiting)
            heard.ring(jobs[1])
            await eventually(lambda: not heard.own.waiting)
            heard.ring(jobs[2])
            for _ in range(20):
                await asyncio.sleep(0)
            assert [jobs[2].job_id] == [
                parse_message(each.body).job_id for each in heard.own.waiting
            ]
            assert ([], (0, 2)) == (heard.started, (heard.slots.busy, heard.slots.reserved))

        await heard.runs(3)


async def test_a_claim_that_fails_beside_a_receive_is_told_of_and_costs_no_slot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim(*_: object, **_wishes: object) -> None:
        raise Unavailable("database_unavailable", "gone")

    submission = await bench.submit()
    async with listening(bench) as heard:
        with monkeypatch.context() as broken:
            broken.setattr("imagefleet.worker.consumer.claim_jobs", claim)
            heard.ring(submission)
            await eventually(lambda: heard.consumer.deaf == "database_unavailable")
        await eventually(lambda: heard.own.changed)
        assert [CONTENDED_FOR] == [span for _, span in heard.own.changed]
        heard.ring(submission)
        await heard.runs(1)
        await eventually(lambda: heard.consumer.deaf is None)


async def test_slots_that_free_together_are_asked_for_together(bench: Bench) -> None:
    submissions = [await bench.submit() for _ in range(2)]
    async with listening(bench) as heard:
        heard.ring(*submissions)
        await heard.runs(2)
        asked = len(heard.own.asked)
        for started in heard.started:
            started.leave()
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

    (started,) = heard.started
    assert runs.job_id == started.claim.job_id
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
            heard.ring(claim)
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
            heard.ring(claim)
            await heard.runs(1)

    assert [("job.taken_over", "processing", "lock_expired")] == ends_in(lines)
    assert 1.0 == counted(bench, 'job_processed_total{job_type="noop",status="processing"}')


async def test_a_type_that_this_worker_lacks_is_left_to_its_ring(
    bench: Bench, superuser: Connection
) -> None:
    """The dispatcher announces it again, where a living worker has the type."""
    submission = await bench.submit()
    async with listening(bench, types=("process_image",)) as heard:
        heard.ring(submission)
        await eventually(lambda: heard.own.deleted)

    ring = await ring_row(superuser, submission.job_id)
    assert [] == heard.own.changed
    assert ring is not None
    assert ring["sent_at"] is None


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
        await heard.consumer._admit(
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
        heard.ring(submission)
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
        heard.ring(submission)
        await eventually(lambda: heard.own.changed)

    assert [CONTENDED_FOR] == [span for _, span in heard.own.changed]
    assert "queued" == (await job_row(superuser, submission.job_id))["state"]
    assert 2 == heard.slots.free


# Helping.


async def test_general_slots_ask_fast_only_after_an_empty_general_receive(bench: Bench) -> None:
    fast = FakeQueue("fast")
    quick = [await bench.submit() for _ in range(3)]
    slow = await bench.submit(a_submission(lane=Lane.GENERAL))
    fast.waiting += [a_ringing(job.job_id) for job in quick]
    async with listening(bench, lane=Lane.GENERAL, slots=1, helps=fast) as heard:
        heard.ring(slow)
        await heard.runs(1)
        assert slow.job_id == heard.started[0].claim.job_id
        assert [] == fast.asked, "general had something"

        for count in range(2, 5):
            heard.started[-1].leave()
            await heard.runs(count)

    assert {NOTHING} == set(fast.polls), "it never waits on the queue of others"
    assert {job.job_id for job in quick} == {started.claim.job_id for started in heard.started[1:]}
    # One empty poll of its own pays for all the help of the next second.
    assert len(heard.own.asked) <= 3


async def test_an_idle_general_lane_polls_its_own_queue_long(bench: Bench) -> None:
    fast = FakeQueue("fast")
    async with listening(bench, lane=Lane.GENERAL, helps=fast) as heard:
        await eventually(lambda: len(heard.own.asked) >= 3)

    assert {timedelta(seconds=20)} == set(heard.own.polls)
    assert abs(len(fast.asked) - len(heard.own.asked)) <= 1


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
            heard.ring(claim)
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


async def test_every_claim_is_counted_though_a_message_beside_it_cannot_be_put_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> None:
        raise Unavailable("sqs_unavailable", "gone")

    monkeypatch.setattr("imagefleet.worker.messages.Unclaimed.dismiss", refused)
    ours = await bench.submit()
    async with listening(bench) as heard:
        heard.ring(a_submission(), ours)
        await eventually(lambda: heard.consumer.deaf)

        assert 1 == len(heard.started)
        assert 1 == counted(bench, 'claim_verdict_total{verdict="claimed"}')
