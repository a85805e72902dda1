"""The maintenance process: its connections, and one ticker for each thing it looks after."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final, TypeAlias
from uuid import uuid4

import structlog

from imagefleet.aws.calls import AwsCalls
from imagefleet.aws.edge import Edge
from imagefleet.aws.objects import Objects
from imagefleet.aws.queue import Queue
from imagefleet.aws.session import open_session
from imagefleet.doorbell import Doorbell
from imagefleet.errors import FleetError
from imagefleet.extensions import load_kinds
from imagefleet.jobs.model import Lane
from imagefleet.live import Live
from imagefleet.maintenance.bookkeeper import FOLD_EVERY, PROVE_EVERY, Bookkeeper
from imagefleet.maintenance.deadletters import DeadLetterSender, DeadLetterSweeper
from imagefleet.maintenance.deletions import DeletionKeeper
from imagefleet.maintenance.dispatcher import LOOK_EVERY, Dispatcher
from imagefleet.maintenance.flusher import FLUSH_EVERY, Flusher
from imagefleet.maintenance.gauges import RENEW_EVERY, Sampler
from imagefleet.maintenance.pruner import Pruner
from imagefleet.maintenance.rescuer import Rescuer
from imagefleet.maintenance.sweeper import Sweeper
from imagefleet.runtime import Drain, Parts, Step, every, supervise
from imagefleet.settings import MaintenanceSettings
from imagefleet.settings.in_force import defaults_of_maintenance
from imagefleet.settings.live import TRACES
from imagefleet.store.database import Pool, connect, open_pool
from imagefleet.store.schema.migrations import require_schema
from imagefleet.telemetry.health import Check, Pulse, Vital, serve_health
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from imagefleet.telemetry.tracing import open_tracing

RESCUE_EVERY: Final = timedelta(seconds=2)
RESCUE_WITHIN: Final = 10.0  # seconds for a statement of the rescue
RING_HEADS_EVERY: Final = timedelta(seconds=5)
RING_EXPIRED_EVERY: Final = timedelta(minutes=1)
PRUNE_EVERY: Final = timedelta(minutes=1)
SEND_DEAD_LETTERS_EVERY: Final = timedelta(seconds=5)
SWEEP_DEAD_LETTERS_EVERY: Final = timedelta(minutes=1)  # looks whether the period is taken
SWEEP_EVERY: Final = timedelta(minutes=1)
KEEP_DELETIONS_EVERY: Final = timedelta(seconds=5)  # without an edge that is how late dark is seen
STEP_WITHIN: Final = timedelta(seconds=30)
TIDY_WITHIN: Final = timedelta(minutes=2)  # a backlog is worked off for most of a minute
PROVE_WITHIN: Final = timedelta(minutes=2)  # one hour is proven in one go
LEAVE_WITHIN: Final = 5.0  # seconds
LONGEST_SILENCE: Final = timedelta(minutes=3)  # a failing loop pauses for up to 1.2 minutes

Buckets: TypeAlias = tuple[Objects, Objects]
"""Of originals and of outputs."""

log = structlog.get_logger()


async def main(settings: MaintenanceSettings, drain: Drain) -> None:
    """Look after the fleet until asked to end. Any number of these may run."""
    metrics = MaintenanceMetrics(job_types=load_kinds())
    live = Live()
    async with AsyncExitStack() as stack:
        pool, queues, dead_letters, edge, buckets = await reach_out(settings, metrics, live, stack)
        doorbell = await stack.enter_async_context(Doorbell(pool, queues).open())
        duties = Duties(
            settings, metrics, live, pool, queues, dead_letters, edge, buckets, doorbell, drain
        )
        health = await stack.enter_async_context(
            serve_health(
                settings.telemetry.health_host,
                settings.telemetry.health_port,
                metrics,
                vitals=duties.vitals(),
                readiness=duties.readiness(),
            )
        )
        log.info("maintenance.started", health_port=health.port)
        async with supervise(drain) as parts:
            duties.start(parts)
    log.info("maintenance.ended")


async def reach_out(
    settings: MaintenanceSettings,
    metrics: MaintenanceMetrics,
    live: Live,
    stack: AsyncExitStack,
) -> tuple[Pool, dict[Lane, Queue], Queue, Edge | None, Buckets]:
    """Open what is outside; it closes last."""
    tracing = await stack.enter_async_context(
        open_tracing(settings.telemetry, process="maintenance")
    )
    pool = await stack.enter_async_context(
        open_pool(
            settings.database.url.get_secret_value(),
            process="maintenance",
            min_size=settings.database.pool_min,
            max_size=settings.database.pool_max,
            connect_within=settings.database.connect_timeout.total_seconds(),
            statement_within=settings.database.statement_timeout.total_seconds(),
        )
    )
    async with pool.connection() as connection:
        await require_schema(connection)
    pool = pool.timed_by(metrics.query)
    await stack.enter_async_context(
        live.open(
            pool,
            "maintenance",
            defaults_of_maintenance(settings.maintenance),
        )
    )
    metrics.watch_settings(lambda: live.age)
    tracing.share = lambda: live.now.number(TRACES, 1)
    session = await stack.enter_async_context(
        open_session(settings.aws, calls=AwsCalls(metrics, tracing))
    )
    queues = {lane: await session.queue(settings.aws.queue_url(lane)) for lane in Lane}
    dead_letters = await session.queue(settings.aws.dead_letter_queue_url)
    distribution_id = settings.aws.distribution_id
    edge = None if distribution_id is None else await session.edge(distribution_id)
    originals = await session.objects(settings.aws.originals_bucket)
    outputs = await session.objects(settings.aws.outputs_bucket)
    return pool, queues, dead_letters, edge, (originals, outputs)


class Duty:
    """A step that is taken again and again, and how it fared last."""

    def __init__(
        self,
        step: Step,
        interval: timedelta,
        *,
        leave: Step | None = None,
        within: timedelta = STEP_WITHIN,
    ) -> None:
        """`leave` is for the end: to hand an office on at once."""
        self.interval = interval
        self._within = within
        self.pulse = Pulse(LONGEST_SILENCE)
        self.failing: str | None = None
        self._step = step
        self._leave = leave

    async def look_after(self, name: str, drain: Drain) -> None:
        """Take it until the drain."""
        await every(self.interval, self, stop=drain, name=name, timeout=self._within)
        if self._leave is None:
            return
        try:
            async with asyncio.timeout(LEAVE_WITHIN):
                await self._leave()
        except (FleetError, TimeoutError):  # then it runs out by itself
            log.warning("office.not_left", office=name, exc_info=True)

    async def __call__(self) -> None:
        """Take it once; whatever it raises is logged by `every`, and slows it down."""
        self.pulse.felt()
        try:
            await self._step()
        except FleetError as error:
            self.failing = error.code
            raise
        self.failing = None


class Duties:
    """Everything that this process looks after."""

    def __init__(
        self,
        settings: MaintenanceSettings,
        metrics: MaintenanceMetrics,
        live: Live,
        pool: Pool,
        queues: Mapping[Lane, Queue],
        dead_letters: Queue,
        edge: Edge | None,
        buckets: Buckets,
        doorbell: Doorbell,
        drain: Drain,
    ) -> None:
        wanted = settings.maintenance
        self._dispatcher = Dispatcher(
            pool,
            queues,
            uuid4(),
            metrics,
            batch=wanted.dispatch_batch,
            idle_interval=wanted.dispatch_interval,
            live=live,
        )
        self._dispatching = Duty(
            self._dispatcher.run_once, LOOK_EVERY, leave=self._dispatcher.leave
        )
        self._heading = Duty(self._dispatcher.ring_heads, RING_HEADS_EVERY)
        self._expiring = Duty(self._dispatcher.ring_expired, RING_EXPIRED_EVERY)
        self._pruning = Duty(
            Pruner(pool, uuid4(), metrics, rest=drain.wait_at_most).run_once,
            PRUNE_EVERY,
            within=TIDY_WITHIN,
        )
        sender = DeadLetterSender(pool, dead_letters, metrics, rest=drain.wait_at_most)
        self._sending = Duty(sender.run_once, SEND_DEAD_LETTERS_EVERY)
        sweeper = DeadLetterSweeper(pool, dead_letters, queues, uuid4(), metrics)
        self._sweeping = Duty(sweeper.run_once, SWEEP_DEAD_LETTERS_EVERY)
        sampler = Sampler(
            pool,
            queues,
            uuid4(),
            metrics,
            interval=wanted.sample_interval,
            has_edge=edge is not None,
            live=live,
        )
        self._sampling = Duty(sampler.run_once, RENEW_EVERY, leave=sampler.resign)
        bookkeeper = Bookkeeper(pool, uuid4(), metrics, rest=drain.wait_at_most)
        self._folding = Duty(bookkeeper.fold, FOLD_EVERY, leave=bookkeeper.resign)
        self._proving = Duty(bookkeeper.prove, PROVE_EVERY, within=PROVE_WITHIN)
        by_tag = settings.aws.invalidate_by_tag
        budget = settings.aws.monthly_paths
        flusher = Flusher(pool, edge, uuid4(), metrics, by_tag=by_tag, monthly_paths=budget)
        self._flushing = Duty(flusher.run_once, FLUSH_EVERY, leave=flusher.resign)
        keeper = DeletionKeeper(pool, *buckets, uuid4(), metrics, has_edge=edge is not None)
        self._emptying = Duty(keeper.run_once, KEEP_DELETIONS_EVERY)
        storage = Sweeper(
            pool,
            *buckets,
            uuid4(),
            metrics,
            has_edge=edge is not None,
            grace=wanted.sweep_grace,
            deletes=wanted.sweep_deletes,
            rest=drain.wait_at_most,
            live=live,
        )
        self._tidying = Duty(storage.run_once, SWEEP_EVERY, within=TIDY_WITHIN)
        self._rescuer = Rescuer(metrics, rescue_after=wanted.rescue_after)
        self._dsn = settings.database.url.get_secret_value()
        self._metrics = metrics
        self._doorbell = doorbell
        self._drain = drain

    def start(self, parts: Parts) -> None:
        """Look after all of it until the drain."""
        for name, duty in self._duties().items():
            parts.start(name, duty.look_after(name, self._drain))
        parts.start("rescuer", self._rescue())

    def _duties(self) -> dict[str, Duty]:
        return {
            "dispatcher": self._dispatching,
            "heads": self._heading,
            "expired": self._expiring,
            "pruner": self._pruning,
            "dead_letter_sender": self._sending,
            "dead_letter_sweeper": self._sweeping,
            "sampler": self._sampling,
            "ledger_folder": self._folding,
            "ledger_prover": self._proving,
            "flusher": self._flushing,
            "deletions": self._emptying,
            "sweeper": self._tidying,
        }

    def vitals(self) -> dict[str, Vital]:
        """What a restart would cure."""
        return {name: duty.pulse for name, duty in self._duties().items()}

    def readiness(self) -> dict[str, Check]:
        """What keeps this process from its duties; all of it known without asking anybody."""
        return {
            "database": lambda: self._dispatching.failing,
            "queues": lambda: self._dispatcher.unreached,
            "drain": lambda: self._drain.reason,
        }

    async def _rescue(self) -> None:
        """Look at the workers over one session for as long as it lasts; a new one watches anew."""
        while not self._drain.requested:
            try:
                async with connect(
                    self._dsn, process="maintenance-rescuer", statement_within=RESCUE_WITHIN
                ) as session:
                    while not self._drain.requested:
                        with self._metrics.query("rescue"):
                            rescued = await self._rescuer.run_once(session)
                        self._doorbell.ring(rescued.rings)
                        await self._drain.wait_at_most(RESCUE_EVERY)
            except FleetError as error:
                log.warning("rescuer.failed", code=error.code, detail=error.detail)
                await self._drain.wait_at_most(RESCUE_EVERY)
