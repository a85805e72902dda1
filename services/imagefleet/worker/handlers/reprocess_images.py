"""reprocess_images: renders a set of images again, by a job for each of them.

It renders nothing itself. Page by page it submits the jobs that do and moves its cursor, in one
transaction that its claim fences; a later attempt goes on behind the last page that was committed.
"""

from typing import Final

from imagefleet.errors import Unavailable
from imagefleet.imaging.recipes import RECIPES
from imagefleet.jobs.kinds import BUILT_IN, ReprocessImages
from imagefleet.jobs.lifecycle import Completed, failure_sentence
from imagefleet.jobs.reprocessing import Walk
from imagefleet.store.database import acquire
from imagefleet.store.reprocessing import count_set, submit_page
from imagefleet.worker.handling import Handler, JobContext


async def run(job: JobContext) -> Completed:
    """Walk the set; done when every image of it has its job."""
    wanted: ReprocessImages = job.payload
    if wanted.recipe is not None and wanted.recipe not in RECIPES:
        # A newer API knows it, and so will a newer worker: better one job waits than thousands.
        raise Unavailable("unknown_recipe", failure_sentence("unavailable"), wanted.recipe)
    walk = Walk.of(job.cursor) or await begin(job, wanted)
    over = False
    while not over:
        with job.tools.metrics.query("submit_page"):
            async with acquire(job.tools.pool) as connection:
                page = await submit_page(connection, job.claim, job.hold, wanted, walk)
        job.tools.doorbell.ring(page.rings)
        walk, over = page.walk, page.over
        if page.cancelled:  # which the attempt hears of, and is stopped by, here
            await job.progress(walk.seen, walk.total, walk.cursor)
    return Completed(result={"submitted": walk.submitted, "skipped": walk.skipped})


async def begin(job: JobContext, wanted: ReprocessImages) -> Walk:
    """At the newest image."""
    with job.tools.metrics.query("count_set"):
        async with acquire(job.tools.pool) as connection:
            return Walk(total=await count_set(connection, job.claim.tenant_id, wanted))


HANDLER: Final = Handler(kind=BUILT_IN["reprocess_images"], run=run)
