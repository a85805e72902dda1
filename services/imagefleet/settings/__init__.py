"""Every variable of the environment, and the only place that reads them.

A slice is what one part needs (`Database`, `Worker`, ...); a process is a few slices. `load` reads
all of them from a mapping and reports every fault at once, naming variable, expected form and given
value. Secrets may come from a file instead: the same name with `_FILE` behind it. An empty variable
counts as unset. `masked` is what may be logged, `reference` what the documentation shows. What
operators turn while everything runs is declared in `live`, and `in_force` says what holds then.
Nothing here asks anybody: who follows Postgres is `imagefleet.live`.
"""

from pydantic import BaseModel, ConfigDict

from imagefleet.settings.loading import load, masked
from imagefleet.settings.slices import (
    Api,
    Aws,
    Client,
    Console,
    Database,
    Maintenance,
    Person,
    Retry,
    Roles,
    Slice,
    Telemetry,
    Worker,
)
from imagefleet.settings.variables import reference


class Process(BaseModel):
    """The slices of one process."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Reaching(Process):
    """What a process needs that jobs go through, beside its own."""

    database: Database
    aws: Aws


class ApiSettings(Reaching):
    """What the API needs."""

    api: Api
    retry: Retry
    telemetry: Telemetry


class WorkerSettings(Reaching):
    """What a worker needs."""

    worker: Worker
    retry: Retry
    telemetry: Telemetry


class MaintenanceSettings(Reaching):
    """What the maintenance process needs."""

    maintenance: Maintenance
    retry: Retry
    telemetry: Telemetry


class ConsoleSettings(Process):
    """What the console needs."""

    database: Database
    console: Console
    telemetry: Telemetry


class AdminSettings(Process):
    """What the verbs that touch the database themselves need: migrate, keys, doctor."""

    database: Database
    telemetry: Telemetry


__all__ = [
    "AdminSettings",
    "Api",
    "ApiSettings",
    "Aws",
    "Client",
    "Console",
    "ConsoleSettings",
    "Database",
    "Maintenance",
    "MaintenanceSettings",
    "Person",
    "Process",
    "Reaching",
    "Retry",
    "Roles",
    "Slice",
    "Telemetry",
    "Worker",
    "WorkerSettings",
    "load",
    "masked",
    "reference",
]
