"""cancel_job and cancel_jobs flag jobs of their tenant; whoever claims or holds those ends them.

cancel_job flags the one that it names. cancel_jobs flags what is open, of every tenant where an
operator says so, page by page: each with its
cursor in one transaction that its claim fences, so that a later attempt goes on behind the last
page that was committed.
"""

from typing import Final

from imagefleet.errors import NotFound
from imagefleet.jobs.bulk import CancelWalk
from imagefleet.jobs.kinds import BUILT_IN, CancelJobs
from imagefleet.jobs.lifecycle import Completed, ResultReason
from imagefleet.jobs.model import JobId
from imagefleet.store.jobs.cancelling import begin_walk, cancel_job, flag_page
from imagefleet.worker.handling import Handler, JobContext


async def cancel_one(job: JobContext) -> Completed:
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


async def cancel_all(job: JobContext) -> Completed:
    """Walk what is open; done when all of it is flagged."""
    wanted: CancelJobs = job.payload
    walk = CancelWalk.of(job.cursor) or await go_on(job, wanted, None)
    flagged = 0
    while walk is not None:
        async with job.database("flag_page") as connection:
            page = await flag_page(connection, job.claim, job.renewal, wanted, walk)
        walk, flagged = page.walk, page.walk.flagged
        if page.cancelled:  # which the attempt hears of, and is stopped by, here
            await job.progress(walk.seen, walk.total, walk.cursor)
        if page.over:
            walk = await go_on(job, wanted, walk)
    return Completed(result={"flagged": flagged})


async def go_on(job: JobContext, wanted: CancelJobs, walk: CancelWalk | None) -> CancelWalk | None:
    """What is walked behind this part of it, or at first; None: nothing is left."""
    if walk is not None and not walk.parents:
        if not walk.again and wanted.target is None:
            return walk.once_more()
        if not wanted.every_tenant:
            return None
    async with job.database("begin_walk") as connection:
        return await begin_walk(connection, job.claim.tenant_id, wanted, walk)


CANCEL_JOB: Final = Handler(kind=BUILT_IN["cancel_job"], run=cancel_one)
CANCEL_JOBS: Final = Handler(kind=BUILT_IN["cancel_jobs"], run=cancel_all)
