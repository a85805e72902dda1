"""The built-in job types, one small file each; others come by an entry point."""

from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from imagefleet.errors import Misconfigured
from imagefleet.jobs.kinds import Kinds
from imagefleet.jobs.retry import RetryPolicy
from imagefleet.worker.handlers import cancel_job, noop, process_image
from imagefleet.worker.handling import Handler, Handlers

BUILT_IN: Final = (process_image.HANDLER, cancel_job.HANDLER, noop.HANDLER)
GROUP: Final = "imagefleet.handlers"


def load_handlers(only: tuple[str, ...] = (), *, standard_retry: RetryPolicy) -> Handlers:
    """Every handler this worker can run: built in and installed, or `only` those that are named.

    Types that name no retry policy of their own get the standard one.
    """
    handlers = {handler.kind.name: handler for handler in BUILT_IN}
    for point in entry_points(group=GROUP):
        handler = _installed(point)
        if handler.kind.name in handlers:
            msg = f"entry point {point.name}: job type {handler.kind.name} is there already"
            raise Misconfigured(msg)
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


def _installed(point: EntryPoint) -> Handler:
    try:
        handler = point.load()
    except Exception as error:
        msg = f"entry point {point.name} ({point.value}) cannot be loaded: {error!r}"
        raise Misconfigured(msg) from error
    if not isinstance(handler, Handler):
        msg = f"entry point {point.name} ({point.value}) is a {type(handler).__name__}, no Handler"
        raise Misconfigured(msg)
    return handler
