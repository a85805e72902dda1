"""The worker process: what it opens, in which order, and its shift between the two.

Down the ladder everything is opened; back up it is closed, each after what depends on it.
Settlements, deletes and rings are written before their owners close, and the last beat comes after
the last settlement.

A shift: the worker registers, works until the drain, gives back what is left, and retires. The
drain: consumers stop receiving and give back what is on its way; running attempts may finish until
the grace ends; then they are stopped and their jobs released, uncharged.
"""

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from typing import Final
from uuid import uuid4

import structlog

from imagefleet.aws.calls import AwsCalls
from imagefleet.aws.queue import Queue
from imagefleet.aws.session import AwsSession, open_session
from imagefleet.billing import billing
from imagefleet.doorbell import Doorbell
from imagefleet.errors import ClaimLost, Unavailable
from imagefleet.extensions import load_kinds
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Recipe
from imagefleet.imaging.recipes.files import recipes_in_force
from imagefleet.jobs.model import Lane, WorkerId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.live import Live
from imagefleet.runtime import Drain, supervise
from imagefleet.settings import WorkerSettings
from imagefleet.settings.in_force import defaults_of_worker
from imagefleet.settings.live import TRACES
from imagefleet.store.database import Pool
from imagefleet.store.fleet.workers import WorkerCard, register_worker, retire_worker, start_drain
from imagefleet.store.images.recipes import StoredRecipes, remember_recipes
from imagefleet.store.schema.migrations import open_current
from imagefleet.telemetry.health import Check, HealthServer, Vital, serve_health
from imagefleet.telemetry.metrics import WorkerMetrics, ends_untold
from imagefleet.telemetry.tracing import Tracing, open_tracing
from imagefleet.worker.attempt import RunningAttempts, Stop, Surroundings
from imagefleet.worker.breakers import BreakerReports
from imagefleet.worker.consumer import Consumer, Ears, consumers_of
from imagefleet.worker.handlers import load_handlers
from imagefleet.worker.handling import (
    Equipment,
    Handlers,
    kinds_of,
    modules_of,
    room_of,
    type_slots_of,
)
from imagefleet.worker.isolation.client import Renderer, scratch_folder
from imagefleet.worker.lease import Lease
from imagefleet.worker.messages import Messages, Unclaimed
from imagefleet.worker.settler import Settler, Takeovers
from imagefleet.worker.slots import Hearing, Slots, Solitude, TypeSlots, slots_of, use_slots

SETTLE_WITHIN: Final = timedelta(seconds=15)  # after the grace, while Postgres may be away

log = structlog.get_logger()


