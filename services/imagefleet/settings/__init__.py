"""Every variable of the environment, and the only place that reads them.

A slice is what one part needs (`Database`, `Worker`, ...); a process is a few slices. `load` reads
all of them from a mapping and reports every fault at once, naming variable, expected form and given
value. Secrets may come from a file instead: the same name with `_FILE` behind it. An empty variable
counts as unset. `masked` is what may be logged, `reference` what the documentation shows. What
operators turn while everything runs is declared in `live`, and `in_force` says what holds then.
Nothing here asks anybody: who follows Postgres is `imagefleet.live`.

Of pydantic-settings only the model is used, and this was judged: its own sources take `_FILE` from
no variable (a folder of secrets is another thing), tell faults by field and not by the variable's
name and form, and read the environment of whoever makes a slice in a test.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource

from imagefleet.errors import Misconfigured
from imagefleet.settings.slices import (
    Api,
    Aws,
    Client,
    Database,
    Maintenance,
    Person,
    Retry,
    Roles,
    Slice,
    Telemetry,
    Worker,
)
from imagefleet.settings.variables import Variable, reference, variables, written

__all__ = [
    "Api",
    "ApiSettings",
    "Aws",
    "Client",
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
    "slices_of",
]


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


def slices_of(settings: type[BaseModel]) -> dict[str, type[Slice]]:
    """Return the slices of a process by attribute; a slice alone has no attribute."""
    if issubclass(settings, Slice):
        return {"": settings}
    return {
        name: field.annotation
        for name, field in settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Slice)
    }


def masked(settings: BaseModel) -> dict[str, str]:
    """Return what is set, by variable, fit for the line a process writes when it starts."""
    shown: dict[str, str] = {}
    for name, part in slices_of(type(settings)).items():
        made = getattr(settings, name) if name else settings
        for variable in variables(part):
            value = getattr(made, variable.attribute)
            shown[variable.name] = "" if value is None else written(value)
    return shown


class FromMapping(PydanticBaseSettingsSource):
    """The values of one slice's variables, and what was wrong with reading them."""

    def __init__(self, settings_cls: type[Slice], given: Mapping[str, str]) -> None:
        """Read from this mapping and from the files it names."""
        super().__init__(settings_cls)
        self.variables = {variable.attribute: variable for variable in variables(settings_cls)}
        self.given = given
        self.faults: dict[str, str] = {}

    def get_field_value(
        self,
        field: FieldInfo,  # noqa: ARG002 - of the base class
        field_name: str,
    ) -> tuple[str | None, str, bool]:
        """Return the value of one field, or None where nothing is set."""
        variable = self.variables[field_name]
        set_names = (name for name in variable.names if self.given.get(name))
        name = next(set_names, None)
        value = self.given[name] if name else None
        path = self.given.get(f"{variable.name}_FILE")
        if path:
            value = self._read_file(variable, path, given_too=value is not None)
        return value, variable.name, False

    def __call__(self) -> dict[str, object]:
        """Return every value that is set, by the variable's name."""
        values: dict[str, object] = {}
        for attribute, field in self.settings_cls.model_fields.items():
            value, name, _ = self.get_field_value(field, attribute)
            if value is not None:
                values[name] = value
        return values

    def _read_file(self, variable: Variable, path: str, *, given_too: bool) -> str | None:
        name = f"{variable.name}_FILE"
        if given_too:
            self.faults[variable.name] = f"{variable.name}: also given as {name}; set one of them"
            return None
        try:
            text = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "not text"
            self.faults[variable.name] = f"{name}: cannot read {path!r}: {why}"
            return None
        if not text:
            self.faults[variable.name] = f"{name}: {path!r} is empty"
        return text or None


def _load(part: type[Slice], given: Mapping[str, str], faults: list[str]) -> Slice | None:
    source = FromMapping(part, given)
    values = source()
    faults.extend(source.faults.values())
    try:
        return part.model_validate(values)
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_context=False, include_input=False):
            name = str(fault["loc"][0]) if fault["loc"] else None
            if name is None:
                faults.append(fault["msg"].removeprefix("Value error, "))
            elif name not in source.faults:
                faults.append(_describe(source, name, values.get(name)))
        return None


def _describe(source: FromMapping, name: str, value: object) -> str:
    variable = next(known for known in source.variables.values() if known.name == name)
    if value is None:
        or_file = f", or {name}_FILE with the path of a file" if variable.secret else ""
        return f"{name}: not set; expected {variable.form}{or_file}"
    return f"{name}: expected {variable.form}; given {variable.shown(str(value))}"
