"""The maintenance process: its connections, and one ticker for each thing it looks after."""

from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final

import structlog

from imagefleet.aws.session import open_session
from imagefleet.doorbell import Doorbell
from imagefleet.errors import FleetError
from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.model import Lane
from imagefleet.maintenance.dispatcher import Dispatcher
from imagefleet.maintenance.rescuer import Rescuer
from imagefleet.runtime import Drain, every, supervise
from imagefleet.settings import MaintenanceSettings
from imagefleet.store.database import acquire, connect, open_pool
from imagefleet.store.migrations import require_schema
from imagefleet.telemetry.aws_calls import AwsCalls
from imagefleet.telemetry.metrics import MaintenanceMetrics
from imagefleet.telemetry.tracing import open_tracing

RESCUE_EVERY: Final = timedelta(seconds=2)
STEP_WITHIN: Final = timedelta(seconds=30)

log = structlog.get_logger()


async def main(settings: MaintenanceSettings, drain: Drain) -> None:
    """Look after the fleet until asked to end. Any number of these may run."""
    metrics = MaintenanceMetrics(job_types=BUILT_IN)
    dsn = settings.database.url.get_secret_value()
    async with AsyncExitStack() as stack:
        tracing = await stack.enter_async_context(
            open_tracing(settings.telemetry, process="maintenance")
        )
        pool = await stack.enter_async_context(
            open_pool(
                dsn,
                process="maintenance",
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
        dispatcher = Dispatcher(pool, queues, batch=settings.maintenance.dispatch_batch)
        rescuer = Rescuer(rescue_after=settings.maintenance.rescue_after)
        async with supervise(drain) as parts:
            parts.start(
                "dispatcher",
                every(
                    settings.maintenance.dispatch_interval,
                    dispatcher.run_once,
                    stop=drain,
                    name="dispatcher",
                    timeout=STEP_WITHIN,
                ),
            )
            parts.start("rescuer", watch(dsn, rescuer, doorbell, metrics, drain))


async def watch(
    dsn: str, rescuer: Rescuer, doorbell: Doorbell, metrics: MaintenanceMetrics, drain: Drain
) -> None:
    """Look at the workers over one session for as long as it lasts; a new one watches anew."""
    while not drain.requested:
        try:
            async with connect(dsn, process="maintenance-rescuer") as session:
                while not drain.requested:
                    rescued = await rescuer.run_once(session)
                    doorbell.ring(rescued.rings)
                    metrics.rescued(rescued.retried + rescued.failed)
                    await drain.wait_at_most(RESCUE_EVERY)
        except FleetError as error:
            log.warning("rescuer.failed", code=error.code, detail=error.detail)
            await drain.wait_at_most(RESCUE_EVERY)
