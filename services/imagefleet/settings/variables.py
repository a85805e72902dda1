"""What is known about each variable, and the page of all of them, docs/settings.md."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final, get_args, get_origin

import annotated_types
from pydantic import AliasChoices, BaseModel, SecretStr
from pydantic.fields import FieldInfo

from imagefleet.settings.live import DECLARED
from imagefleet.settings.slices import Slice
from imagefleet.settings.values import Form

_USERINFO: Final = re.compile(r"//[^/@]*@")
_LONGEST_SHOWN: Final = 120  # a whole certificate in the wrong variable helps nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable of a slice."""

    attribute: str
    names: tuple[str, ...]
    """The first is the one we use; the others are read where it is unset."""
    secret: bool
    form: str
    default: str | None
    """As it would be written; None where the variable must be set or has nothing by default."""
    required: bool
    description: str

    @property
    def name(self) -> str:
        """Return the name to show."""
        return self.names[0]

    def shown(self, value: str) -> str:
        """Return a given value fit for a log line or an error message."""
        if self.secret:
            return f"a secret of {len(value)} characters"
        return repr(without_password(value)[:_LONGEST_SHOWN])

    def fault(self, value: str | None) -> str:
        """Say what was expected, beside the value that cannot be used or that there is none."""
        if value is not None:
            return f"{self.name}: expected {self.form}; given {self.shown(value)}"
        or_file = f", or {self.name}_FILE with the path of a file" if self.secret else ""
        return f"{self.name}: not set; expected {self.form}{or_file}"


def variables(settings: type[Slice]) -> Iterator[Variable]:
    """Read off the fields of a slice what there is to say about its variables."""
    for attribute, field in settings.model_fields.items():
        alias = field.validation_alias
        names = alias.choices if isinstance(alias, AliasChoices) else [alias]
        required = field.is_required()
        yield Variable(
            attribute=attribute,
            names=tuple(str(name) for name in names),
            secret=SecretStr in _types(field.annotation),
            form=_form(field),
            default=None if required or field.default is None else written(field.default),
            required=required,
            description=field.description or "",
        )


def is_named(part: type[Slice]) -> bool:
    """Whether the environment says anything of this slice."""
    names = (name for variable in variables(part) for name in variable.names)
    given = os.environ  # noqa: TID251 - only whether it does; what it says is read by `load`
    return any(given.get(name) or given.get(f"{name}_FILE") for name in names)


def names_of(settings: type[BaseModel]) -> frozenset[str]:
    """Return the variables of a process or a slice, and those that name a file in their place."""
    known = {
        name for part in slices_of(settings).values() for of in variables(part) for name in of.names
    }
    return frozenset(known | {f"{name}_FILE" for name in known})


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


def written(value: object) -> str:
    """Write a value the way a variable would."""
    match value:
        case bool():
            return str(value).lower()
        case timedelta():
            return f"{value.total_seconds():g}"
        case dict():
            return json.dumps({name: _written_under(inner) for name, inner in value.items()})
        case tuple():
            return ",".join(str(item) for item in value)
        case SecretStr():
            return _without_secret(value.get_secret_value())
        case str():
            return without_password(value)
        case _:
            return str(value)


