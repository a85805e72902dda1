"""What the job types `failing` and `guarded` do in a worker."""

import asyncio
from typing import Final

from imagefleet.errors import InputRejected, Unavailable
from imagefleet.jobs.lifecycle import Completed
from imagefleet.worker.handling import Handler, JobContext
from tests.faults.brought.failing_kind import FAILING, GUARDED, LEANING, Failing


async def fail_or_not(job: JobContext) -> Completed:
    wanted: Failing = job.payload
    await asyncio.sleep(wanted.milliseconds / 1000)
    if wanted.permanent:
        code = "made_to_fail"
        raise InputRejected(code, "This job was made to fail.")
    if job.attempt <= wanted.times:
        if wanted.by == "unavailable":
            code = "unavailable"
            raise Unavailable(code, "Nobody is there.")
        raise ZeroDivisionError
    return Completed()


async def lean(job: JobContext) -> Completed:
    if job.claim.claim_no <= job.payload.times:
        code = "crutch_away"
        raise Unavailable(code, "There is no crutch.")
    return Completed()


LEANING_ON: Final = Handler(kind=LEANING, run=lean)
HANDLER: Final = Handler(kind=FAILING, run=fail_or_not)
GUARDING: Final = Handler(kind=GUARDED, run=fail_or_not)