async def main(settings: WorkerSettings, drain: Drain) -> None:
    """Run one worker until it is asked to end, or was declared dead."""
    standard_retry = settings.retry.policy()
    recipes = recipes_in_force(settings.recipes.file)
    handlers = load_handlers(settings.worker.job_types, standard_retry=standard_retry)
    # Also of types that it does not run: it ends cancelled jobs of any.
    metrics = WorkerMetrics(job_types={*load_kinds(), *handlers})
    async with AsyncExitStack() as stack:
        renderer = Renderer(preload=modules_of(handlers), recipes=recipes.values())
        async with asyncio.TaskGroup() as group:  # the codecs are loaded by another process
            group.create_task(stack.enter_async_context(renderer))
            outside = await reach_out(settings, metrics, stack)
        equipment = await equip(
            settings, handlers, recipes, metrics, outside, renderer, standard_retry, drain, stack
        )
        worker = await assemble(settings, handlers, outside, equipment, stack)
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
        with ends_untold(at_most=worker.untold):
            await worker.retire(drain)
    if worker.lease.dead:
        raise ClaimLost.of_worker(worker.worker_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What the worker speaks to."""

    tracing: Tracing
    pool: Pool
    session: AwsSession
    queues: Mapping[Lane, Queue]


async def reach_out(
    settings: WorkerSettings, metrics: WorkerMetrics, stack: AsyncExitStack
) -> Outside:
    """Open what is outside; it closes last."""
    tracing = await stack.enter_async_context(open_tracing(settings.telemetry, process="worker"))
    pool = await stack.enter_async_context(
        open_current(settings.database, "worker", generic_plans=True)
    )
    calls = AwsCalls(metrics, tracing)
    await stack.enter_async_context(billing(pool, calls.billed))
    session = await stack.enter_async_context(open_session(settings.aws, calls=calls))
    return Outside(
        tracing=tracing,
        pool=pool.timed_by(metrics.query),
        session=session,
        queues={lane: await session.queue(settings.aws.queue_url(lane)) for lane in Lane},
    )


async def equip(
    settings: WorkerSettings,
    handlers: Handlers,
    recipes: Mapping[str, Recipe],
    metrics: WorkerMetrics,
    outside: Outside,
    renderer: Renderer,
    standard_retry: RetryPolicy,
    drain: Drain,
    stack: AsyncExitStack,
) -> Equipment:
    """Open what handlers use."""
    async with outside.pool.connection() as connection:
        await remember_recipes(connection, recipes.values())
    bound = type_slots_of(handlers, settings.worker.render_children)
    defaults = defaults_of_worker(settings.worker, standard_retry, kinds_of(handlers), bound)
    live = await stack.enter_async_context(Live().open(outside.pool, "worker", defaults))
    metrics.watch_settings(lambda: live.age)
    metrics.watch_pool(lambda: outside.pool.connections)
    outside.tracing.share = lambda: live.now.number(TRACES, 1)
    doorbell = Doorbell(outside.pool, outside.queues)
    breakers = BreakerReports(outside.pool, metrics, live, settings.worker.breakers)
    return Equipment(
        pool=outside.pool,
        originals=await outside.session.objects(settings.aws.originals_bucket),
        outputs=await outside.session.objects(settings.aws.outputs_bucket),
        renderer=renderer,
        room=room_of(settings.worker),
        picture_limits=Limits(**settings.pictures.model_dump()),
        recipes=recipes,
        stored_recipes=StoredRecipes(outside.pool),
        drain=drain,
        doorbell=await stack.enter_async_context(doorbell.open()),
        breakers=await stack.enter_async_context(breakers.open()),
        metrics=metrics,
        scratch=stack.enter_context(scratch_folder()),
        live=live,
        standard_retry=standard_retry,
    )


async def assemble(
    settings: WorkerSettings,
    handlers: Handlers,
    outside: Outside,
    equipment: Equipment,
    stack: AsyncExitStack,
) -> "Shift":
    """Open the worker's own parts, those last that others depend on least."""
    worker_id = WorkerId(uuid4())
    pool, metrics = equipment.pool, equipment.metrics
    settler = await stack.enter_async_context(
        Settler(pool, worker_id, equipment.doorbell, metrics).open()
    )
    slots = slots_of(settings.worker, metrics)
    type_slots = TypeSlots(type_slots_of(handlers, settings.worker.render_children))
    equipment.live.watch(lambda now: use_slots(now, slots, type_slots))
    spans = {outside.queues[lane]: await outside.queues[lane].visibility() for lane in slots}
    messages = await stack.enter_async_context(Messages(spans).open())
    around = Surroundings(
        equipment=equipment, settler=settler, messages=messages, tracing=outside.tracing
    )
    attempts, hearing = RunningAttempts(handlers, around), Hearing(slots)
    lease = Lease(settings.database, worker_id, attempts, messages, settler, hearing, metrics)
    metrics.watch_beat(lambda: timedelta(seconds=lease.age))
    dead_letters = await outside.session.queue(settings.aws.dead_letter_queue_url)
    takeovers = Takeovers(pool, worker_id, metrics)
    unclaimed = Unclaimed(
        messages, dead_letters, kinds_of(handlers), pool, equipment.doorbell, metrics
    )
    ears = Ears(
        pool=pool,
        worker_id=worker_id,
        types=tuple(handlers),
        lease=lease,
        solitude=Solitude(shared=len(slots) > 1),
        unclaimed=unclaimed,
        hearing=hearing,
        metrics=metrics,
        takeovers=takeovers,
        start=attempts.start,
        type_slots=type_slots,
    )
    return Shift(
        worker_id=worker_id,
        pool=pool,
        settler=settler,
        takeovers=takeovers,
        attempts=attempts,
        lease=lease,
        slots=slots,
        type_slots=type_slots,
        memory_bytes=equipment.room.memory_bytes,
        consumers=consumers_of(slots, outside.queues, ears, settings.worker.receive_wait),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A worker that is ready to work."""

    worker_id: WorkerId
    pool: Pool
    settler: Settler
    takeovers: Takeovers
    attempts: RunningAttempts
    lease: Lease
    slots: Mapping[Lane, Slots]
    type_slots: TypeSlots
    memory_bytes: int
    consumers: Mapping[Lane, Consumer]

    def vitals(self) -> dict[str, Vital]:
        """What a restart would cure."""
        stuck = {f"receive {lane}": consumer.stuck for lane, consumer in self.consumers.items()}
        return {"beat": self.lease.pulse, "attempts": self.attempts.late, **stuck}

    def readiness(self, drain: Drain) -> dict[str, Check]:
        """What keeps this worker from taking jobs; all of it known without asking anybody."""
        deaf = {
            f"queue {lane}": partial(_deaf, consumer) for lane, consumer in self.consumers.items()
        }
        return {"database": self.lease.stale, "drain": lambda: drain.reason, **deaf}

    async def register(self, handlers: Handlers, health: HealthServer) -> None:
        """Enter the registry, without which nothing can be claimed."""
        card = WorkerCard(
            worker_id=self.worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version("imagefleet"),
            types=tuple(handlers),
            slots={lane: slots.total for lane, slots in self.slots.items()},
            type_slots=self.type_slots.own,
            memory_bytes=self.memory_bytes,
        )
        async with self.pool.connection() as connection:
            await register_worker(connection, card)
        log.info(
            "worker.started",
            worker_id=str(self.worker_id),
            lanes=tuple(card.slots),
            types=card.types,
            memory_bytes=card.memory_bytes,
            health_port=health.port,
        )

    async def work(self, drain: Drain, grace: timedelta) -> None:
        """Take jobs until the drain, and end what runs then."""
        try:
            async with supervise(drain) as parts:
                self.attempts.owned_by(parts)
                for lane, consumer in self.consumers.items():
                    parts.start(f"consumer {lane}", consumer.run(drain))
                parts.start("drain", self._end(drain, grace))
        except asyncio.CancelledError:  # the second signal: what runs was cancelled in the middle
            await self.attempts.give_back()
            self._tell_the_end(drain, at_once=True)
            raise

    async def _end(self, drain: Drain, grace: timedelta) -> None:
        """Once the drain begins: let what runs come to its end, and tell what it ended unheard."""
        await drain.wait()
        self.attempts.tally.clear()  # from here on it tells what became of what was running
        with suppress(Unavailable):
            async with self.pool.connection() as connection:
                await start_drain(connection, self.worker_id)
        await self._empty(grace)
        # A part of this one, and not behind all parts: those may have broken.
        await drain.until_answered(self.takeovers.catch_up, within=grace + SETTLE_WITHIN)

    async def _empty(self, grace: timedelta) -> None:
        """Let running jobs finish for the grace, then give them back."""
        if await self._all_free(grace):
            return
        log.warning("drain.grace_over", jobs=len(self.attempts.running))
        self.attempts.stop_all(Stop.DRAIN)
        if not await self._all_free(SETTLE_WITHIN):
            log.error("drain.unsettled", jobs=len(self.attempts.running))
            self.settler.give_up()

    @property
    def untold(self) -> int:
        """How many ends it has perhaps written, and nobody will tell them."""
        return self.settler.unanswered + self.takeovers.unanswered

    async def _all_free(self, within: timedelta) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds()):
                for slots in self.slots.values():
                    await slots.all_free()
                return True
        return False

    async def retire(self, drain: Drain) -> None:
        """Leave the registry; a worker that still holds something is left to the rescuer.

        Unavailable when nobody could be told: then the end was not an orderly one.
        """
        if self.lease.dead:
            self._tell_the_end(drain, dead=True)
            return
        try:
            async with self.pool.connection() as connection:
                retired = await retire_worker(connection, self.worker_id)
        except Unavailable as error:
            # The rescuer will find out: this id does not beat any more.
            self._tell_the_end(drain, code=error.code)
            raise
        self._tell_the_end(drain, holds_nothing=retired)

    def _tell_the_end(self, drain: Drain, **facts: object) -> None:
        """The last line of a worker: why it ended, and what became of what it ran by then."""
        tally = self.attempts.tally
        log.info(
            "worker.ended",
            worker_id=str(self.worker_id),
            reason=drain.reason,
            finished=tally["finished"],
            released=tally["released"],
            abandoned=tally["abandoned"],
            **facts,
        )


def _deaf(consumer: Consumer) -> str | None:
    return consumer.deaf
