"""Options that several verbs take: each has one meaning, wherever it is."""

from pathlib import Path
from typing import Annotated

import typer

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
ImageId = Annotated[str, typer.Argument(metavar="IMAGE", help="The image's id.")]

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]

_REASON = typer.Option("--reason", help="Why; `imagefleet audit` tells it.")
Reason = Annotated[str, _REASON]
ReasonIfAny = Annotated[str | None, _REASON]

Limit = Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")]
Cursor = Annotated[str | None, typer.Option(help="Go on behind the last list.")]
All = Annotated[bool, typer.Option("--all", help="All there are, instead of some.")]
History = Annotated[bool, typer.Option("--history", help="Also what is over by now.")]

OfType = Annotated[str | None, typer.Option("--type", help="Of this type.")]
OfLane = Annotated[
    str | None, typer.Option("--lane", help="Of this lane: fast, general or quarantine.")
]
_TENANT = typer.Option("--tenant", help="The tenant, by its name.")
Tenant = Annotated[str, _TENANT]
OfTenant = Annotated[str | None, _TENANT]
OfTarget = Annotated[
    str | None, typer.Option("--target", help="Of this target of a tenant, such as image:ID.")
]
OfReference = Annotated[str | None, typer.Option("--reference", help="Of this reference.")]
Correlation = Annotated[
    str | None, typer.Option("--correlation-id", help="What belongs together has the same.")
]
Parent = Annotated[str | None, typer.Option("--parent", metavar="JOB", help="The parent's id.")]
Recipe = Annotated[
    str | None, typer.Option("--recipe", help="The recipe, which says what variants are made.")
]
RefuseNew = Annotated[bool, typer.Option("--refuse-new", help="Refuse new ones as well.")]

Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is done.")]
Within = Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait at most.")]

_STATE_DIR = typer.Option("--state-dir", metavar="FOLDER", help="The folder of `imagefleet up`.")
StateDir = Annotated[Path, _STATE_DIR]
StateDirIfAny = Annotated[Path | None, _STATE_DIR]
