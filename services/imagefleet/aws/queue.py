"""SQS: one queue, its messages in batches of ten, and receives that no shutdown can lose.

Each entry of a batch has an answer of its own; what was refused is tried again, one by one.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

from imagefleet.aws.calls import Line
from imagefleet.errors import FleetError, Unavailable

if TYPE_CHECKING:
    from types_aiobotocore_sqs.client import SQSClient
    from types_aiobotocore_sqs.literals import QueueAttributeNameType
    from types_aiobotocore_sqs.type_defs import (
        ChangeMessageVisibilityBatchResultTypeDef,
        DeleteMessageBatchResultTypeDef,
        MessageAttributeValueTypeDef,
        MessageTypeDef,
        SendMessageBatchRequestEntryTypeDef,
        SendMessageBatchResultTypeDef,
    )

    BatchAnswer: TypeAlias = (
        ChangeMessageVisibilityBatchResultTypeDef
        | DeleteMessageBatchResultTypeDef
        | SendMessageBatchResultTypeDef
    )
    BatchCall: TypeAlias = Callable[[Sequence[int]], Awaitable[BatchAnswer]]
    """Sends the entries of these indices, each with its index as id."""

MOST_ENTRIES: Final = 10
MOST_BYTES: Final = 256 * 1024  # what every SQS has taken since 2013; newer ones take 1 MiB
TRIES_ALONE: Final = 2  # after the one with the others
PAUSE: Final = 0.1  # seconds before a try alone, doubled each time
LONGEST_WAIT: Final = timedelta(seconds=20)
LONGEST_VISIBILITY: Final = timedelta(hours=12)
MOST_HANDLES: Final = 10_000  # remembered; a process holds far fewer messages at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to be sent."""

    body: str
    group: str
    """The tenant: a hint to the fair queues of AWS. Turns are kept in Postgres, before any send."""
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReceiptHandle:
    """What deletes a received message or changes its visibility."""

    message_id: str
    handle: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message that is ours until its visibility timeout ends."""

    receipt: ReceiptHandle
    body: str
    receive_count: int
    """How often it was received, this time included, whatever became of it."""
    sent_at: datetime
    attributes: Mapping[str, str]
    redriven_from: str | None
    """The ARN of the queue that SQS itself moved it from, on a dead-letter queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """How many messages a queue holds, as SQS estimates it."""

    visible: int
    in_flight: int
    delayed: int


@dataclass(frozen=True, slots=True)
class EntryFailure:
    """Why one entry was not taken, or is not known to have been."""

    code: str
    detail: str
    final: bool
    """The same entry would be refused again."""


Failures: TypeAlias = tuple[EntryFailure | None, ...]
"""One answer an entry, in the order of the entries; None is success."""


