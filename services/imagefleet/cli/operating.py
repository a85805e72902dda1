"""What operators' verbs share: asking the API, and asking the operator before much is changed."""

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import typer

from imagefleet.cli.connection import open_api
from imagefleet.cli.output import ExitCode, agreed, complain, run_async
from imagefleet.client.api import Document
from imagefleet.errors import Misconfigured

Reason = Annotated[str, typer.Option("--reason", help="Why; `imagefleet audit` tells it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def ask(
    method: str,
    path: str,
    parameters: Mapping[str, str | None] = {},
    document: object = None,
) -> Document:
    """One request, and its answer."""

    async def asking() -> Document:
        async with open_api() as client:
            return await client.ask(method, path, parameters, document)

    return run_async(asking())


def confirm(question: str, *, yes: bool) -> None:
    """Return if the operator agrees; end the verb if not, or if there is nobody to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        detail = f"{question} Say --yes where nobody can be asked."
        raise Misconfigured(detail)
    if not agreed(question):
        complain("nothing was done")
        raise typer.Exit(ExitCode.FAILED)


def filled(**fields: object) -> dict[str, object]:
    """Only what has a value."""
    return {name: value for name, value in fields.items() if value is not None}


def moment(told: str | datetime | None) -> str | None:
    """A time of the API as tables show it."""
    when = datetime.fromisoformat(told) if isinstance(told, str) else told
    return f"{when:%Y-%m-%d %H:%M:%S}" if when else None


def tell_of_more(page: Document) -> None:
    """Say how to go on behind a page, if there is more."""
    if page.get("nextCursor"):
        complain(f"there are more: --cursor {page['nextCursor']}")
