"""cancel_jobs: flags what its tenant has open; whoever claims or holds those jobs ends them.

Page by page it flags them and moves its cursor, in one transaction that its claim fences; a later
attempt goes on behind the last page that was committed.
"""

from typing import Final

from imagefleet.jobs.bulk import CancelWalk
from imagefleet.jobs.kinds import BUILT_IN, CancelJobs
from imagefleet.jobs.lifecycle import Completed
from imagefleet.store.jobs.cancelling import begin_walk, count_walk, flag_page
from imagefleet.worker.handling import Handler, JobContext


async def run(job: JobContext) -> Completed:
    """Walk what is open; done when all of it is flagged."""
    wanted: CancelJobs = job.payload
    walk = CancelWalk.of(job.cursor) or await begin(job, wanted, parents=wanted.job_type is None)
    while True:
        async with job.database("flag_page") as connection:
            page = await flag_page(connection, job.claim, job.renewal, wanted, walk)
        walk = page.walk
        if page.cancelled:  # which the attempt hears of, and is stopped by, here
            await job.progress(walk.seen, walk.total, walk.cursor)
        if page.over and walk.again:
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
        until = await begin_walk(connection, wanted)
        if parents:
            return CancelWalk(until=until, parents=True)
        total = await count_walk(connection, job.claim.tenant_id, wanted.job_type)
    return CancelWalk(until=until, parents=False, total=total, flagged=flagged)


HANDLER: Final = Handler(kind=BUILT_IN["cancel_jobs"], run=run)
