"""cancel_job and cancel_jobs flag jobs of their tenant; whoever claims or holds those ends them.

cancel_job flags the one that it names. cancel_jobs flags what is open, page by page: each with its
cursor in one transaction that its claim fences, so that a later attempt goes on behind the last
page that was committed.
"""

from typing import Final

from imagefleet.errors import NotFound
from imagefleet.jobs.bulk import CancelWalk
from imagefleet.jobs.kinds import BUILT_IN, CancelJobs
from imagefleet.jobs.lifecycle import Completed, ResultReason
from imagefleet.jobs.model import JobId
from imagefleet.store.jobs.cancelling import begin_walk, cancel_job, count_walk, flag_page
from imagefleet.store.jobs.targets import begin_walk_of_target
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
    parents = wanted.job_type is None and wanted.target is None
    walk = CancelWalk.of(job.cursor) or await begin(job, wanted, parents=parents)
    while True:
        async with job.database("flag_page") as connection:
            page = await flag_page(connection, job.claim, job.renewal, wanted, walk)
        walk = page.walk
        if page.cancelled:  # which the attempt hears of, and is stopped by, here
            await job.progress(walk.seen, walk.total, walk.cursor)
        if page.over and (walk.again or wanted.target is not None):
            return Completed(result={"flagged": walk.flagged})
        if page.over and not walk.parents:
            walk = walk.once_more()
        elif page.over:
            walk = await begin(job, wanted, parents=False, flagged=walk.flagged)


async def begin(
    job: JobContext, wanted: CancelJobs, *, parents: bool, flagged: int = 0
) -> CancelWalk:
    """At the newest job; of those that submit others there are few, and nobody counts them."""
    async with job.database("begin_walk") as connection:
        if wanted.target is not None:
            return await begin_walk_of_target(connection, job.claim.tenant_id, wanted)
        until = await begin_walk(connection, wanted)
        if parents:
            return CancelWalk(until=until, parents=True)
        total = await count_walk(connection, job.claim.tenant_id, wanted.job_type)
    return CancelWalk(until=until, parents=False, total=total, flagged=flagged)


CANCEL_JOB: Final = Handler(kind=BUILT_IN["cancel_job"], run=cancel_one)
CANCEL_JOBS: Final = Handler(kind=BUILT_IN["cancel_jobs"], run=cancel_all)
