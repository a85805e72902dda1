"""The built-in job types, one small file each; others come by an entry point."""

from importlib.metadata import entry_points
from typing import Final

from imagefleet.errors import Misconfigured
from imagefleet.worker.handlers import cancel_job, noop, process_image
from imagefleet.worker.handling import Handler, Handlers

BUILT_IN: Final = (process_image.HANDLER, cancel_job.HANDLER, noop.HANDLER)
GROUP: Final = "imagefleet.handlers"


def load_handlers(only: tuple[str, ...] = ()) -> Handlers:
    """Every handler this worker can run: built in and installed, or `only` those that are named."""
    handlers = {handler.kind.name: handler for handler in BUILT_IN}
    for point in entry_points(group=GROUP):
        handler = point.load()
        if not isinstance(handler, Handler) or handler.kind.name in handlers:
            msg = f"entry point {point.name} ({point.value}) is not a new handler"
            raise Misconfigured(msg)
        handlers[handler.kind.name] = handler
    unknown = sorted(set(only) - handlers.keys())
    if unknown:
        msg = (
            f"WORKER_JOB_TYPES names {', '.join(unknown)}; known are {', '.join(sorted(handlers))}"
        )
        raise Misconfigured(msg)
    return {name: handler for name, handler in handlers.items() if not only or name in only}