class Queue:
    """One queue. Batches answer for every entry; an entry that failed is data, not an exception."""

    def __init__(self, url: str, *, line: Line, client: "SQSClient", polls: "SQSClient") -> None:
        self.url = url
        self.name = line.resource
        self._line = line
        self._client = client
        self._polls = polls
        self._outstanding: set[asyncio.Task[list[Received]]] = set()
        self._newest: dict[str, str] = {}

    async def send(self, messages: Sequence[Message]) -> Failures:
        """Send them all; what has a failure may still have arrived, and may be sent again."""

        def call(batch: Sequence[int]) -> "Awaitable[BatchAnswer]":
            entries = [_entry(index, messages[index]) for index in batch]
            return self._client.send_message_batch(QueueUrl=self.url, Entries=entries)

        sizes = [_size_of(m.body, *m.attributes, *m.attributes.values()) for m in messages]
        return await self._in_batches("SendMessageBatch", sizes, call)

    async def receive(self, *, most: int, wait: timedelta) -> list[Received]:
        """Wait for up to ten messages. Cancelling this does not cancel the request: see `drain`."""
        poll = asyncio.create_task(  # noqa: TID251 - its result is read here or by `drain`
            self._poll(min(most, MOST_ENTRIES), min(wait, LONGEST_WAIT))
        )
        try:
            return await asyncio.shield(poll)
        except asyncio.CancelledError:
            # A request given up on its way makes messages invisible that nobody has ever seen.
            self._outstanding.add(poll)
            raise

    async def drain(self) -> list[Received]:
        """Wait for the receives that were cancelled; give back what they brought, once."""
        polls, self._outstanding = self._outstanding, set()
        messages: list[Received] = []
        for answer in await asyncio.gather(*polls, return_exceptions=True):
            if isinstance(answer, list):
                messages += answer
            elif not isinstance(answer, Unavailable):
                raise answer
        return messages

    async def delete(self, receipts: Sequence[ReceiptHandle]) -> Failures:
        """Delete messages, by the newest handle we were given for each.

        Success with a handle that is not the newest of all proves nothing: the message may return.
        """
        newest = self._newest_of(receipts)
        handles = list(dict.fromkeys(newest))

        def call(batch: Sequence[int]) -> "Awaitable[BatchAnswer]":
            return self._client.delete_message_batch(
                QueueUrl=self.url,
                Entries=[{"Id": str(index), "ReceiptHandle": handles[index]} for index in batch],
            )

        sizes = [_size_of(handle) for handle in handles]
        answers = await self._in_batches("DeleteMessageBatch", sizes, call)
        failures = dict(zip(handles, answers, strict=True))
        for receipt, handle in zip(receipts, newest, strict=True):
            if failures[handle] is None:
                self._newest.pop(receipt.message_id, None)
        return tuple(failures[handle] for handle in newest)

    async def change_visibility(
        self, changes: Sequence[tuple[ReceiptHandle, timedelta]]
    ) -> Failures:
        """Let messages come back after this long from now, at once for zero.

        Refused when a message is visible or gone, or its receive would be over 12 hours ago then.
        """
        newest = self._newest_of([receipt for receipt, _ in changes])
        spans = dict(zip(newest, (span for _, span in changes), strict=True))
        handles = list(spans)

        def call(batch: Sequence[int]) -> "Awaitable[BatchAnswer]":
            return self._client.change_message_visibility_batch(
                QueueUrl=self.url,
                Entries=[
                    {
                        "Id": str(index),
                        "ReceiptHandle": handles[index],
                        "VisibilityTimeout": _whole_seconds(spans[handles[index]]),
                    }
                    for index in batch
                ],
            )

        sizes = [_size_of(handle) for handle in handles]
        answers = await self._in_batches("ChangeMessageVisibilityBatch", sizes, call)
        failures = dict(zip(handles, answers, strict=True))
        return tuple(failures[handle] for handle in newest)

    async def depth(self) -> QueueDepth:
        """Ask how many messages there are; estimates, seconds old."""
        visible, in_flight, delayed = await self._attributes(
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        )
        return QueueDepth(visible=int(visible), in_flight=int(in_flight), delayed=int(delayed))

    async def visibility(self) -> timedelta:
        """Ask for how long a message that was received stays invisible, if nothing changes that."""
        (seconds,) = await self._attributes("VisibilityTimeout")
        return timedelta(seconds=int(seconds))

    async def _attributes(self, *names: "QueueAttributeNameType") -> list[str]:
        async with self._line.calling("GetQueueAttributes"):
            answer = await self._client.get_queue_attributes(
                QueueUrl=self.url, AttributeNames=names
            )
        return [answer["Attributes"][name] for name in names]

    async def _poll(self, most: int, wait: timedelta) -> list[Received]:
        seconds = wait.total_seconds()
        async with self._line.calling("ReceiveMessage", plus=seconds):
            answer = await self._polls.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=most,
                WaitTimeSeconds=math.ceil(seconds),
                MessageSystemAttributeNames=[
                    "ApproximateReceiveCount",
                    "SentTimestamp",
                    "DeadLetterQueueSourceArn",
                ],
                MessageAttributeNames=["All"],
            )
        messages = [_received(message) for message in answer.get("Messages", ())]
        for message in messages:
            self._remember(message.receipt)
        return messages

    async def _in_batches(
        self, operation: str, sizes: Sequence[int], call: "BatchCall"
    ) -> Failures:
        """Send entries of these sizes, and those that failed once more, one by one.

        When SQS cannot be reached at all, what was not sent yet is not tried either.
        """
        failures: list[EntryFailure | None] = [None] * len(sizes)
        steps = deque((batch, 0) for batch in _batches(sizes))
        while steps:
            batch, tries = steps.popleft()
            if tries:
                await asyncio.sleep(PAUSE * 2 ** (tries - 1))
            try:
                failed = await self._send(operation, batch, call)
            except Unavailable as error:
                unsent = [index for later, earlier in steps if not earlier for index in later]
                for index in (*batch, *unsent):
                    failures[index] = EntryFailure(error.code, str(error), final=False)
                break
            for index in batch:
                failures[index] = failed.get(index)
            if tries < TRIES_ALONE:
                again = [index for index, failure in failed.items() if not failure.final]
                steps.extendleft(([index], tries + 1) for index in reversed(again))
        return tuple(failures)

    async def _send(
        self, operation: str, batch: Sequence[int], call: "BatchCall"
    ) -> dict[int, EntryFailure]:
        """The entries that failed; Unavailable when SQS was not reached."""
        try:
            async with self._line.calling(operation):
                answer = await call(batch)
        except Unavailable:
            raise
        except FleetError as error:
            # The request as a whole was refused: one entry may have spoiled it for the others.
            return dict.fromkeys(batch, EntryFailure(error.code, str(error), final=len(batch) == 1))
        return {
            int(failed["Id"]): EntryFailure(
                failed["Code"], failed.get("Message", ""), failed["SenderFault"]
            )
            for failed in answer.get("Failed", ())
        }

    def _newest_of(self, receipts: Sequence[ReceiptHandle]) -> list[str]:
        return [self._newest.get(receipt.message_id, receipt.handle) for receipt in receipts]

    def _remember(self, receipt: ReceiptHandle) -> None:
        self._newest.pop(receipt.message_id, None)
        self._newest[receipt.message_id] = receipt.handle
        if len(self._newest) > MOST_HANDLES:
            del self._newest[next(iter(self._newest))]


