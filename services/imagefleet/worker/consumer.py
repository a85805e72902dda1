"""Listening to a lane: reserve slots, receive, claim, and do what each verdict says.

A receive is sent only for slots that are free and reserved, and only while the worker's beat is
young, so that an outage of Postgres does not wear out healthy messages. The general lane's slots
serve `fast` too, whenever `general` has nothing for them; the fast lane's slots are its own.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from imagefleet.aws.queue import Message, Queue, Received
from imagefleet.errors import FleetError, InputRejected, Unavailable
from imagefleet.jobs.model import (
    Claim,
    ClaimAnswer,
    Lane,
    Verdict,
    WorkerId,
    parse_message,
)
from imagefleet.runtime import Drain, unless
from imagefleet.store.claims import claim_jobs
from imagefleet.store.database import Pool, acquire
from imagefleet.telemetry.metrics import WorkerMetrics
from imagefleet.worker.deliveries import Deliveries, Delivery
from imagefleet.worker.lease import Lease
from imagefleet.worker.slots import Slots

MOST_AT_ONCE: Final = 10  # of one receive
SHORT_WAIT: Final = timedelta(seconds=1)  # on `general`, while its slots are busy with `fast`
PAUSE_AFTER_ERROR: Final = timedelta(seconds=1)
CONTENDED_FOR: Final = timedelta(seconds=2)
UNROUTABLE_FOR: Final = timedelta(seconds=30)  # long enough that another worker sees it first
UNKNOWN_FOR: Final = timedelta(seconds=10)
UNKNOWN_RECEIVES: Final = 5  # then nobody will ever commit that row
MOST_DEFERRED: Final = timedelta(hours=11)

log = structlog.get_logger()

Start = Callable[[Claim, Delivery, Callable[[], None]], None]
"""Begin an attempt; calls back when its slot is free again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ears:
    """What every consumer of a worker shares."""

    pool: Pool
    worker_id: WorkerId
    types: tuple[str, ...]
    lease: Lease
    deliveries: Deliveries
    dead_letters: Queue
    metrics: WorkerMetrics
    start: Start


class Consumer:
    """The listener of one lane's slots."""

    def __init__(
        self,
        lane: Lane,
        slots: Slots,
        queues: Sequence[tuple[Lane, Queue]],
        ears: Ears,
        wait: timedelta,
    ) -> None:
        self._lane = lane
        self._slots = slots
        self._queues = queues
        self._ears = ears
        self._wait = wait
        self._helping = False

    async def run(self, drain: Drain) -> None:
        """Listen until the drain begins, then give back what is still on its way."""
        while not drain.requested:
            reserved = await unless(drain, self._slots.reserve(MOST_AT_ONCE))
            if reserved is None:
                break
            try:
                reserved -= await self._listen(reserved, drain)
            except FleetError as error:
                log.warning("receive.failed", lane=self._lane, code=error.code, detail=error.detail)
                await drain.wait_at_most(PAUSE_AFTER_ERROR)
            finally:
                self._slots.release(reserved)
        for _, queue in self._queues:
            for received in await queue.drain():
                self._ears.deliveries.defer(queue, received, timedelta())

    async def _listen(self, reserved: int, drain: Drain) -> int:
        """Receive from the lane's queues until one has something; how many slots it took."""
        for position, (lane, queue) in enumerate(self._queues):
            await unless(drain, self._ears.lease.fresh())
            if drain.requested:
                return 0
            first = position == 0
            wait = (SHORT_WAIT if self._helping else self._wait) if first else timedelta()
            received = await unless(drain, queue.receive(most=reserved, wait=wait))
            if received:
                self._helping = not first
                return await self._take(lane, queue, received, drain)
        self._helping = False
        return 0

    async def _take(
        self, lane: Lane, queue: Queue, received: Sequence[Received], drain: Drain
    ) -> int:
        if drain.requested:  # received, but nothing new is begun: back at once
            for one in received:
                self._ears.deliveries.defer(queue, one, timedelta())
            return 0
        deliveries = [one for one in [await self._read(queue, one) for one in received] if one]
        try:
            async with acquire(self._ears.pool) as connection:
                answers = await claim_jobs(
                    connection,
                    [delivery.message.job_id for delivery in deliveries],
                    worker_id=self._ears.worker_id,
                    lanes=[lane],
                    types=self._ears.types,
                )
        except Unavailable as error:
            # Perhaps it was claimed all the same; then the beat finds the stray.
            log.warning("claim.failed", lane=lane, jobs=len(deliveries), code=error.code)
            for delivery in deliveries:
                self._defer(delivery, CONTENDED_FOR)
            return 0
        started = 0
        for delivery, answer in zip(deliveries, answers, strict=True):
            self._ears.metrics.claimed(answer.verdict)
            if answer.claim is not None:
                self._ears.start(answer.claim, delivery, self._slots.release)
                started += 1
            else:
                await self._dismiss(delivery, answer)
        return started

    async def _read(self, queue: Queue, received: Received) -> Delivery | None:
        try:
            message = parse_message(received.body)
        except InputRejected as error:
            self._ears.metrics.claimed(Verdict.UNREADABLE)
            log.warning("message.unreadable", queue=queue.name, why=error.detail)
            await self._bury(queue, received, "unreadable")
            return None
        return Delivery(queue=queue, received=received, message=message)

    async def _dismiss(self, delivery: Delivery, answer: ClaimAnswer) -> None:
        """Do with the message what the verdict says; nothing of the job is ours."""
        match answer.verdict:
            case Verdict.CLAIMED | Verdict.CANCELLED | Verdict.UNREADABLE:  # pragma: no cover
                msg = f"{answer.verdict} is not for dismissal"
                raise AssertionError(msg)
            case Verdict.BUSY:
                # Back when that lock can have expired: recovery then needs nobody else.
                self._defer(delivery, (answer.wait or CONTENDED_FOR) * (1 + random.random() / 10))  # noqa: S311
            case Verdict.CONTENDED:
                self._defer(delivery, CONTENDED_FOR)
            case Verdict.UNROUTABLE:
                self._defer(delivery, UNROUTABLE_FOR)
            case Verdict.UNKNOWN if delivery.received.receive_count >= UNKNOWN_RECEIVES:
                await self._bury(delivery.queue, delivery.received, "unknown_job")
            case Verdict.UNKNOWN:
                self._defer(delivery, UNKNOWN_FOR)
            case _:  # finished, exhausted, or its ring row knows when to ring again
                self._ears.deliveries.delete(delivery.queue, delivery.received)

    def _defer(self, delivery: Delivery, span: timedelta) -> None:
        span = min(span, MOST_DEFERRED)
        self._ears.deliveries.defer(delivery.queue, delivery.received, span)

    async def _bury(self, queue: Queue, received: Received, reason: str) -> None:
        """Move what is not ours to the dead-letter queue; deleted here only once it is there."""
        message = Message(
            body=received.body, group=reason, attributes={"reason": reason, "queue": queue.name}
        )
        (failure,) = await self._ears.dead_letters.send([message])
        if failure is None:
            self._ears.deliveries.delete(queue, received)
