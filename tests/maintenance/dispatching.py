"""Jobs that wait, and the dispatcher that announces them."""

from datetime import timedelta
from uuid import uuid4

from imagefleet.jobs.model import JobId, Lane, parse_message
from imagefleet.live import Live
from imagefleet.maintenance.dispatcher import Dispatcher
from imagefleet.store.database import Connection, Pool
from imagefleet.store.jobs.submissions import submit_jobs
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.support.factories import a_submission
from tests.support.queues import FakeQueue

SPARE = 4  # what a lane is sent beyond its free slots


def a_dispatcher(
    pool: Pool,
    lanes: dict[Lane, FakeQueue],
    *,
    idle_interval: timedelta = timedelta(0),
    live: Live | None = None,
) -> Dispatcher:
    queues = {lane: queue.as_queue() for lane, queue in lanes.items()}
    metrics = MaintenanceMetrics(())
    return Dispatcher(
        pool, queues, uuid4(), metrics, batch=100, idle_interval=idle_interval, live=live
    )


def rung(queue: FakeQueue) -> list[JobId]:
    return [parse_message(message.body).job_id for message in queue.sent]


async def submitted(api: Connection, count: int = 1, **wishes: object) -> list[JobId]:
    """Jobs whose submitter died before it could ring for them."""
    jobs = [a_submission(**wishes) for _ in range(count)]  # type: ignore[arg-type] # its own names
    await submit_jobs(api, jobs)
    ids = [job.job_id for job in jobs]
    await api.execute(
        "UPDATE rings SET next_at = least(next_at, now()) WHERE next_at < 'infinity'"
        " AND job_id = ANY ($1)",
        ids,
    )
    return ids
