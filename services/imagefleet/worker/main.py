"""The worker process: what it opens, in which order.

Down the ladder everything is opened; back up it is closed, each after what depends on it. The work
between the two is in `shift.py`. Settlements, deletes and rings are written before their owners
close, and the last beat comes after the last settlement.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import uuid4

from imagefleet.aws.queue import Queue
from imagefleet.aws.session import Session, open_session
from imagefleet.doorbell import Doorbell
from imagefleet.errors import ClaimLost
from imagefleet.extensions import load_kinds
from imagefleet.jobs.model import Lane, WorkerId
from imagefleet.jobs.retry import RetryPolicy
from imagefleet.live import Live
from imagefleet.runtime import Drain
from imagefleet.settings import Worker, WorkerSettings
from imagefleet.settings.in_force import Overlay, defaults_of_worker
from imagefleet.settings.live import TRACES
from imagefleet.store.database import Pool, acquire, open_pool
from imagefleet.store.schema.migrations import require_schema
from imagefleet.telemetry.aws_calls import AwsCalls
from imagefleet.telemetry.health import serve_health
from imagefleet.telemetry.metrics import WorkerMetrics
from imagefleet.telemetry.tracing import Tracing, open_tracing
from imagefleet.worker.attempts import Attempts
from imagefleet.worker.consumer import Consumer, Ears
from imagefleet.worker.deliveries import Deliveries
from imagefleet.worker.dismissals import Dismissals
from imagefleet.worker.handlers import load_handlers
from imagefleet.worker.handling import Handlers, Tools, kinds_of, modules_of
from imagefleet.worker.hearing import Hearing
from imagefleet.worker.isolation.client import Renderer
from imagefleet.worker.lease import Lease
from imagefleet.worker.redrives import Redrives
from imagefleet.worker.scratch import scratch_folder
from imagefleet.worker.services import Services
from imagefleet.worker.settler import Settler
from imagefleet.worker.shift import Shift
from imagefleet.worker.slots import Slots, TypeSlots
from imagefleet.worker.solitude import Solitude
from imagefleet.worker.visibility import Visibility

QUARANTINE_SLOTS: Final = 1  # a suspect is to have its worker to itself: see solitude.py


async def main(settings: WorkerSettings, drain: Drain) -> None:
    """Run one worker until it is asked to end, or was declared dead."""
    standard_retry = settings.retry.policy()
    handlers = load_handlers(settings.worker.job_types, standard_retry=standard_retry)
    # Also of types that it does not run: it ends cancelled jobs of any.
    metrics = WorkerMetrics(job_types={*load_kinds(), *handlers})
    async with AsyncExitStack() as stack:
        outside = await reach_out(settings, metrics, stack)
        live = await stack.enter_async_context(
            Live().open(
                outside.pool,
                "worker",
                defaults_of_worker(settings.worker, standard_retry, kinds_of(handlers)),
                reading=lambda: metrics.query("read_live"),
            )
        )
        metrics.watch_settings(lambda: live.age)
        outside.tracing.share = lambda: live.now.number(TRACES, 1)
        rules = Rules(live, standard_retry)
        worker = await assemble(settings, handlers, metrics, outside, rules, stack)
        health = await stack.enter_async_context(
            serve_health(
                settings.telemetry.health_host,
                settings.telemetry.health_port,
                metrics,
                vitals=worker.vitals(),
                readiness=worker.readiness(drain),
            )
        )
        await worker.register(handlers, health)
        async with worker.lease.keep(drain):
            await worker.work(drain, settings.worker.shutdown_grace)
        await worker.retire(drain)
    if worker.lease.dead:
        raise ClaimLost.of_worker(worker.worker_id)


@dataclass(frozen=True, slots=True)
class Rules:
    """What operators turn, and the policy of types that have none of their own."""

    live: Live
    standard_retry: RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What the worker speaks to."""

    tracing: Tracing
    pool: Pool
    session: Session
    queues: Mapping[Lane, Queue]
    dead_letters: Queue


async def reach_out(
    settings: WorkerSettings, metrics: WorkerMetrics, stack: AsyncExitStack
) -> Outside:
    """Open what is outside; it closes last."""
    tracing = await stack.enter_async_context(open_tracing(settings.telemetry, process="worker"))
    pool = await stack.enter_async_context(
        open_pool(
            settings.database.url.get_secret_value(),
            process="worker",
            min_size=settings.database.pool_min,
            max_size=settings.database.pool_max,
            connect_within=settings.database.connect_timeout.total_seconds(),
            statement_within=settings.database.statement_timeout.total_seconds(),
        )
    )
    async with acquire(pool) as connection:
        await require_schema(connection)
    calls = AwsCalls(metrics, tracing)
    session = await stack.enter_async_context(open_session(settings.aws, calls=calls))
    return Outside(
        tracing=tracing,
        pool=pool,
        session=session,
        queues={lane: await session.queue(settings.aws.queue_url(lane)) for lane in Lane},
        dead_letters=await session.queue(settings.aws.dead_letter_queue_url),
    )


