"""The maintenance process: its connections, and the table of what it looks after."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import uuid4

import structlog

from imagefleet.aws.calls import AwsCalls
from imagefleet.aws.edge import Edge
from imagefleet.aws.objects import Objects
from imagefleet.aws.queue import Queue
from imagefleet.aws.session import open_session
from imagefleet.billing import billing
from imagefleet.doorbell import Doorbell
from imagefleet.errors import FleetError
from imagefleet.extensions import load_kinds
from imagefleet.jobs.model import Lane
from imagefleet.live import Live
from imagefleet.maintenance.bookkeeper import FOLD_EVERY, PROVE_EVERY, Bookkeeper
from imagefleet.maintenance.deadletters import DeadLetterSender, DeadLetterSweeper
from imagefleet.maintenance.deletions import DeletionKeeper
from imagefleet.maintenance.dispatcher import LOOK_EVERY, Dispatcher
from imagefleet.maintenance.duties import Duty, Rest
from imagefleet.maintenance.flusher import FLUSH_EVERY, Flusher
from imagefleet.maintenance.pruner import Pruner
from imagefleet.maintenance.rescuer import Rescuer
from imagefleet.maintenance.sampler import RENEW_EVERY, Sampler
from imagefleet.maintenance.statistician import ROLL_UP_EVERY, Statistician
from imagefleet.maintenance.sweeper import Sweeper
from imagefleet.runtime import Drain, supervise, tell_missed
from imagefleet.settings import Database, MaintenanceSettings
from imagefleet.settings.in_force import defaults_of_maintenance
from imagefleet.settings.live import TRACES
from imagefleet.store.database import Pool, connect
from imagefleet.store.schema.migrations import open_current
from imagefleet.telemetry.health import Check, serve_health
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from imagefleet.telemetry.metrics import ends_untold
from imagefleet.telemetry.tracing import open_tracing

RESCUE_EVERY: Final = timedelta(seconds=2)
RESCUE_WITHIN: Final = 10.0  # seconds for a statement of the rescue
ANSWERED_WITHIN: Final = timedelta(seconds=25)  # of the 30 that its manifest leaves it to end
RING_HEADS_EVERY: Final = timedelta(seconds=5)
RING_EXPIRED_EVERY: Final = timedelta(minutes=1)
PRUNE_EVERY: Final = timedelta(minutes=1)
SEND_DEAD_LETTERS_EVERY: Final = timedelta(seconds=5)
SWEEP_DEAD_LETTERS_EVERY: Final = timedelta(minutes=1)  # looks whether the period is taken
SWEEP_EVERY: Final = timedelta(minutes=1)
KEEP_DELETIONS_EVERY: Final = timedelta(seconds=5)  # without an edge that is how late dark is seen
TIDY_WITHIN: Final = timedelta(minutes=2)  # a backlog is worked off for most of a minute
PROVE_WITHIN: Final = timedelta(minutes=2)  # one hour is proven in one go

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What this process reaches."""

    pool: Pool
    queues: Mapping[Lane, Queue]
    dead_letters: Queue
    edge: Edge | None
    originals: Objects
    outputs: Objects


async def main(settings: MaintenanceSettings, drain: Drain) -> None:
    """Look after the fleet until asked to end. Any number of these may run."""
    metrics = MaintenanceMetrics(job_types=load_kinds())
    live = Live()
    async with AsyncExitStack() as stack:
        outside = await reach_out(settings, metrics, live, stack)
        doorbell = await stack.enter_async_context(Doorbell(outside.pool, outside.queues).open())
        dispatcher = dispatcher_of(settings, outside, metrics, live)
        duties = duties_of(settings, outside, dispatcher, metrics, live, drain.wait_at_most)
        readiness: dict[str, Check] = {  # all of it known without asking anybody
            "database": lambda: duties["dispatcher"].failing,
            "queues": lambda: dispatcher.unreached,
            "drain": lambda: drain.reason,
        }
        health = await stack.enter_async_context(
            serve_health(
                settings.telemetry.health_host,
                settings.telemetry.health_port,
                metrics,
                vitals={name: duty.pulse for name, duty in duties.items()},
                readiness=readiness,
            )
        )
        rescuer = Rescuer(metrics, rescue_after=settings.maintenance.rescue_after)
        log.info("maintenance.started", health_port=health.port)
        async with supervise(drain) as parts:
            for name, duty in duties.items():
                parts.start(name, duty.look_after(name, drain))
            database = settings.database
            parts.start("rescuer", keep_rescuing(rescuer, database, metrics, doorbell, drain))
    with ends_untold(at_most=rescuer.unanswered):
        log.info("maintenance.ended")


async def reach_out(
    settings: MaintenanceSettings,
    metrics: MaintenanceMetrics,
    live: Live,
    stack: AsyncExitStack,
) -> Reached:
    """Open what is outside; it closes last."""
    tracing = await stack.enter_async_context(
        open_tracing(settings.telemetry, process="maintenance")
    )
    pool = await stack.enter_async_context(open_current(settings.database, "maintenance"))
    pool = pool.timed_by(metrics.query)
    defaults = defaults_of_maintenance(settings.maintenance)
    await stack.enter_async_context(live.open(pool, "maintenance", defaults))
    metrics.watch_settings(lambda: live.age)
    metrics.watch_pool(lambda: pool.connections)
    tracing.share = lambda: live.now.number(TRACES, 1)
    calls = AwsCalls(metrics, tracing)
    await stack.enter_async_context(billing(pool, calls.billed))
    session = await stack.enter_async_context(open_session(settings.aws, calls=calls))
    distribution_id = settings.aws.distribution_id
    return Reached(
        pool=pool,
        queues={lane: await session.queue(settings.aws.queue_url(lane)) for lane in Lane},
        dead_letters=await session.queue(settings.aws.dead_letter_queue_url),
        edge=None if distribution_id is None else await session.edge(distribution_id),
        originals=await session.objects(settings.aws.originals_bucket),
        outputs=await session.objects(settings.aws.outputs_bucket),
    )


