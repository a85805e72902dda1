"""What becomes of a message whose job is not claimed: each verdict has exactly one answer.

One of them is SQS's own redrive, a message that was moved back from the dead-letter queue to a
lane. Its job is over and stays so. What whoever moved it wants is another try, which is a new job;
the letter sees to it that there is one, however many messages come back.
"""

import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, assert_never

import structlog

from imagefleet.aws.queue import Message, Queue, Received
from imagefleet.doorbell import Doorbell
from imagefleet.errors import InputRejected, Unavailable
from imagefleet.jobs.kinds import JobKind
from imagefleet.jobs.model import ClaimAnswer, JobMessage, Verdict, parse_message
from imagefleet.store.database import Pool
from imagefleet.store.letters.replays import replay_redriven
from imagefleet.telemetry.metrics import WorkerMetrics
from imagefleet.worker.messages import Delivery, Messages

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

log = structlog.get_logger()


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
        redrives: "Redrives",
        metrics: WorkerMetrics,
    ) -> None:
        self._messages = messages
        self._dead_letters = dead_letters
        self._redrives = redrives
        self._metrics = metrics

    def give_back(
        self, queue: Queue, received: Sequence[Received], span: timedelta = AT_ONCE
    ) -> None:
        """Let messages come back after this long."""
        for one in received:
            self._messages.defer(queue, one, span)

    def put_off(self, queue: Queue, received: Sequence[Received]) -> None:
        """Let messages come back, for others at first, and more seldom with every receive."""
        for one in received:
            self._messages.defer(queue, one, busy_for(one.receive_count, PUT_OFF_FOR))

    async def readable(self, queue: Queue, received: Sequence[Received]) -> list[Delivery]:
        """Read every message; what is not ours is buried, the rest is returned in order."""
        deliveries: list[Delivery] = []
        for one in received:
            try:
                message = parse_message(one.body)
            except InputRejected as error:
                self._metrics.claimed(Verdict.UNREADABLE)
                log.warning("message.unreadable", queue=queue.name, why=error.detail)
                await self._bury(queue, one, Verdict.UNREADABLE.value)
            else:
                deliveries.append(Delivery(queue=queue, received=one, message=message))
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
            case Verdict.UNKNOWN:
                await self._dismiss_unknown(delivery)
            case Verdict.FINISHED if not await self._redrives.replay(delivery.message):
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

    async def _dismiss_unknown(self, delivery: Delivery) -> None:
        if delivery.received.receive_count < UNKNOWN_RECEIVES:
            self._defer(delivery, UNKNOWN_FOR)
        else:
            log.warning("message.unknown", job_id=str(delivery.message.job_id))
            await self._bury(delivery.queue, delivery.received, "unknown_job")

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


class Redrives:
    """Replays what is moved back."""

    def __init__(self, pool: Pool, kinds: Mapping[str, JobKind], doorbell: Doorbell) -> None:
        self._pool = pool
        self._kinds = kinds
        self._doorbell = doorbell

    async def replay(self, message: JobMessage) -> bool:
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
