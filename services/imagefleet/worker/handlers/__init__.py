"""The built-in job types, one module a work; others come by an entry point.

Each is a function of the context that `worker.handling` gives it, its one door to Postgres, S3 and
renderings. Their promise is that being stopped anywhere and run again from the cursor does no harm.
"""

from dataclasses import replace
from importlib.metadata import entry_points
from typing import Final

from imagefleet.errors import Misconfigured
from imagefleet.extensions import HANDLERS, load_point, taken
from imagefleet.jobs.kinds import Kinds
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.worker.handlers import (
    cancelling,
    delete_image,
    noop,
    preview_original,
    process_image,
    replay_jobs,
    reprocess_images,
)
from imagefleet.worker.handling import Handler, Handlers

BUILT_IN: Final = (
    process_image.HANDLER,
    delete_image.HANDLER,
    cancelling.CANCEL_JOB,
    cancelling.CANCEL_JOBS,
    preview_original.HANDLER,
    replay_jobs.HANDLER,
    noop.HANDLER,
    reprocess_images.HANDLER,
)


def load_handlers(only: tuple[str, ...] = (), *, standard_retry: RetryPolicy) -> Handlers:
    """Every handler this worker can run: built in and installed, or `only` those that are named.

    Types that name no retry policy of their own get the standard one.
    """
    handlers = {handler.kind.name: handler for handler in BUILT_IN}
    for point in entry_points(group=HANDLERS):
        handler = load_point(point, Handler)
        if handler.kind.name in handlers:
            raise taken(point, handler.kind.name)
        handlers[handler.kind.name] = handler
    unknown = sorted(set(only) - handlers.keys())
    if unknown:
        known = ", ".join(sorted(handlers))
        msg = f"WORKER_JOB_TYPES names {', '.join(unknown)}; known are {known}"
        raise Misconfigured(msg)
    kinds = Kinds(handler.kind for handler in handlers.values())
    return {
        name: replace(handlers[name], kind=kind)
        for name, kind in kinds.with_standard_retry(standard_retry).items()
        if not only or name in only
    }
