"""The text of docs/settings.md: every variable, and what is no variable."""

from typing import Final

from imagefleet.settings.live import live_reference
from imagefleet.settings.roles import Roles
from imagefleet.settings.slices import (
    Api,
    Aws,
    Client,
    Console,
    Database,
    Maintenance,
    Person,
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
    Person,
    Roles,
)


FOREWORD: Final = """\
# Settings

Everything is a variable of the environment. `imagefleet settings` prints this page.

A process names every fault at once, and does not start with one (exit code 2).
An empty variable is an unset one.
Any of them may come from a file, as secrets should: the same name with `_FILE` behind it and the
path of the file, instead of the variable itself.

## What is no variable

What is turned while everything runs: [live settings](#live-settings), below.
How long finished jobs, their attempts and their idempotency keys are kept is one of them,
`retention.jobs_days`: 30 days unless it is turned. Less than 30 days is refused: so long a key is
promised to hold.

```sh
imagefleet settings live set retention.jobs_days 90 --reason "questions come late"
```
"""


def reference() -> str:
    """Return the page: after the foreword a section for each slice, with a row a variable."""
    return "\n".join((FOREWORD, *(_section(part) for part in SLICES), *live_reference()))


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
