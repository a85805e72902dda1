"""What may be typed with more than one verb, declared once."""

from typing import Annotated, Final

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")]
Limit = Annotated[int, typer.Option(min=1, max=100, help="At most so many.")]
Cursor = Annotated[str | None, typer.Option(help="Go on behind the last list.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; `imagefleet audit` tells it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
ImageId = Annotated[str, typer.Argument(metavar="IMAGE", help="The image's id.")]
OfType = Annotated[str | None, typer.Option("--type", help="Only of this type.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")]

WITHIN: Final = 300  # seconds
WithinEach = Annotated[
    float, typer.Option(metavar="SECONDS", help="How long --wait waits for each.")
]
DRAINED_WITHIN: Final = 3600  # seconds
WaitDrained = Annotated[
    bool, typer.Option("--wait", help="Wait until nothing of it is processing.")
]
WithinSeconds = Annotated[float, typer.Option(help="How many seconds --wait waits.")]


def group(does: str) -> typer.Typer:
    """Verbs of one noun."""
    return typer.Typer(rich_markup_mode="markdown", no_args_is_help=True, help=does)
