"""The start of a process: its settings, its log, and what it runs until a signal."""

import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TypeVar

import structlog

from imagefleet.errors import FleetError, Misconfigured
from imagefleet.runtime import Drain, run_until_signalled
from imagefleet.settings import (
    ApiSettings,
    ConsoleSettings,
    MaintenanceSettings,
    WorkerSettings,
    load,
    masked,
)
from imagefleet.telemetry.logs import configure

log = structlog.get_logger()

Loaded = TypeVar("Loaded", ApiSettings, WorkerSettings, MaintenanceSettings, ConsoleSettings)


def start(process: str) -> int:
    """Read the settings, set up the logs, run until a signal."""
    try:
        return run_until_signalled(_composed(process))
    except (FleetError, ExceptionGroup) as raised:
        error = _expected(raised)
        if error is None:
            raise
    if isinstance(error, Misconfigured):
        sys.stderr.write(f"imagefleet {process} does not start: {error.detail}\n")
        return 2
    log.error("process.failed", code=error.code, detail=error.detail)
    return 1


def _expected(error: Exception) -> FleetError | None:
    """The one error of ours behind it: whatever was open at the time has wrapped it in groups."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        (error,) = error.exceptions
    return error if isinstance(error, FleetError) else None


def _composed(process: str) -> Callable[[Drain], Coroutine[object, object, None]]:
    """The process with its settings, imported now: each container carries only its own."""
    match process:
        case "api":
            from imagefleet.api.main import main as api  # noqa: PLC0415 - see above

            return partial(api, _settings(ApiSettings, process))
        case "worker":
            from imagefleet.worker.main import main as worker  # noqa: PLC0415 - see above

            return partial(worker, _settings(WorkerSettings, process))
        case "console":
            from imagefleet.console.main import main as console  # noqa: PLC0415 - see above

            return partial(console, _settings(ConsoleSettings, process))
        case _:
            from imagefleet.maintenance.main import main as maintenance  # noqa: PLC0415 - see above

            return partial(maintenance, _settings(MaintenanceSettings, process))


def _settings(wanted: type[Loaded], process: str) -> Loaded:
    settings = load(wanted)
    configure(settings.telemetry.log_format, settings.telemetry.log_level, process=process)
    log.info("process.started", settings=masked(settings))
    return settings
