"""Messages that were received, and what is said to SQS about them, in batches.

Nothing here is ever waited for by a job: a delete or a change that is lost means that a message
comes again, and a message that comes again gets a verdict.

The messages of long jobs are kept invisible for as long as the database says that the jobs are
ours. One that becomes visible while its job runs does no harm, its receiver is told `busy`. But it
costs a receive, and a queue moves what was received too often to the dead letters.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, TypeAlias

import structlog

from imagefleet.aws.batches import MOST_ENTRIES, Failures
from imagefleet.aws.queue import Queue, Receipt, Received
from imagefleet.errors import FleetError
from imagefleet.jobs.model import JobMessage
from imagefleet.runtime import Batcher

# What waits for a delete is finished, and its message stays invisible for minutes: time enough to
# fill a batch. What is given back is wanted by somebody.
DELETES_LINGER: Final = 0.5  # seconds
CHANGES_LINGER: Final = 0.01
CLOSE_WITHIN: Final = 10.0  # for the last words, when SQS is away
RENEW_AT: Final = 1 / 3  # of the visibility left: most jobs end before, and are never extended

Change: TypeAlias = tuple[Receipt, timedelta]

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True, eq=False)
class Delivery:
    """One readable message, and the queue it came from."""

    queue: Queue
    received: Received
    message: JobMessage
    visible_at: float = float("inf")
    """By the event loop's clock, if somebody keeps it."""


class Messages:
    """Deletes messages, and changes when they are visible, from one place and a few at a time."""

    def __init__(
        self, spans: Mapping[Queue, timedelta], *, deletes_linger: float = DELETES_LINGER
    ) -> None:
        """Know the visibility timeout of each queue, in which every receive begins."""
        self._spans = spans
        self._deletes_linger = deletes_linger
        self._deletes: dict[Queue, Batcher[Receipt, None]] = {}
        self._changes: dict[Queue, Batcher[Change, None]] = {}
        self._now = asyncio.get_running_loop().time

    def delete(self, queue: Queue, received: Received) -> None:
        """The message has said what it had to say."""
        if queue not in self._deletes:
            self._deletes[queue] = Batcher(
                partial(_delete, queue),
                name="deletes",
                linger=self._deletes_linger,
                most=MOST_ENTRIES,
            )
        self._deletes[queue].put(received.receipt)

    def defer(self, queue: Queue, received: Received, span: timedelta) -> None:
        """Let the message come back after this long from now; zero gives it back at once."""
        if queue not in self._changes:
            self._changes[queue] = Batcher(
                partial(_defer, queue), name="changes", linger=CHANGES_LINGER, most=MOST_ENTRIES
            )
        self._changes[queue].put((received.receipt, span))

    def keep(self, delivery: Delivery) -> None:
        """Begin to look after a message that was received a moment ago."""
        delivery.visible_at = self._now() + self._spans[delivery.queue].total_seconds()

    def renew(self, kept: Iterable[Delivery]) -> None:
        """Extend what would be seen soon; to be called with what a beat confirmed."""
        for delivery in kept:
            span = self._spans[delivery.queue]
            if delivery.visible_at - self._now() < span.total_seconds() * RENEW_AT:
                delivery.visible_at = self._now() + span.total_seconds()
                self.defer(delivery.queue, delivery.received, span)

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Messages"]:
        """Work until the end of the context, and say the last things before it."""
        try:
            yield self
        except asyncio.CancelledError:  # now means now
            for batcher in self._batchers():
                batcher.stop()
            raise
        finally:
            await asyncio.gather(*(_close(batcher) for batcher in self._batchers()))

    def _batchers(self) -> Sequence[Batcher[Receipt, None] | Batcher[Change, None]]:
        return (*self._deletes.values(), *self._changes.values())


async def _close(batcher: Batcher[Receipt, None] | Batcher[Change, None]) -> None:
    if not await batcher.close(CLOSE_WITHIN):
        log.warning("message.unsaid", what=batcher.name)


async def _delete(queue: Queue, receipts: Sequence[Receipt]) -> Sequence[None]:
    return await _say("delete", queue, len(receipts), queue.delete(receipts))


async def _defer(queue: Queue, changes: Sequence[Change]) -> Sequence[None]:
    return await _say("defer", queue, len(changes), queue.change_visibility(changes))


async def _say(what: str, queue: Queue, count: int, call: Awaitable[Failures]) -> Sequence[None]:
    codes: Counter[str] = Counter()
    try:
        codes.update(failure.code for failure in await call if failure)
    except FleetError as error:
        codes[error.code] += count
    if codes:  # those messages come again, and get a verdict
        log.warning("message.unsaid", what=what, queue=queue.name, codes=dict(codes))
    return [None] * count
