"""reprocess_images: renders a set of images again, by a job for each of them.

It renders nothing itself. Page by page it submits the jobs that do and moves its cursor, in one
transaction that its claim fences; a later attempt goes on behind the last page that was committed.
It rings for none of them: all take their turn behind what is uploaded, whoever dispatches or not.
Its jobs count against the tenant's quota like any others: where there is no room for one it gives
itself back, uncharged, and comes again in a while. So it does, and holds no slot, between one share
of a set and the next where it was told a rate.
"""

import math
from datetime import timedelta
from time import monotonic
from typing import Final

from imagefleet.jobs.bulk import SetWalk
from imagefleet.jobs.kinds import BUILT_IN, ReprocessImages
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.limits import KEY_OPEN_JOBS
from imagefleet.store.images.reprocessing import PAGE, count_set, submit_page
from imagefleet.store.jobs.admissions import room_for_a_set
from imagefleet.worker.handling import Handler, JobContext, Postponed

ROOM_IS_GOOD_FOR: Final = 5.0  # seconds; the others that submit for this tenant are not seen
LOOK_AGAIN_IN: Final = timedelta(seconds=15)


async def run(job: JobContext) -> Completed:
    """SetWalk the set; done when every image of it has its job."""
    wanted: ReprocessImages = job.payload
    if wanted.recipe is not None:  # better one job waits for who knows it than thousands
        await job.recipe(wanted.recipe, (wanted.recipe_hashes or {}).get(wanted.recipe))
    walk = SetWalk.of(job.cursor) or await begin(job, wanted)
    share, lasts = share_of(wanted.rate)
    over, room, enough = False, TenantRoom(), walk.submitted + share
    while not over:
        if walk.submitted >= enough:
            raise Postponed("paced", lasts)
        most = int(min(PAGE, await room.left(job), enough - walk.submitted))
        async with job.database("submit_page") as connection:
            page = await submit_page(connection, job.claim, job.renewal, wanted, walk, most)
        room.take(page.walk.submitted - walk.submitted)
        walk, over = page.walk, page.over
        if page.cancelled:  # which the attempt hears of, and is stopped by, here
            await job.progress(walk.seen, walk.total, walk.cursor)
    return Completed(result={"submitted": walk.submitted, "skipped": walk.skipped})


def share_of(rate: float | None) -> tuple[float, timedelta]:
    """How many jobs an attempt may submit, one at least, and how long so many have to last."""
    if rate is None:
        return math.inf, timedelta()
    share = max(1, int(rate * LOOK_AGAIN_IN.total_seconds()))
    return share, timedelta(seconds=share / rate)


class TenantRoom:
    """How many more jobs the tenant may have open; counted again when half of it is used up."""

    def __init__(self) -> None:
        self._left = self._look_again_at = 0
        self._good_until = 0.0

    async def left(self, job: JobContext) -> int:
        """At least one; Postponed if there is none."""
        if self._left <= self._look_again_at or self._good_until < monotonic():
            async with job.database("room_for_a_set") as connection:
                self._left = await room_for_a_set(
                    connection, job.claim.tenant_id, job.job_id, job.limit(KEY_OPEN_JOBS)
                )
            self._look_again_at, self._good_until = self._left // 2, monotonic() + ROOM_IS_GOOD_FOR
        if self._left <= 0:
            raise Postponed("tenant_full", LOOK_AGAIN_IN)
        return self._left

    def take(self, jobs: int) -> None:
        self._left -= jobs


async def begin(job: JobContext, wanted: ReprocessImages) -> SetWalk:
    """At the newest image."""
    async with job.database("count_set") as connection:
        return SetWalk(total=await count_set(connection, job.claim.tenant_id, wanted))


HANDLER: Final = Handler(kind=BUILT_IN["reprocess_images"], run=run)
