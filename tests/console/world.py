"""A fleet in which enough went wrong to show every part of a page, and names that mean harm."""

from dataclasses import dataclass
from typing import Final

from imagefleet.jobs.lifecycle import Completed, Failed, Retry
from imagefleet.jobs.model import JobId, JobState, TenantId
from imagefleet.store.database import Connection
from tests.support.api import ACME, RIVAL
from tests.support.factories import a_job, a_submission, open_breaker, settle_job

CORRUPT: Final = "The image cannot be decoded: premature end of a JPEG file."
BUCKET: Final = "The bucket does not exist: NoSuchBucket."
TARGET: Final = "sku:4711"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Jobs by what became of them."""

    corrupt: list[JobId]
    denied: list[JobId]
    running: JobId
    waiting: JobId
    retried: JobId
    completed: JobId


async def a_world(worker: Connection, superuser: Connection, operator: Connection) -> World:
    """Two kinds of dead letters, an open breaker, a pause, and jobs in every state."""

    async def failed(tenant: TenantId, code: str, message: str, detail: str) -> JobId:
        wanted = a_submission(tenant_id=tenant, payload={"note": message})
        job = await a_job(worker, superuser, state=JobState.PROCESSING, submission=wanted)
        await settle_job(worker, job, Failed(code=code, message=message, detail=detail))
        return job.job_id

    corrupt = [await failed(ACME, "corrupt", CORRUPT, f"broken data stream {n}") for n in range(5)]
    corrupt.append(await failed(RIVAL, "corrupt", CORRUPT, "truncated"))
    denied = [await failed(ACME, "storage", BUCKET, "PutObject: NoSuchBucket") for _ in range(3)]
    completed = await a_job(
        worker, superuser, state=JobState.PROCESSING, submission=a_submission(tenant_id=ACME)
    )
    await settle_job(worker, completed, Completed(result={"bytes": 1234}))
    retried = await a_job(
        worker, superuser, state=JobState.PROCESSING, submission=a_submission(tenant_id=RIVAL)
    )
    again = Retry(code="unavailable", message="S3 did not answer.", detail="ReadTimeout")
    await settle_job(worker, retried, again)
    first = a_submission(tenant_id=ACME, target=TARGET)
    running = await a_job(worker, superuser, state=JobState.PROCESSING, submission=first)
    waiting = await a_job(worker, superuser, submission=a_submission(tenant_id=ACME, target=TARGET))
    await open_breaker(worker)
    await superuser.execute(
        "INSERT INTO pauses (scope, name, tenant_id, reason, paused_by)"
        " VALUES ('type', 'webhook', '', 'their endpoint moves', 'dana')"
    )
    return World(
        corrupt=corrupt,
        denied=denied,
        running=running.job_id,
        waiting=waiting.job_id,
        retried=retried.job_id,
        completed=completed.job_id,
    )
