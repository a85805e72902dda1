"""What is said to SQS about received messages: in batches, late where that is free, never lost."""

import asyncio
import inspect
from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from imagefleet.aws.queue import Failures, Queue, ReceiptHandle, Received
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import JobId, JobMessage, Lane
from imagefleet.worker import messages as messages_module
from imagefleet.worker.messages import Delivery, Messages
from tests.support.eventually import eventually
from tests.support.fleet import Place
from tests.support.queues import FakeQueue, a_message

FAR_OFF = 3600.0
MINUTE = timedelta(minutes=1)


def test_the_fake_queue_has_the_methods_of_the_real_one() -> None:
    for name, method in inspect.getmembers(FakeQueue, inspect.isfunction):
        if not name.startswith("_") and name != "as_queue":
            assert inspect.signature(getattr(Queue, name)) == inspect.signature(method), name


async def test_ten_deletes_are_one_call_at_once() -> None:
    queue = FakeQueue()
    async with Messages({}, deletes_linger=FAR_OFF).open() as messages:
        for number in range(10):
            messages.delete(queue.as_queue(), a_message(str(number)))
        await eventually(lambda: 10 == len(queue.deleted))

    assert ["delete"] == queue.calls


async def test_fewer_deletes_wait_for_company_and_not_for_ever() -> None:
    queue = FakeQueue()
    async with Messages({}, deletes_linger=0.05).open() as messages:
        messages.delete(queue.as_queue(), a_message("one"))
        messages.delete(queue.as_queue(), a_message("two"))
        await eventually(lambda: 2 == len(queue.deleted))

    assert ["delete"] == queue.calls


async def test_what_is_given_back_does_not_wait_for_deletes() -> None:
    queue = FakeQueue()
    async with Messages({}, deletes_linger=FAR_OFF).open() as messages:
        messages.delete(queue.as_queue(), a_message("done"))
        messages.defer(queue.as_queue(), a_message("later"), timedelta())
        await eventually(lambda: queue.changed)

        assert [] == queue.deleted


async def test_the_last_words_are_said_before_the_end() -> None:
    queue = FakeQueue()
    async with Messages({}, deletes_linger=FAR_OFF).open() as messages:
        messages.delete(queue.as_queue(), a_message("done"))
        messages.defer(queue.as_queue(), a_message("later"), MINUTE)

    assert (1, 1) == (len(queue.deleted), len(queue.changed))


@pytest.mark.parametrize("say", [Unavailable("sqs_throttled", "busy"), "ReceiptHandleIsInvalid"])
async def test_a_refusal_hurts_nobody_and_the_next_call_is_made(say: Unavailable | str) -> None:
    queue = FakeQueue(say=say)
    async with Messages({}, deletes_linger=0.01).open() as messages:
        messages.delete(queue.as_queue(), a_message("done"))
        messages.defer(queue.as_queue(), a_message("later"), MINUTE)
        await eventually(lambda: {"delete", "change_visibility"} == set(queue.calls))

        queue.say = None
        messages.delete(queue.as_queue(), a_message("done too"))
        await eventually(lambda: 1 == len(queue.deleted))


async def test_a_real_queue_forgets_what_was_deleted(place: Place) -> None:
    queue = await place.queue(Lane.FAST)
    async with Messages({}).open() as messages:
        await place.send(Lane.FAST, "one", "two")
        for one in await received(queue, 2):
            messages.delete(queue, one)

    depth = await queue.depth()
    assert (0, 0) == (depth.visible, depth.in_flight)


async def received(queue: Queue, count: int) -> list[Received]:
    messages: list[Received] = []
    while len(messages) < count:
        messages += await queue.receive(most=10, wait=timedelta(seconds=1))
    return messages


# Visibility.


def a_delivery(queue: FakeQueue, body: str = "one") -> Delivery:
    return Delivery(
        queue=queue.as_queue(),
        received=a_message(body),
        message=JobMessage(job_id=JobId(uuid4())),
    )


async def test_only_what_would_be_seen_soon_is_extended_and_only_what_a_beat_confirmed() -> None:
    short, long = FakeQueue("short"), FakeQueue("long")
    spans = {short.as_queue(): timedelta(seconds=0.3), long.as_queue(): MINUTE}
    async with Messages(spans).open() as messages:
        standing, lost = a_delivery(short, "standing"), a_delivery(short, "lost")
        early = a_delivery(long, "early")
        for delivery in (standing, lost, early):
            messages.keep(delivery)

        def extended() -> bool:
            messages.renew([standing, early])
            return bool(short.changed)

        await eventually(extended)

    assert {"standing"} == {receipt.message_id for receipt, _ in short.changed}
    assert {timedelta(seconds=0.3)} == {span for _, span in short.changed}
    assert [] == long.changed


class SilentQueue(FakeQueue):
    """Answers a delete when it is told to."""

    def __init__(self) -> None:
        super().__init__("silent")
        self.answers = asyncio.Event()

    async def delete(self, receipts: Sequence[ReceiptHandle]) -> Failures:
        await self.answers.wait()
        return await super().delete(receipts)


async def test_each_queue_is_spoken_to_by_itself() -> None:
    """One that does not answer keeps nobody from the others."""
    silent, well = SilentQueue(), FakeQueue("well")
    async with Messages({}, deletes_linger=0).open() as messages:
        messages.delete(silent.as_queue(), a_message("one"))
        await asyncio.sleep(0.01)
        messages.delete(well.as_queue(), a_message("two"))
        await eventually(lambda: well.deleted)
        silent.answers.set()


async def test_the_end_does_not_wait_for_a_queue_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages_module, "CLOSE_WITHIN", 0.05)
    silent = SilentQueue()
    with capture_logs() as lines:
        async with Messages({}).open() as messages:
            messages.delete(silent.as_queue(), a_message("one"))

    (line,) = lines
    assert ("message.unsaid", "deletes") == (line["event"], line["what"])


async def test_now_means_now() -> None:
    queue = FakeQueue()
    opened = asyncio.Event()

    async def work() -> None:
        async with Messages({}, deletes_linger=FAR_OFF).open() as messages:
            messages.delete(queue.as_queue(), a_message("one"))
            await asyncio.sleep(0)
            opened.set()
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        working = group.create_task(work())
        await opened.wait()
        working.cancel()

    assert [] == queue.deleted