def dispatcher_of(
    settings: MaintenanceSettings, outside: Reached, metrics: MaintenanceMetrics, live: Live
) -> Dispatcher:
    """The one agent that others ask how it is."""
    return Dispatcher(
        outside.pool,
        outside.queues,
        uuid4(),
        metrics,
        batch=settings.maintenance.dispatch_batch,
        idle_interval=settings.maintenance.dispatch_interval,
        live=live,
    )


def duties_of(
    settings: MaintenanceSettings,
    outside: Reached,
    dispatcher: Dispatcher,
    metrics: MaintenanceMetrics,
    live: Live,
    rest: Rest,
) -> dict[str, Duty]:
    """Everything that is done again and again, one agent a line or two; read its `run_once`."""
    pool, edge, letters = outside.pool, outside.edge, outside.dead_letters
    buckets, has_edge = (outside.originals, outside.outputs), edge is not None
    wanted, aws = settings.maintenance, settings.aws
    bookkeeper = Bookkeeper(pool, uuid4(), metrics, rest=rest)
    statistician = Statistician(pool, uuid4(), metrics, rest=rest)
    pruner = Pruner(pool, uuid4(), metrics, rest=rest)
    sender = DeadLetterSender(pool, letters, metrics, rest=rest)
    letter_sweeper = DeadLetterSweeper(pool, letters, outside.queues, uuid4(), metrics)
    keeper = DeletionKeeper(pool, *buckets, uuid4(), metrics, has_edge=has_edge)
    sampler = Sampler(
        pool, outside.queues, uuid4(), metrics,
        interval=wanted.sample_interval, has_edge=has_edge, live=live,
    )  # fmt: skip
    flusher = Flusher(
        pool, edge, uuid4(), metrics,
        by_tag=aws.invalidate_by_tag, monthly_paths=aws.monthly_paths,
    )  # fmt: skip
    sweeper = Sweeper(
        pool, *buckets, uuid4(), metrics, has_edge=has_edge, rest=rest,
        grace=wanted.sweep_grace, deletes=wanted.sweep_deletes, live=live,
        originals_kept_days=wanted.originals_kept_days,
    )  # fmt: skip
    return {
        "dispatcher": Duty(dispatcher.run_once, LOOK_EVERY, leave=dispatcher.leave),
        "heads": Duty(dispatcher.ring_heads, RING_HEADS_EVERY),
        "expired": Duty(dispatcher.ring_expired, RING_EXPIRED_EVERY),
        "pruner": Duty(pruner.run_once, PRUNE_EVERY, within=TIDY_WITHIN),
        "dead_letter_sender": Duty(sender.run_once, SEND_DEAD_LETTERS_EVERY),
        "dead_letter_sweeper": Duty(letter_sweeper.run_once, SWEEP_DEAD_LETTERS_EVERY),
        "sampler": Duty(sampler.run_once, RENEW_EVERY, leave=sampler.resign),
        "ledger_folder": Duty(bookkeeper.fold, FOLD_EVERY, leave=bookkeeper.office.resign),
        "ledger_prover": Duty(bookkeeper.prove, PROVE_EVERY, within=PROVE_WITHIN),
        "statistician": Duty(
            statistician.run_once,
            ROLL_UP_EVERY,
            leave=statistician.office.resign,
            within=TIDY_WITHIN,
        ),
        "flusher": Duty(flusher.run_once, FLUSH_EVERY, leave=flusher.resign),
        "deletions": Duty(keeper.run_once, KEEP_DELETIONS_EVERY),
        "sweeper": Duty(sweeper.run_once, SWEEP_EVERY, within=TIDY_WITHIN),
    }


async def keep_rescuing(
    rescuer: Rescuer,
    database: Database,
    metrics: MaintenanceMetrics,
    doorbell: Doorbell,
    drain: Drain,
) -> None:
    """Look at the workers over one session for as long as it lasts; a new one watches anew."""
    connected = partial(
        connect,
        database.url.get_secret_value(),
        process="maintenance-rescuer",
        pooler=database.pooler,
        statement_within=RESCUE_WITHIN,
    )
    while not drain.requested:
        try:
            async with connected() as session:
                while not drain.requested:
                    with metrics.query("rescue"):
                        rescues = await rescuer.run_once(session)
                    doorbell.ring(ring for rescue in rescues for ring in rescue.rings)
                    await drain.wait_at_most(RESCUE_EVERY)
        except FleetError as error:
            tell_missed(error, "rescuer.failed")
            await drain.wait_at_most(RESCUE_EVERY)

    async def ask() -> None:
        if rescuer.unanswered:
            async with connected() as session:
                await rescuer.catch_up(session)

    await drain.until_answered(ask, within=ANSWERED_WITHIN)
