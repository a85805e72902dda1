"""SQS as the worker and the dispatcher use it."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from imagefleet.aws.queue import Message, Queue, QueueDepth, Received
from imagefleet.aws.session import AwsSession
from imagefleet.doorbell import ringing
from imagefleet.jobs.model import Lane, Ring, TenantId, new_job_id, parse_message
from tests.aws.conftest import MakeQueue, arn_of
from tests.support.aws import Heard
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from types_aiobotocore_sqs.client import SQSClient

AT_ONCE = timedelta()
SECOND = timedelta(seconds=1)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def a_message(body: str = "ring", **attributes: str) -> Message:
    return Message(body=body, group="tenant-a", attributes=attributes)


async def the_one(queue: Queue, *, within: float = 5) -> Received:
    """Receive one message, whenever it comes."""

    async def look() -> Received | None:
        messages = await queue.receive(most=1, wait=AT_ONCE)
        return messages[0] if messages else None

    return await eventually(look, within=within)


async def test_what_is_sent_is_received(queue: Queue) -> None:
    failures = await queue.send([a_message("hello", traceparent=TRACEPARENT, tracestate="a=1")])

    received = await the_one(queue)
    assert failures == (None,)
    assert received.body == "hello"
    assert received.attributes == {"traceparent": TRACEPARENT, "tracestate": "a=1"}
    assert received.receive_count == 1
    assert abs(datetime.now(UTC) - received.sent_at) < timedelta(seconds=30)
    assert received.redriven_from is None


async def test_a_ring_is_read_back_as_the_job_it_rings_for(queue: Queue) -> None:
    ring = Ring(
        job_id=new_job_id(),
        lane=Lane.FAST,
        next_at=datetime.now(UTC),
        announced_at=datetime.now(UTC),
        tenant_id=TenantId("tenant-a"),
        traceparent=TRACEPARENT,
    )

    await queue.send([ringing(ring)])

    received = await the_one(queue)
    message = parse_message(received.body)
    assert (ring.job_id, TRACEPARENT, ring.announced_at) == (
        message.job_id,
        message.traceparent,
        message.announced_at,
    )
    assert received.attributes == {"traceparent": TRACEPARENT}


async def test_ten_messages_share_a_request(queue: Queue, heard: Heard) -> None:
    failures = await queue.send([a_message(str(number)) for number in range(25)])

    assert failures == (None,) * 25
    assert heard.sent_requests["sqs", "SendMessageBatch"] == 3
    assert await queue.depth() == QueueDepth(visible=25, in_flight=0, delayed=0)


async def test_nothing_to_send_costs_no_request(queue: Queue, heard: Heard) -> None:
    assert await queue.send([]) == ()
    assert await queue.delete([]) == ()
    assert await queue.change_visibility([]) == ()
    assert heard.sent_requests.total() == 0


async def test_a_receive_brings_no_more_than_asked_for(queue: Queue) -> None:
    await queue.send([a_message(str(number)) for number in range(12)])

    assert len(await queue.receive(most=3, wait=AT_ONCE)) <= 3
    assert len(await queue.receive(most=100, wait=AT_ONCE)) <= 10


async def test_a_poll_ends_as_soon_as_a_message_arrives(queue: Queue) -> None:
    begun = time.monotonic()
    async with asyncio.TaskGroup() as group:
        poll = group.create_task(queue.receive(most=10, wait=20 * SECOND))
        await asyncio.sleep(0)  # the request is under way, or the message is there before it
        await queue.send([a_message()])

    assert len(poll.result()) == 1
    assert time.monotonic() - begun < 10


async def test_a_poll_of_an_empty_queue_waits_and_brings_nothing(queue: Queue) -> None:
    begun = time.monotonic()

    assert await queue.receive(most=10, wait=SECOND) == []
    assert time.monotonic() - begun > 0.8


async def test_a_message_comes_back_when_its_visibility_ends(make_queue: MakeQueue) -> None:
    queue = await make_queue(visibility_seconds=1)
    await queue.send([a_message()])
    first = await the_one(queue)

    second = await the_one(queue)

    assert second.receive_count == 2
    assert first.receipt.message_id == second.receipt.message_id
    assert first.receipt.handle != second.receipt.handle


async def test_a_message_is_given_back_at_once(queue: Queue) -> None:
    await queue.send([a_message()])
    received = await the_one(queue)

    assert await queue.change_visibility([(received.receipt, AT_ONCE)]) == (None,)

    assert (await the_one(queue)).receive_count == 2


async def test_visibility_can_be_extended(make_queue: MakeQueue) -> None:
    queue = await make_queue(visibility_seconds=2)
    await queue.send([a_message("kept"), a_message("clock")])
    messages = [await the_one(queue), await the_one(queue)]
    kept = next(message for message in messages if message.body == "kept")

    assert await queue.change_visibility([(kept.receipt, timedelta(hours=1))]) == (None,)

    assert (await the_one(queue)).body == "clock"  # came back by itself, the other did not
    assert await queue.receive(most=10, wait=AT_ONCE) == []


async def test_spans_are_rounded_up_and_kept_within_what_sqs_takes(queue: Queue) -> None:
    await queue.send([a_message("a"), a_message("b"), a_message("c")])
    receipts = [(await the_one(queue)).receipt for _ in range(3)]
    spans = [timedelta(days=2), timedelta(seconds=-5), timedelta(milliseconds=1)]

    failures = await queue.change_visibility(list(zip(receipts, spans, strict=True)))

    assert failures[1:] == (None, None)
    assert failures[0] is None or failures[0].final  # 12 hours are counted from the receive


async def test_a_deleted_message_does_not_come_back(queue: Queue) -> None:
    await queue.send([a_message(str(number)) for number in range(3)])
    receipts = [(await the_one(queue)).receipt for _ in range(3)]

    assert await queue.delete(receipts) == (None, None, None)

    assert await queue.depth() == QueueDepth(visible=0, in_flight=0, delayed=0)


async def test_the_newest_handle_deletes_whichever_is_given(queue: Queue) -> None:
    """One process that hears the same message twice settles both with the handle that works."""
    await queue.send([a_message()])
    first = await the_one(queue)
    await queue.change_visibility([(first.receipt, AT_ONCE)])
    await the_one(queue)

    assert await queue.delete([first.receipt, first.receipt]) == (None, None)

    assert await queue.depth() == QueueDepth(visible=0, in_flight=0, delayed=0)


async def test_stale_receipt_handle(
    queue: Queue, session: AwsSession, differs: Callable[[str], bool]
) -> None:
    """A process deletes with a handle that another process's receive has made old."""
    other = await session.queue(queue.url)
    await queue.send([a_message()])
    stale = await the_one(queue)
    await queue.change_visibility([(stale.receipt, AT_ONCE)])
    newest = await the_one(other)

    (failure,) = await queue.delete([stale.receipt])

    left = (await queue.depth()).in_flight
    if differs("stale-handle-is-refused"):
        assert failure is not None
        assert (failure.code, failure.final, left) == ("ReceiptHandleIsInvalid", True, 1)
        assert await other.delete([newest.receipt]) == (None,)
    elif differs("stale-handle-deletes"):
        assert (failure, left) == (None, 0)
    else:
        assert (failure, left) == (None, 1)