def _written_under(value: object) -> object:
    """What a name stands for in a variable that is JSON."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    return written(value)


def without_password(url: str) -> str:
    """Hide who logs in and how, in whatever looks like an address."""
    return _USERINFO.sub("//***@", url)


def _without_secret(secret: str) -> str:
    """Keep of a secret address what tells two installations apart: the role, host and database."""
    address = re.fullmatch(r"(\w+://)([^:/@]*)(?::[^/@]*)?@([^/?@]*/[^/?@]*)(?:\?.*)?", secret)
    return "".join((address[1], address[2], ":***@", address[3])) if address else "***"


def _types(annotation: object) -> set[object]:
    """Flatten `X | None` and `Annotated[X, ...]` to the types inside."""
    return {annotation}.union(*(_types(inner) for inner in get_args(annotation)[:2]))


def _metadata(field: FieldInfo) -> Iterator[object]:
    yield from field.metadata
    for inner in get_args(field.annotation):  # of X | None, where X is Annotated
        if get_origin(inner) is Annotated:
            yield from inner.__metadata__


def _form(field: FieldInfo) -> str:
    text, low, high = "", "", ""
    for item in _metadata(field):
        match item:
            case Form():
                text = item.text
            case annotated_types.Ge(ge):
                low = f"from {written(ge)}"
            case annotated_types.Gt(gt):
                low = f"above {written(gt)} and up"
            case annotated_types.Le(le):
                high = f"to {written(le)}"
            case _:
                pass
    return " ".join(part for part in (f"{text}," if low else text, low, high) if part)


SLICES: Final = tuple(
    part for part in Slice.__subclasses__() if part.__module__ == Slice.__module__
)


FOREWORD: Final = """\
# Settings

Everything is a variable of the environment. `imagefleet settings` prints this page.

A process names every fault at once, and does not start with one (exit code 2).
An empty variable is an unset one.
Any of them may come from a file, as secrets should: the same name with `_FILE` behind it and the
path of the file, instead of the variable itself.
`imagefleet up` gives its processes none of the environment around it: `--set NAME=VALUE` does.

## What is no variable

What is turned while everything runs: [live settings](#live-settings), below.
How long finished jobs, their attempts and their idempotency keys are kept is one of them,
`retention.jobs_days`: 30 days unless it is turned. Less than 30 days is refused: so long a key is
promised to hold.

```sh
imagefleet settings live set retention.jobs_days 90 --reason "questions come late"
```
"""

LIVE_FOREWORD: Final = """\
What an operator turns during an incident is no variable but a row in Postgres; the environment is
its default, and shown beside it, as the last process that started and has it said: a worker of one
lane says nothing of the others, and what no process has any more stays shown.
`imagefleet settings live set NAME VALUE --reason R` turns one,
`imagefleet settings live reset NAME --reason R` gives the default back, and
`imagefleet settings live list` shows all of them. Each change is in the audit. Every process looks
once a second, so it is in force within 5 s for whatever is decided from then on. A process that
cannot read keeps what it read last (`live_settings_age_seconds`).

`<service>` is that of a circuit breaker, `<policy>` a job type; `*` in the place of either is every
one that is named neither here nor by the environment, nor brings a policy of its own. `<lane>` is
fast, general or quarantine. Names that a release does not know, and values that it does not allow,
it ignores with a line in its log (`setting.ignored`). A rescued job is due within seconds whatever
its policy says.
"""


def reference() -> str:
    """Return the page: after the foreword a section for each slice, with a row a variable."""
    return "\n".join((FOREWORD, *(_section(part) for part in SLICES), *_live_reference()))


def _section(part: type[Slice]) -> str:
    rows = [
        f"## {part.__name__}",
        "",
        (part.__doc__ or "").strip(),
        "",
        "| variable | expected | default | meaning |",
        "|---|---|---|---|",
        *(_row(variable) for variable in variables(part)),
        "",
    ]
    return "\n".join(rows)


def _row(variable: Variable) -> str:
    names = [*variable.names, *([f"{variable.name}_FILE"] if variable.secret else [])]
    default = "must be set" if variable.required else variable.default or "unset"
    cells = (
        " or ".join(f"`{name}`" for name in names),
        variable.form,
        default,
        " ".join(variable.description.split()),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _live_reference() -> Iterator[str]:
    """Write the section of docs/settings.md: a row a setting."""
    yield "## Live settings"
    yield ""
    yield LIVE_FOREWORD
    yield "| setting | value | default | read by | meaning |"
    yield "|---|---|---|---|---|"
    for setting in DECLARED:
        is_variable = setting.default.isupper() and "," not in setting.default
        cells = (
            f"`{setting.name}`",
            setting.allowed,
            f"`{setting.default}`" if is_variable else setting.default,
            ", ".join(setting.read_by),
            setting.meaning,
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
