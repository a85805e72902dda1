"""A queue that does what it is told: hands out what is put in, and remembers what was said to it.

For what no emulator can be made to do at the right moment. Its methods are those of the product's
Queue; `tests/worker/test_messages.py` holds it to their signatures.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar, cast

from imagefleet.aws.queue import (
    EntryFailure,
    Failures,
    Message,
    Queue,
    QueueDepth,
    ReceiptHandle,
    Received,
)
from imagefleet.errors import FleetError
from imagefleet.jobs.model import JobId, JobMessage, encode_message

T = TypeVar("T")

LONGEST_POLL = 0.05  # seconds, however long the caller wants to wait


def a_message(body: str, *, receive_count: int = 1, message_id: str = "") -> Received:
    return Received(
        receipt=ReceiptHandle(message_id or body, f"handle of {message_id or body}"),
        body=body,
        receive_count=receive_count,
        sent_at=datetime(2026, 1, 1, tzinfo=UTC),
        attributes={},
        redriven_from=None,
    )


def a_ringing(job_id: JobId, *, receive_count: int = 1) -> Received:
    return a_message(encode_message(JobMessage(job_id=job_id)), receive_count=receive_count)


@dataclass(eq=False)
class FakeQueue:
    """`say` is how it answers from now on: with an error, with a code for every entry, or well."""

    name: str = "fake"
    waiting: list[Received] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    """How many messages each receive asked for."""
    polls: list[timedelta] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)
    deleted: list[ReceiptHandle] = field(default_factory=list)
    changed: list[tuple[ReceiptHandle, timedelta]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    say: FleetError | str | None = None
    depths: QueueDepth = field(
        default_factory=lambda: QueueDepth(visible=0, in_flight=0, delayed=0)
    )
    lost: list[Received] = field(default_factory=list)
    """What a receive that was given up brings."""

    def as_queue(self) -> Queue:
        return cast("Queue", self)

    async def send(self, messages: Sequence[Message]) -> Failures:
        return self._answer("send", self.sent, messages)

    async def receive(self, *, most: int, wait: timedelta) -> list[Received]:
        self.asked.append(most)
        self.polls.append(wait)
        if isinstance(self.say, FleetError):
            raise self.say
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        if not taken:
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_POLL):
                    await asyncio.Event().wait()
        return taken

    async def drain(self) -> list[Received]:
        lost, self.lost = self.lost, []
        return lost

    async def delete(self, receipts: Sequence[ReceiptHandle]) -> Failures:
        return self._answer("delete", self.deleted, receipts)

    async def change_visibility(
        self, changes: Sequence[tuple[ReceiptHandle, timedelta]]
    ) -> Failures:
        return self._answer("change_visibility", self.changed, changes)

    async def depth(self) -> QueueDepth:
        self.calls.append("depth")
        if isinstance(self.say, FleetError):
            raise self.say
        return self.depths

    async def visibility(self) -> timedelta:
        return timedelta(seconds=30)

    def _answer(self, call: str, kept: list[T], entries: Sequence[T]) -> Failures:
        self.calls.append(call)
        if isinstance(self.say, FleetError):
            raise self.say
        if self.say is not None:
            return tuple(EntryFailure(self.say, "", final=True) for _ in entries)
        kept += entries
        return (None,) * len(entries)
