"""The worker process: what it opens, in which order, and how it ends.

Down the ladder everything is opened; back up it is closed, each after what depends on it. The
drain: consumers stop receiving and give back what is on its way; running attempts may finish until
the grace ends; then they are stopped and their jobs released, uncharged. Settlements, deletes and
rings are written before their owners close, and the last beat is the last thing of all.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

import structlog

from imagefleet.aws.queue import Queue
from imagefleet.aws.session import open_session
from imagefleet.doorbell import Doorbell
from imagefleet.errors import ClaimLost, Unavailable
from imagefleet.jobs.lifecycle import Outcome
from imagefleet.jobs.model import Claim, JobId, Lane, WorkerId
from imagefleet.runtime import Drain, Parts, supervise
from imagefleet.settings import Worker, WorkerSettings
from imagefleet.store.control import WorkerCard, register_worker, retire_worker
from imagefleet.store.database import Pool, acquire, open_pool
from imagefleet.store.migrations import require_schema
from imagefleet.store.settlements import Settled
from imagefleet.telemetry.aws_calls import AwsCalls
from imagefleet.telemetry.logs import bind_job
from imagefleet.telemetry.metrics import WorkerMetrics
from imagefleet.telemetry.tracing import Tracing, extract, open_tracing
from imagefleet.worker.attempt import Attempt, Stop, describe
from imagefleet.worker.consumer import Consumer, Ears
from imagefleet.worker.deliveries import Deliveries, Delivery
from imagefleet.worker.handlers import load_handlers
from imagefleet.worker.handling import Handlers, Tools
from imagefleet.worker.lease import Lease
from imagefleet.worker.renderer import Renderer
from imagefleet.worker.settler import Settler
from imagefleet.worker.slots import Slots

QUARANTINE_SLOTS: Final = 1  # a suspect runs alone

log = structlog.get_logger()


class Attempts:
    """The attempts that run in this process, by their fence."""

    def __init__(
        self,
        handlers: Handlers,
        tools: Tools,
        settler: Settler,
        deliveries: Deliveries,
        metrics: WorkerMetrics,
        tracing: Tracing,
    ) -> None:
        self.running: dict[tuple[JobId, int], Attempt] = {}
        self._handlers = handlers
        self._tools = tools
        self._settler = settler
        self._deliveries = deliveries
        self._metrics = metrics
        self._tracing = tracing
        self._parts: Parts | None = None

    def owned_by(self, parts: Parts) -> None:
        """Let these parts own the tasks."""
        self._parts = parts

    def start(self, claim: Claim, delivery: Delivery, free_slot: Callable[[], None]) -> None:
        """Begin an attempt; its slot is free when its outcome is acknowledged."""
        assert self._parts is not None  # noqa: S101 - consumers start after `owned_by`
        attempt = Attempt(claim, self._handlers[claim.type], self._tools, self._settler)
        self.running[claim.job_id, claim.claim_no] = attempt
        self._parts.start(f"job {claim.job_id}", self._run(attempt, delivery, free_slot))

    async def _run(
        self, attempt: Attempt, delivery: Delivery, free_slot: Callable[[], None]
    ) -> None:
        clock, claim = asyncio.get_running_loop().time, attempt.claim
        begun = clock()
        try:
            with (
                self._metrics.attempt(claim.type, claim.queue_time),
                self._tracing.consumer(
                    f"job {claim.type}",
                    {"job.id": str(claim.job_id), "job.claim_no": claim.claim_no},
                    parent=extract(claim.traceparent, claim.tracestate),
                    message=extract(delivery.message.traceparent, delivery.message.tracestate),
                ),
            ):
                receipt = await attempt.run()
            if receipt is None or receipt.settled is Settled.LOST:
                self._metrics.claim_lost()
                return
            self._deliveries.delete(delivery.queue, delivery.received)
            if receipt.outcome is not None:
                duration = timedelta(seconds=clock() - begun)
                self._metrics.attempt_ended(claim.type, receipt.outcome, duration)
                self._tell(claim, receipt.outcome, duration)
        finally:
            del self.running[claim.job_id, claim.claim_no]
            free_slot()

    @staticmethod
    def _tell(claim: Claim, outcome: Outcome, duration: timedelta) -> None:
        """The one line of every attempt: how long, what came of it and why, how often, what now."""
        event, state, why = describe(outcome)
        with bind_job(claim):
            log.info(
                event,
                duration_seconds=round(duration.total_seconds(), 3),
                queue_seconds=round(claim.queue_time.total_seconds(), 3),
                why=why,
                retries=max(0, claim.attempts - 1),
                max_attempts=claim.max_attempts,
                state=state,
            )

    def stop_all(self, why: Stop) -> None:
        """End all of them early."""
        for attempt in list(self.running.values()):
            attempt.stop(why)


async def main(settings: WorkerSettings, drain: Drain) -> None:
    """Run one worker until it is asked to end, or was declared dead."""
    handlers = load_handlers(settings.worker.job_types)
    metrics = WorkerMetrics(job_types=handlers)
    worker_id = WorkerId(uuid4())
    dsn = settings.database.url.get_secret_value()
    async with AsyncExitStack() as stack:
        tracing = await stack.enter_async_context(
            open_tracing(settings.telemetry, process="worker")
        )
        pool = await stack.enter_async_context(
            open_pool(
                dsn,
                process="worker",
                min_size=settings.database.pool_min,
                max_size=settings.database.pool_max,
            )
        )
        async with acquire(pool) as connection:
            await require_schema(connection)
        session = await stack.enter_async_context(
            open_session(settings.aws, calls=AwsCalls(metrics, tracing))
        )
        queues = {lane: await session.queue(settings.aws.queue_url(lane)) for lane in Lane}
        doorbell = await stack.enter_async_context(Doorbell(pool, queues).open())
        settler = await stack.enter_async_context(Settler(pool, worker_id, doorbell).open())
        deliveries = await stack.enter_async_context(Deliveries().open())
        tools = Tools(
            pool=pool,
            originals=await session.objects(settings.aws.originals_bucket),
            outputs=await session.objects(settings.aws.outputs_bucket),
            renderer=await stack.enter_async_context(Renderer()),
            doorbell=doorbell,
            scratch=Path(stack.enter_context(TemporaryDirectory(prefix="imagefleet-"))),
        )
        attempts = Attempts(handlers, tools, settler, deliveries, metrics, tracing)
        lease = Lease(dsn, worker_id, attempts.running)
        slots = slots_of(settings.worker)
        await _register(pool, worker_id, slots, handlers)
        async with lease.keep(settler, drain), supervise(drain) as parts:
            attempts.owned_by(parts)
            ears = Ears(
                pool=pool,
                worker_id=worker_id,
                types=tuple(handlers),
                lease=lease,
                deliveries=deliveries,
                dead_letters=await session.queue(settings.aws.dead_letter_queue_url),
                metrics=metrics,
                start=attempts.start,
            )
            for lane, consumer in consumers(slots, queues, ears, settings.worker.receive_wait):
                parts.start(f"consumer {lane}", consumer.run(drain))
            parts.start("drain", _end(drain, settings.worker.shutdown_grace, attempts, slots))
        await _retire(pool, worker_id)
    if lease.dead:
        raise ClaimLost.of_worker(worker_id)


def slots_of(settings: Worker) -> dict[Lane, Slots]:
    """The slots of each lane that this worker listens to."""
    totals = {
        Lane.FAST: settings.fast_slots,
        Lane.GENERAL: settings.general_slots,
        Lane.QUARANTINE: QUARANTINE_SLOTS,
    }
    return {lane: Slots(totals[lane]) for lane in settings.lanes if totals[lane] > 0}


def consumers(
    slots: Mapping[Lane, Slots], queues: Mapping[Lane, Queue], ears: Ears, wait: timedelta
) -> Iterator[tuple[Lane, Consumer]]:
    """One listener a lane; the general one helps with `fast` when it has nothing else to do."""
    for lane, own in slots.items():
        listens = [lane, Lane.FAST] if lane is Lane.GENERAL and Lane.FAST in slots else [lane]
        yield lane, Consumer(lane, own, [(one, queues[one]) for one in listens], ears, wait)


async def _register(
    pool: Pool, worker_id: WorkerId, slots: Mapping[Lane, Slots], handlers: Handlers
) -> None:
    card = WorkerCard(
        worker_id=worker_id,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=version("imagefleet"),
        lanes=tuple(slots),
        types=tuple(handlers),
        slots=sum(one.total for one in slots.values()),
    )
    async with acquire(pool) as connection:
        await register_worker(connection, card)
    log.info("worker.started", worker_id=str(worker_id), lanes=card.lanes, types=card.types)


async def _end(
    drain: Drain, grace: timedelta, attempts: Attempts, slots: Mapping[Lane, Slots]
) -> None:
    """Once the drain begins: let running jobs finish for the grace, then give them back."""
    await drain.wait()
    try:
        async with asyncio.timeout(grace.total_seconds()):
            for one in slots.values():
                await one.all_free()
    except TimeoutError:
        log.warning("drain.grace_over", jobs=len(attempts.running))
        attempts.stop_all(Stop.DRAIN)


async def _retire(pool: Pool, worker_id: WorkerId) -> None:
    try:
        async with acquire(pool) as connection:
            retired = await retire_worker(connection, worker_id)
        log.info("worker.ended", worker_id=str(worker_id), holds_nothing=retired)
    except Unavailable as error:
        # The rescuer will find out: this id does not beat any more.
        log.warning("worker.ended", worker_id=str(worker_id), code=error.code)
