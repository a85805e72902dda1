"""Every variable of the environment, and the only place that reads them.

One of `slices` is what a part needs (`Database`, `Worker`, ...); a process is a few slices. `load`
reads them from a mapping, as `values` says, and reports every fault at once, naming variable,
expected form and given value. Secrets may come from a file instead: the name with `_FILE` behind
it. An empty variable counts as unset. `masked` is what may be logged, `variables` the page of all.
What operators turn while everything runs is declared in `live`; `in_force` says what holds then.
Nothing here asks anybody: who follows Postgres is `imagefleet.live`.

Of pydantic-settings only the model is used: its own sources take `_FILE` from no variable, tell
faults by field and not by the variable's name and form, and read the environment of every test.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from imagefleet.errors import Misconfigured
from imagefleet.settings.slices import (
    Api,
    Aws,
    Client,
    Console,
    Database,
    Maintenance,
    Person,
    Pictures,
    Recipes,
    Retry,
    Roles,
    Slice,
    Telemetry,
    Worker,
)
from imagefleet.settings.variables import Variable, masked, reference, slices_of, variables

__all__ = [
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
    "Pictures",
    "Recipes",
    "Retry",
    "Roles",
    "Slice",
    "Telemetry",
    "Worker",
    "WorkerSettings",
    "load",
    "masked",
    "reference",
    "slices_of",
]


class Process(BaseModel):
    """What a process needs that jobs go through, beside its own slices."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    database: Database
    aws: Aws


class ApiSettings(Process):
    api: Api
    pictures: Pictures
    recipes: Recipes
    retry: Retry
    telemetry: Telemetry


class WorkerSettings(Process):
    worker: Worker
    pictures: Pictures
    recipes: Recipes
    retry: Retry
    telemetry: Telemetry


class MaintenanceSettings(Process):
    maintenance: Maintenance
    retry: Retry
    telemetry: Telemetry


class ConsoleSettings(BaseModel):
    """What the console needs: no job goes through it, and Postgres and AWS are not its business."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    console: Console
    telemetry: Telemetry


Loaded = TypeVar("Loaded", bound=BaseModel)


def load(settings: type[Loaded], environment: Mapping[str, str] | None = None) -> Loaded:
    """Read a slice, or a process's slices, from the environment; raise all faults as one."""
    given = os.environ if environment is None else environment  # noqa: TID251 - the one reader
    faults: list[str] = []
    slices = {name: _load(part, given, faults) for name, part in slices_of(settings).items()}
    if faults:
        # A variable that two slices share has its fault in both.
        lines = "\n".join(f"  {fault}" for fault in dict.fromkeys(faults))
        msg = f"these settings cannot be used:\n{lines}"
        raise Misconfigured(msg)
    return settings.model_validate(slices[""] if issubclass(settings, Slice) else slices)


def _load(part: type[Slice], given: Mapping[str, str], faults: list[str]) -> Slice | None:
    known = {variable.name: variable for variable in variables(part)}
    values: dict[str, str | None] = {}
    for name, variable in known.items():
        try:
            values[name] = _value_of(variable, given)
        except ValueError as error:
            faults.append(str(error))
    try:
        return part.model_validate({name: value for name, value in values.items() if value})
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_context=False, include_input=False):
            if not fault["loc"]:
                faults.append(fault["msg"].removeprefix("Value error, "))
                continue
            name = str(fault["loc"][0])
            if name in values:  # of others it is said already why they cannot be read
                faults.append(known[name].fault(values[name]))
        return None


def _value_of(variable: Variable, given: Mapping[str, str]) -> str | None:
    """What a variable has, or the file that is named in its place; ValueError says why neither."""
    value = next((given[name] for name in variable.names if given.get(name)), None)
    in_file = f"{variable.name}_FILE"
    path = given.get(in_file)
    if not path:
        return value
    if value is not None:
        msg = f"{variable.name}: also given as {in_file}; set one of them"
        raise ValueError(msg)
    try:
        text = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        msg = f"{in_file}: cannot read {path!r}: {why}"
        raise ValueError(msg) from error
    if not text:
        msg = f"{in_file}: {path!r} is empty"
        raise ValueError(msg)
    return text
