"""What third parties might install as handlers, by the entry points of a test."""

from typing import Final

from imagefleet.jobs.kinds import BUILT_IN, JobKind, Noop
from imagefleet.jobs.lifecycle import Completed
from imagefleet.worker.handling import Handler, JobContext
from tests.support.bench import done
from tests.support.children import echo, segfault, task

EXTRA: Final = JobKind(name="extra", payload=Noop)
ISOLATED: Final = (task(segfault), task(echo))


async def crash_once(job: JobContext) -> Completed:
    if job.attempt == 1:
        await job.run_isolated(task(segfault), {})
    return Completed(result=await job.run_isolated(task(echo), {"hello": "child"}))


async def crash(job: JobContext) -> Completed:
    return Completed(result=await job.run_isolated(task(segfault), {}))


HANDLER: Final = Handler(kind=EXTRA, run=done, isolated=ISOLATED)
CRASHING: Final = Handler(kind=EXTRA, run=crash_once, isolated=ISOLATED)
FATAL: Final = Handler(kind=EXTRA, run=crash, isolated=ISOLATED)
TAKEN: Final = Handler(kind=BUILT_IN["noop"], run=done)
NO_HANDLER: Final = "handler"
