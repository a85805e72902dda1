"""What the workers do for them."""

import os
from typing import Final

from fleet_probe_types import ORPHAN, PROBE  # type: ignore[import-not-found]

from imagefleet.worker.handling import Completed, Handler, JobContext

TASK: Final = "fleet_probe_task:try_everything"


async def probe(job: JobContext) -> Completed:
    tried = await job.run_isolated(TASK, {"told": "hello"})
    return Completed(result={"worker": os.getpid(), "child": dict(tried)})


async def nothing(_job: JobContext) -> Completed:
    return Completed()


PROBING: Final = Handler(kind=PROBE, run=probe, isolated=(TASK,))
ADOPTED: Final = Handler(kind=ORPHAN, run=nothing)
