"""cancel_job: flags another job of its tenant; whoever claims or holds that one ends it."""

from typing import Final

from imagefleet.errors import NotFound
from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.lifecycle import Completed, ResultReason
from imagefleet.jobs.model import JobId
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.worker.handling import Handler, JobContext


async def run(job: JobContext) -> Completed:
    """Flag it; the truthful answer is `requested`, `already_finished` or `nothing_left`."""
    try:
        async with job.database("cancel_job") as connection:
            reason, rings = await cancel_job(
                connection,
                JobId(job.payload.job_id),
                code=job.payload.code,
                detail=job.payload.reason or None,
                tenant_id=job.claim.tenant_id,
            )
    except NotFound:
        return Completed(reason=ResultReason.NOTHING_LEFT)
    job.ring(rings)
    return Completed(reason=reason)


HANDLER: Final = Handler(kind=BUILT_IN["cancel_job"], run=run)
