"""noop: waits for a while and succeeds, to see whether the fleet is alive and how fast it is."""

import asyncio
from typing import Final

from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.lifecycle import Completed
from imagefleet.worker.handling import Handler, JobContext


async def run(job: JobContext) -> Completed:
    """Wait."""
    await asyncio.sleep(job.payload.milliseconds / 1000)
    return Completed()


HANDLER: Final = Handler(kind=BUILT_IN["noop"], run=run)
