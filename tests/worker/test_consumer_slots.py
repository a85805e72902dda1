"""What a consumer begins where slots are turned, types are bound and suspects run alone."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from imagefleet.aws.queue import Received
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import ClaimAnswer, JobId, JobState, Lane, Submission, new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.worker.consumer import PAUSE_AFTER_ERROR
from imagefleet.worker.messages import BUSY_FOR, CONTENDED_FOR
from imagefleet.worker.slots import Solitude, TypeSlots
from tests.support.bench import Bench
from tests.support.eventually import eventually
from tests.support.factories import a_job, a_submission, expire_lock
from tests.support.queues import a_message, a_ringing
from tests.support.rows import job_row, ring_row
from tests.worker.listening import counted, ends_in, listening

NOTHING = timedelta()


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
        heard.ring(*jobs)
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
        heard.ring(*jobs, other)
        await heard.runs(2)
        await eventually(lambda: len(heard.own.deleted) == 2)

        assert {"noop": 1, "other": 1} == Counter(started.claim.type for started in heard.started)
        put_off = {job.job_id for job in jobs} - {heard.started[0].claim.job_id}
        for job_id in put_off:
            row = await ring_row(bench.worker, job_id)
            assert row is not None
            assert row["sent_at"] is None

        (running,) = [started for started in heard.started if started.claim.type == "noop"]
        running.leave()
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
        heard.ring(running)
        await eventually(lambda: heard.own.changed)
        heard.ring(free)

        await heard.runs(1)

    assert free.job_id == heard.started[0].claim.job_id


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
    messages = [a_ringing(job.job_id) for job in (last, taken, late)]
    with capture_logs() as lines:
        async with listening(bench, slots=3, types=("noop", "other"), type_slots=own) as heard:
            heard.own.waiting += messages
            await eventually(lambda: heard.own.deleted and heard.own.changed)

            assert [taken.job_id] == [started.claim.job_id for started in heard.started]
            assert [messages[0].receipt] == heard.own.deleted
            assert [(messages[2].receipt, CONTENDED_FOR)] == heard.own.changed
            assert {"noop": 1} == own._busy
            await eventually(lambda: (heard.slots.reserved, heard.slots.busy) == (2, 1))

    assert [{last.job_id, taken.job_id}, {late.job_id}] == [set(job_ids) for job_ids in asked[:2]]
    assert {"job.exhausted", "job.taken_over"} == {event for event, *_ in ends_in(lines)}
    assert 2.0 == sum(
        counted(bench, f'job_attempts_total{{outcome="{outcome}"}}')
        for outcome in ("exhausted", "taken_over")
    )


async def test_jobs_that_ran_before_the_change_are_counted(bench: Bench) -> None:
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
        await fast.consumer._take(Lane.FAST, fast.own.as_queue(), [on_its_way], fast.drain)
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
