"""Messages that were received: what is said to SQS about them, and about those that are not ours.

What is said goes in batches. Nothing here is ever waited for by a job: a delete or a change that is
lost means that a message comes again, and a message that comes again gets a verdict. Of a message
whose job is not claimed each verdict has exactly one answer.

The messages of long jobs are kept invisible for as long as the database says that the jobs are
ours. One that becomes visible while its job runs does no harm, its receiver is told `busy`. But it
costs a receive, and a queue moves what was received too often to the dead letters.

SQS's own redrive moves a message back from the dead-letter queue to a lane. Its job is over and
stays so. What whoever moved it wants is another try, which is a new job; the letter sees to it that
there is one, however many messages come back.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, TypeAlias, TypeVar, assert_never

import structlog

from imagefleet.aws.queue import MOST_ENTRIES, Failures, Message, Queue, ReceiptHandle, Received
from imagefleet.doorbell import Doorbell
from imagefleet.errors import FleetError, InputRejected, Unavailable
from imagefleet.jobs.kinds import JobKind
from imagefleet.jobs.model import ClaimAnswer, JobMessage, Verdict, parse_message
from imagefleet.runtime import Batcher
from imagefleet.store.database import Pool
from imagefleet.store.letters.replays import replay_redriven
from imagefleet.telemetry.metrics import WorkerMetrics

# What waits for a delete is finished, and its message stays invisible for minutes: time enough to
# fill a batch. What is given back is wanted by somebody.
DELETES_LINGER: Final = 0.5  # seconds
CHANGES_LINGER: Final = 0.01
CLOSE_WITHIN: Final = 10.0  # for the last words, when SQS is away
RENEW_AT: Final = 1 / 3  # of the visibility left: most jobs end before, and are never extended
AT_ONCE: Final = timedelta()
CONTENDED_FOR: Final = timedelta(seconds=2)
UNKNOWN_FOR: Final = timedelta(seconds=10)
UNKNOWN_RECEIVES: Final = 5  # then nobody will ever commit that row
BUSY_FOR: Final = timedelta(seconds=5)  # most jobs are over by then, and their queue is empty
BUSY_RECEIVES: Final = 10  # of a job that long, one may be late at its end, but not wear this out
BUSY_SPREAD: Final = 0.1  # of the wait, so that a dead worker's messages come one by one
BUSY_DOUBLINGS: Final = 20  # any longer than SQS allows
PUT_OFF_FOR: Final = timedelta(minutes=10)  # at most, of the first receives
MOST_DEFERRED: Final = timedelta(hours=11)  # SQS refuses what ends 12 hours after the receive

Change: TypeAlias = tuple[ReceiptHandle, timedelta]
Said = TypeVar("Said", ReceiptHandle, Change)

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
        self._deletes: dict[Queue, Batcher[ReceiptHandle, None]] = {}
        self._changes: dict[Queue, Batcher[Change, None]] = {}
        self._now = asyncio.get_running_loop().time

    def delete(self, queue: Queue, received: Received) -> None:
        """The message has said what it had to say."""
        if queue not in self._deletes:
            self._deletes[queue] = Batcher(
                partial(_say, "delete", queue, queue.delete),
                name="deletes",
                linger=self._deletes_linger,
                most=MOST_ENTRIES,
            )
        self._deletes[queue].put(received.receipt)

    def defer(self, queue: Queue, received: Received, span: timedelta) -> None:
        """Let the message come back after this long from now; zero gives it back at once."""
        if queue not in self._changes:
            self._changes[queue] = Batcher(
                partial(_say, "defer", queue, queue.change_visibility),
                name="changes",
                linger=CHANGES_LINGER,
                most=MOST_ENTRIES,
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

    def _batchers(self) -> Sequence[Batcher[ReceiptHandle, None] | Batcher[Change, None]]:
        return (*self._deletes.values(), *self._changes.values())


async def _close(batcher: Batcher[ReceiptHandle, None] | Batcher[Change, None]) -> None:
    if not await batcher.close(CLOSE_WITHIN):
        log.warning("message.unsaid", what=batcher.name)


async def _say(
    what: str,
    queue: Queue,
    say: Callable[[Sequence[Said]], Awaitable[Failures]],
    said: Sequence[Said],
) -> Sequence[None]:
    codes: Counter[str] = Counter()
    try:
        codes.update(failure.code for failure in await say(said) if failure)
    except FleetError as error:
        codes[error.code] += len(said)
    if codes:  # those messages come again, and get a verdict
        log.warning("message.unsaid", what=what, queue=queue.name, codes=dict(codes))
    return [None] * len(said)


def busy_for(receives: int, wait: timedelta) -> timedelta:
    """How long a message of a job that somebody has is put away; the lock can expire in `wait`.

    Soon at first, as a queue that is done must look done to whoever scales by it; twice as long
    each time, but back when that lock can have expired: recovery then needs nobody else. A lock
    that is renewed again and again moves that moment. So later the wait for it doubles as well, or
    SQS, which counts receives, would move the message of a living job to the dead letters.
    """
    soon = BUSY_FOR * (1 << min(max(receives - 1, 0), BUSY_DOUBLINGS))
    late = min(max(0, receives - BUSY_RECEIVES), BUSY_DOUBLINGS)
    expired = max(wait, CONTENDED_FOR) * (1 << late)
    return min(soon, expired, MOST_DEFERRED)


class Unclaimed:
    """Gives back, deletes or buries what this worker received and does not run."""

    def __init__(
        self,
        messages: Messages,
        dead_letters: Queue,
        kinds: Mapping[str, JobKind],
        pool: Pool,
        doorbell: Doorbell,
        metrics: WorkerMetrics,
    ) -> None:
        self._messages = messages
        self._dead_letters = dead_letters
        self._kinds = kinds
        self._pool = pool
        self._doorbell = doorbell
        self._metrics = metrics

    def give_back(
        self, queue: Queue, received: Sequence[Received], span: timedelta = AT_ONCE
    ) -> None:
        """Let messages come back after this long."""
        for message in received:
            self._messages.defer(queue, message, span)

    def put_off(self, queue: Queue, received: Sequence[Received]) -> None:
        """Let messages come back, for others at first, and more seldom with every receive."""
        for message in received:
            self._messages.defer(queue, message, busy_for(message.receive_count, PUT_OFF_FOR))

    async def readable(self, queue: Queue, received: Sequence[Received]) -> list[Delivery]:
        """Read every message; what is not ours is buried, the rest is returned in order."""
        deliveries: list[Delivery] = []
        for raw in received:
            try:
                message = parse_message(raw.body)
            except InputRejected as error:
                self._metrics.claimed(Verdict.UNREADABLE)
                log.warning("message.unreadable", queue=queue.name, why=error.detail)
                await self._bury(queue, raw, Verdict.UNREADABLE.value)
            else:
                deliveries.append(Delivery(queue=queue, received=raw, message=message))
        return deliveries

    async def dismiss(self, delivery: Delivery, answer: ClaimAnswer) -> None:
        """Do with the message what the verdict says; nothing of the job is ours."""
        match answer.verdict:
            case Verdict.CLAIMED | Verdict.CANCELLED | Verdict.UNREADABLE:
                msg = f"{answer.verdict} is not for dismissal"
                raise ValueError(msg)
            case Verdict.BUSY:
                spread = 1 + BUSY_SPREAD * random.random()  # noqa: S311 - spreads, guards nothing
                span = busy_for(delivery.received.receive_count, answer.wait or BUSY_FOR)
                self._defer(delivery, span * spread)
            case Verdict.CONTENDED:
                self._defer(delivery, CONTENDED_FOR)
            case Verdict.UNKNOWN if delivery.received.receive_count < UNKNOWN_RECEIVES:
                self._defer(delivery, UNKNOWN_FOR)
            case Verdict.UNKNOWN:
                log.warning("message.unknown", job_id=str(delivery.message.job_id))
                await self._bury(delivery.queue, delivery.received, "unknown_job")
            case Verdict.FINISHED if not await self._replay(delivery.message):
                self._defer(delivery, CONTENDED_FOR)
            case (
                Verdict.FINISHED
                | Verdict.EXHAUSTED
                | Verdict.NOT_DUE  # of this and the following the ring row says that none exists
                | Verdict.TARGET_BUSY
                | Verdict.PAUSED
                | Verdict.BREAKER
                | Verdict.ELSEWHERE
                | Verdict.UNROUTABLE
            ):
                self._messages.delete(delivery.queue, delivery.received)
            case _:
                assert_never(answer.verdict)

    def _defer(self, delivery: Delivery, span: timedelta) -> None:
        self.give_back(delivery.queue, [delivery.received], min(span, MOST_DEFERRED))

    async def _bury(self, queue: Queue, received: Received, reason: str) -> None:
        """Move what is not ours to the dead-letter queue; deleted here only once it is there."""
        message = Message(
            body=received.body, group=reason, attributes={"reason": reason, "queue": queue.name}
        )
        (failure,) = await self._dead_letters.send([message])
        if failure is None:
            self._messages.delete(queue, received)
        else:
            log.warning("message.unburied", queue=queue.name, reason=reason, code=failure.code)

    async def _replay(self, message: JobMessage) -> bool:
        """See to the replay of a finished job; False: the message must come again for that."""
        if message.dead_letter is None:
            return True
        try:
            async with self._pool.connection() as connection:
                replayed = await replay_redriven(connection, message.job_id, self._kinds)
        except Unavailable as error:
            log.warning("redrive.failed", job_id=str(message.job_id), code=error.code)
            return False
        if replayed is not None:
            log.info(
                "job.redriven",
                job_id=str(message.job_id),
                outcome=replayed.outcome.value,
                replayed_as=replayed.replayed_as and str(replayed.replayed_as),
            )
            if replayed.ring is not None:
                self._doorbell.ring([replayed.ring])
        return True