async def equip(
    settings: WorkerSettings,
    handlers: Handlers,
    metrics: WorkerMetrics,
    outside: Outside,
    rules: Rules,
    stack: AsyncExitStack,
) -> Tools:
    """Open what handlers use."""
    doorbell = Doorbell(
        outside.pool, outside.queues, confirming=lambda: metrics.query("confirm_rings")
    )
    configured = settings.worker.breakers
    services = Services(
        outside.pool, metrics, lambda service: rules.live.now.breaker(service, configured)
    )
    return Tools(
        pool=outside.pool,
        originals=await outside.session.objects(settings.aws.originals_bucket),
        outputs=await outside.session.objects(settings.aws.outputs_bucket),
        renderer=await stack.enter_async_context(Renderer(preload=modules_of(handlers))),
        decoding=asyncio.Semaphore(settings.worker.render_children),
        doorbell=await stack.enter_async_context(doorbell.open()),
        services=await stack.enter_async_context(services.open()),
        metrics=metrics,
        scratch=stack.enter_context(scratch_folder()),
        live=rules.live,
        standard_retry=rules.standard_retry,
    )


async def assemble(
    settings: WorkerSettings,
    handlers: Handlers,
    metrics: WorkerMetrics,
    outside: Outside,
    rules: Rules,
    stack: AsyncExitStack,
) -> Shift:
    """Open the worker's own parts, those last that others depend on least."""
    worker_id = WorkerId(uuid4())
    tools = await equip(settings, handlers, metrics, outside, rules, stack)
    settler = await stack.enter_async_context(
        Settler(outside.pool, worker_id, tools.doorbell, metrics).open()
    )
    deliveries = await stack.enter_async_context(Deliveries().open())
    slots, type_slots = slots_of(settings.worker, metrics), TypeSlots()
    rules.live.watch(lambda now: use_slots(now, slots, type_slots))
    spans = {outside.queues[lane]: await outside.queues[lane].visibility() for lane in slots}
    visibility = Visibility(deliveries, spans)
    attempts = Attempts(handlers, tools, settler, deliveries, visibility, outside.tracing)
    dsn = settings.database.url.get_secret_value()
    hearing = Hearing(slots)
    lease = Lease(dsn, worker_id, attempts, visibility, settler, hearing)
    metrics.watch_beat(lambda: timedelta(seconds=lease.age))
    redrives = Redrives(outside.pool, kinds_of(handlers), tools.doorbell)
    ears = Ears(
        pool=outside.pool,
        worker_id=worker_id,
        types=tuple(handlers),
        lease=lease,
        solitude=Solitude(shared=len(slots) > 1),
        dismissals=Dismissals(deliveries, outside.dead_letters, redrives, metrics),
        hearing=hearing,
        metrics=metrics,
        start=attempts.start,
        type_slots=type_slots,
    )
    return Shift(
        worker_id=worker_id,
        pool=outside.pool,
        settler=settler,
        attempts=attempts,
        lease=lease,
        slots=slots,
        consumers=consumers_of(slots, outside.queues, ears, settings.worker.receive_wait),
    )


def slots_of(settings: Worker, metrics: WorkerMetrics) -> dict[Lane, Slots]:
    """The slots of each lane that this worker listens to."""
    totals = {
        Lane.FAST: settings.fast_slots,
        Lane.GENERAL: settings.general_slots,
        Lane.QUARANTINE: QUARANTINE_SLOTS,
    }

    def shown(lane: Lane) -> Callable[[Slots], None]:
        return lambda slots: metrics.slots_changed(
            lane, free=slots.free, reserved=slots.reserved, busy=slots.busy
        )

    return {
        lane: Slots(totals[lane], changed=shown(lane))
        for lane in settings.lanes
        if totals[lane] > 0
    }


def use_slots(now: Overlay, slots: Mapping[Lane, Slots], type_slots: TypeSlots) -> None:
    """Use as many as are to be used from now on."""
    for lane, own in slots.items():
        own.use(now.slots(lane, own.total))
    type_slots.use(now.slots_of_types())


def consumers_of(
    slots: Mapping[Lane, Slots], queues: Mapping[Lane, Queue], ears: Ears, wait: timedelta
) -> dict[Lane, Consumer]:
    """One listener a lane; the general one helps with `fast` when it has nothing else to do."""
    return {
        lane: Consumer(
            lane,
            own,
            [
                (one, queues[one])
                for one in (lane, Lane.FAST)
                if one is lane or (lane is Lane.GENERAL and one in slots)
            ],
            ears,
            wait,
        )
        for lane, own in slots.items()
    }