def _batches(sizes: Sequence[int]) -> Iterator[Sequence[int]]:
    batch: list[int] = []
    filled_bytes = 0
    for index, size in enumerate(sizes):
        if len(batch) == MOST_ENTRIES or (batch and filled_bytes + size > MOST_BYTES):
            yield batch
            batch, filled_bytes = [], 0
        batch.append(index)
        filled_bytes += size
    if batch:
        yield batch


def _entry(index: int, message: Message) -> "SendMessageBatchRequestEntryTypeDef":
    attributes: dict[str, MessageAttributeValueTypeDef] = {
        name: {"DataType": "String", "StringValue": value}
        for name, value in message.attributes.items()
    }
    return {
        "Id": str(index),
        "MessageBody": message.body,
        "MessageGroupId": message.group,
        "MessageAttributes": attributes,
    }


def _size_of(*texts: str) -> int:
    return sum(len(text.encode()) for text in texts)


def _whole_seconds(span: timedelta) -> int:
    # Upwards: a second too early is a receive for nothing.
    return math.ceil(min(max(span, timedelta()), LONGEST_VISIBILITY).total_seconds())


def _received(message: "MessageTypeDef") -> Received:
    system = message.get("Attributes", {})
    milliseconds = int(system["SentTimestamp"])
    return Received(
        receipt=ReceiptHandle(message["MessageId"], message["ReceiptHandle"]),
        body=message["Body"],
        receive_count=int(system["ApproximateReceiveCount"]),
        sent_at=datetime.fromtimestamp(milliseconds / 1000, UTC),
        attributes={
            name: value.get("StringValue", "")
            for name, value in message.get("MessageAttributes", {}).items()
        },
        redriven_from=system.get("DeadLetterQueueSourceArn"),
    )