async def test_depth_counts_what_is_visible_and_what_is_in_flight(queue: Queue) -> None:
    await queue.send([a_message(str(number)) for number in range(3)])
    await the_one(queue)

    assert await queue.depth() == QueueDepth(visible=2, in_flight=1, delayed=0)


async def test_a_message_that_is_received_too_often_goes_to_the_dead_letters(
    make_queue: MakeQueue, sqs: "SQSClient", differs: Callable[[str], bool]
) -> None:
    dead_letter = await make_queue()
    queue = await make_queue(dead_letter=dead_letter, max_receives=2)
    await queue.send([a_message("poison", traceparent=TRACEPARENT)])
    for _ in range(2):
        received = await the_one(queue)
        await queue.change_visibility([(received.receipt, AT_ONCE)])

    async def moved() -> Received | None:
        assert await queue.receive(most=1, wait=AT_ONCE) == []  # SQS moves it when it is asked for
        messages = await dead_letter.receive(most=1, wait=AT_ONCE)
        return messages[0] if messages else None

    dead = await eventually(moved, within=5)
    assert (dead.body, dead.attributes) == ("poison", {"traceparent": TRACEPARENT})
    if differs("no-redrive-source"):
        assert dead.redriven_from is None
    else:
        assert dead.redriven_from == await arn_of(sqs, queue)


async def test_sqs_itself_moves_dead_letters_back(
    make_queue: MakeQueue, sqs: "SQSClient", differs: Callable[[str], bool]
) -> None:
    dead_letter = await make_queue()
    queue = await make_queue(dead_letter=dead_letter)
    await dead_letter.send([a_message("dead")])
    source, destination = await arn_of(sqs, dead_letter), await arn_of(sqs, queue)

    if differs("no-move-tasks"):
        with pytest.raises(ClientError):
            await sqs.start_message_move_task(SourceArn=source, DestinationArn=destination)
    else:
        await sqs.start_message_move_task(SourceArn=source, DestinationArn=destination)
        assert (await the_one(queue)).body == "dead"


async def test_dead_letters_that_an_application_sent_need_a_destination(
    make_queue: MakeQueue, sqs: "SQSClient", differs: Callable[[str], bool]
) -> None:
    dead_letter = await make_queue()
    await make_queue(dead_letter=dead_letter)
    await dead_letter.send([a_message("dead")])
    source = await arn_of(sqs, dead_letter)

    async def failed() -> str | None:
        (task,) = (await sqs.list_message_move_tasks(SourceArn=source))["Results"]
        return task.get("FailureReason") if task["Status"] == "FAILED" else None

    if differs("no-move-tasks"):
        with pytest.raises(ClientError):
            await sqs.start_message_move_task(SourceArn=source)
    else:
        await sqs.start_message_move_task(SourceArn=source)
        named = "CouldNotDetermineMessageSource"
        assert await eventually(failed, within=5) == (
            "AttributeError" if differs("move-has-no-reason") else named
        )
    assert (await the_one(dead_letter)).body == "dead"


async def test_every_call_is_heard(queue: Queue, heard: Heard) -> None:
    await queue.send([a_message()])
    await the_one(queue)

    calls = {(call.operation, call.resource, code) for call, code in heard.ended_calls}
    assert {
        ("SendMessageBatch", queue.name, None),
        ("ReceiveMessage", queue.name, None),
    } <= calls
