"""What becomes of a message whose job is not ours, verdict by verdict."""

from dataclasses import replace
from datetime import timedelta
from itertools import accumulate

import pytest

from imagefleet.embedded.topology import described
from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.model import (
    ClaimAnswer,
    JobMessage,
    Lane,
    Verdict,
    new_job_id,
)
from imagefleet.settings.in_force import Overlay
from imagefleet.worker.attempt import RENEWAL_MARGIN
from imagefleet.worker.messages import (
    BUSY_FOR,
    BUSY_RECEIVES,
    CONTENDED_FOR,
    MOST_DEFERRED,
    UNKNOWN_FOR,
    Delivery,
    busy_for,
)
from tests.support.bench import Bench
from tests.support.eventually import eventually
from tests.support.queues import FakeQueue, a_message, a_ringing

NOTHING = timedelta()
MANY = 10_000

# What a verdict does to the message: how it comes back, if it does. None is deleted.
ANSWERS: dict[Verdict, timedelta | None] = {
    Verdict.FINISHED: None,
    Verdict.NOT_DUE: None,
    Verdict.TARGET_BUSY: None,
    Verdict.PAUSED: None,
    Verdict.BREAKER: None,
    Verdict.EXHAUSTED: None,
    Verdict.ELSEWHERE: None,
    Verdict.BUSY: BUSY_FOR,
    Verdict.UNROUTABLE: None,
    Verdict.CONTENDED: CONTENDED_FOR,
    Verdict.UNKNOWN: UNKNOWN_FOR,
}
RUNS = {Verdict.CLAIMED, Verdict.CANCELLED}  # kept until the outcome is written


def test_the_table_has_every_verdict() -> None:
    assert set(Verdict) == {*ANSWERS, *RUNS, Verdict.UNREADABLE}


@pytest.mark.parametrize("verdict", ANSWERS)
async def test_each_verdict_has_one_answer_for_the_message(bench: Bench, verdict: Verdict) -> None:
    message = a_ringing(new_job_id())
    delivery = Delivery(
        queue=bench.queue.as_queue(), received=message, message=JobMessage(job_id=new_job_id())
    )
    dead_letters = FakeQueue()
    unclaimed = bench.unclaimed(dead_letters)

    wait = timedelta(minutes=8) if verdict is Verdict.BUSY else None
    answer = ClaimAnswer(job_id=delivery.message.job_id, verdict=verdict, wait=wait)
    await unclaimed.dismiss(delivery, answer)
    await eventually(lambda: bench.queue.deleted or bench.queue.changed)

    span = ANSWERS[verdict]
    if span is None:
        assert ([message.receipt], []) == (bench.queue.deleted, bench.queue.changed)
    else:
        ((receipt, back_in),) = bench.queue.changed
        assert message.receipt == receipt
        assert span <= back_in <= span * 1.1
        assert [] == bench.queue.deleted
    assert [] == dead_letters.sent


@pytest.mark.parametrize("verdict", [*RUNS, Verdict.UNREADABLE])
async def test_what_is_ours_is_never_dismissed(bench: Bench, verdict: Verdict) -> None:
    unclaimed = bench.unclaimed(FakeQueue())
    delivery = Delivery(
        queue=bench.queue.as_queue(),
        received=a_message("x"),
        message=JobMessage(job_id=new_job_id()),
    )

    with pytest.raises(ValueError, match="not for dismissal"):
        await unclaimed.dismiss(delivery, ClaimAnswer(job_id=new_job_id(), verdict=verdict))


async def test_no_message_is_hidden_for_longer_than_sqs_allows(bench: Bench) -> None:
    unclaimed = bench.unclaimed(FakeQueue())
    delivery = Delivery(
        queue=bench.queue.as_queue(),
        received=replace(a_message("x"), receive_count=MANY),
        message=JobMessage(job_id=new_job_id()),
    )
    answer = ClaimAnswer(job_id=new_job_id(), verdict=Verdict.BUSY, wait=timedelta(days=3))
    await unclaimed.dismiss(delivery, answer)
    await eventually(lambda: bench.queue.changed)

    assert [MOST_DEFERRED] == [span for _, span in bench.queue.changed]


# A message of a job that somebody has.

LOCK = timedelta(minutes=10)
# A beat renews what is older than a third of it: the least that a living job leaves to wait for.
LEAST = LOCK * 2 / 3 - timedelta(seconds=2)
HELD_BACK = timedelta(minutes=1)  # what an expired lock is told that may not be taken over now


def visits(count: int, wait: timedelta) -> list[timedelta]:
    """When its first receives are, after the first of all, if nothing of it changes."""
    spans = (busy_for(receives, wait) for receives in range(1, count))
    return list(accumulate(spans, initial=NOTHING))


def test_the_message_of_a_short_job_is_back_soon_and_of_a_long_one_seldom() -> None:
    spans = [busy_for(receives, LOCK).total_seconds() for receives in range(1, 12)]

    assert [5, 10, 20, 40, 80, 160, 320, 600, 600, 600, 1200] == spans


@pytest.mark.parametrize("taken", [timedelta(seconds=1), LOCK / 20, LOCK / 2])
def test_a_job_that_is_over_leaves_a_message_for_no_longer_than_it_took(taken: timedelta) -> None:
    back = next(at for at in visits(BUSY_RECEIVES, LOCK) if at >= taken)

    assert back <= max(BUSY_FOR, 2 * taken + BUSY_FOR)


@pytest.mark.parametrize("left", range(1, 601, 7))
def test_a_message_is_back_when_the_lock_can_have_expired(left: int) -> None:
    expires, now = timedelta(seconds=left), NOTHING
    for receives in range(1, BUSY_RECEIVES):
        now += busy_for(receives, expires - now)
        if now >= expires:
            break

    assert expires <= now <= expires + CONTENDED_FOR


def test_some_receives_outlast_the_longest_job_and_the_lock_that_it_may_leave() -> None:
    longest = max(Overlay().timeout(kind, lane) for kind in BUILT_IN.values() for lane in Lane)

    assert visits(15, LEAST)[-1] > longest + RENEWAL_MARGIN + LOCK


@pytest.mark.parametrize("lane", Lane)
@pytest.mark.parametrize("wait", [LEAST, HELD_BACK], ids=["renewed", "held back"])
def test_no_job_is_busy_so_often_that_its_message_goes_to_the_dead_letters(
    lane: Lane, wait: timedelta
) -> None:
    most = described().queues[lane].max_receives
    assert most is not None

    assert visits(most, wait)[-1] > timedelta(days=2)


def test_a_message_that_was_received_very_often_is_no_overflow() -> None:
    assert MOST_DEFERRED == busy_for(MANY, LOCK)
