"""replay_jobs: replays what failed, page by page, at a pace; each failure once.

A page of replays and the cursor behind it are one transaction that the claim fences, so a later
attempt goes on behind the last page that was committed. Nothing is rung here: a replay takes its
turn like whatever else waits.
"""

from asyncio import sleep
from datetime import timedelta
from time import monotonic
from typing import Final

from imagefleet.jobs.bulk import ReplayWalk
from imagefleet.jobs.kinds import BUILT_IN, ReplayJobs
from imagefleet.jobs.lifecycle import Completed
from imagefleet.store.letters.walks import PAGE, begin_replays, replay_next
from imagefleet.worker.handling import Handler, JobContext, Postponed

ENOUGH: Final = 60  # seconds; with less the rest is for another attempt


async def run(job: JobContext) -> Completed:
    """Walk the letters; done when each of them has an outcome, which are counted."""
    wanted: ReplayJobs = job.payload
    walk = ReplayWalk.of(job.cursor) or await begin(job, wanted)
    size = min(PAGE, wanted.rate)
    while True:
        if job.seconds_left < ENOUGH:
            raise Postponed("deadline", timedelta())
        begun = monotonic()
        async with job.database("replay_next") as connection:
            page = await replay_next(
                connection, job.claim, job.renewal, wanted, walk, BUILT_IN, size
            )
        walk = page.walk
        if page.cancelled:  # which the attempt hears of, and is stopped by, here
            await job.progress(walk.seen, walk.total, walk.cursor)
        if page.over:
            return Completed(result=walk.outcomes)
        await sleep(max(0.0, size / wanted.rate - (monotonic() - begun)))


async def begin(job: JobContext, wanted: ReplayJobs) -> ReplayWalk:
    """At the oldest letter."""
    async with job.database("begin_replays") as connection:
        return await begin_replays(connection, wanted)


HANDLER: Final = Handler(kind=BUILT_IN["replay_jobs"], run=run)
