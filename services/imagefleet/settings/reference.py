"""The table of all variables, as docs/settings.md shows it."""

from imagefleet.settings.roles import Roles
from imagefleet.settings.slices import (
    Api,
    Aws,
    Client,
    Console,
    Database,
    Maintenance,
    Retry,
    Slice,
    Telemetry,
    Worker,
)
from imagefleet.settings.variables import Variable, variables

SLICES: tuple[type[Slice], ...] = (
    Database,
    Aws,
    Api,
    Console,
    Worker,
    Retry,
    Maintenance,
    Telemetry,
    Client,
    Roles,
)


def reference() -> str:
    """Return a Markdown section for each slice: what it is, and a row for each variable."""
    return "\n".join(_section(part) for part in SLICES)


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
