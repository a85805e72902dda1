"""The dead-letter queue as tests look into it."""

from datetime import timedelta

from imagefleet.aws.queue import Queue, Received
from imagefleet.jobs.model import JobId, JobState
from imagefleet.store.database import Connection
from tests.support.factories import a_job

SOON = timedelta(seconds=1)


async def lying_in(queue: Queue) -> list[Received]:
    """Every message that is visible; it is not afterwards."""
    seen: list[Received] = []
    while received := await queue.receive(most=10, wait=SOON):
        seen += received
    return seen


async def failed(worker: Connection, superuser: Connection) -> JobId:
    return (await a_job(worker, superuser, state=JobState.FAILED)).job_id
