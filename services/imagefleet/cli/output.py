"""What verbs print: tables for people, JSON for scripts, and codes for the shell."""

import asyncio
import sys
from collections.abc import Coroutine, Mapping, Sequence
from enum import IntEnum
from typing import Annotated, Final, TypeVar

import orjson
import typer
from rich.console import Console
from rich.table import Table

from imagefleet.errors import FleetError, Misconfigured, RequestRejected, Unavailable

Result = TypeVar("Result")

STYLES: Final[Mapping[str, str]] = {
    "completed": "green",
    "ready": "green",
    "ok": "green",
    "failed": "red",
    "failed_retryable": "yellow",
    "processing": "cyan",
}

UNFOLDED: Final = 10_000  # columns

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")]


class ExitCode(IntEnum):
    """What a verb tells the shell."""

    DONE = 0
    FAILED = 1
    """It was done, and something it was about did not work: a job, a check."""
    USAGE = 2
    """The command or the configuration cannot be used."""
    REFUSED = 3
    """The API said no."""
    UNAVAILABLE = 4
    """Something did not answer, or not in time; the same command may work later."""


def exit_code_of(error: FleetError) -> ExitCode:
    """The code for an error that ended a verb."""
    match error:
        case Misconfigured():
            return ExitCode.USAGE
        case RequestRejected():
            return ExitCode.REFUSED
        case Unavailable():
            return ExitCode.UNAVAILABLE
        case _:
            return ExitCode.FAILED


def told(error: FleetError) -> str:
    """The sentence for people; what is misconfigured is said by the detail alone."""
    if isinstance(error, Misconfigured) and error.detail:
        return error.detail
    return f"{error.public_message} ({error.detail})" if error.detail else error.public_message


def complain(sentence: str) -> None:
    """Say on the standard error why it did not work."""
    sys.stderr.write(f"imagefleet: {sentence}\n")


def finish(code: ExitCode) -> None:
    """End the verb with this code."""
    if code is not ExitCode.DONE:
        raise typer.Exit(code)


def run_async(work: Coroutine[object, object, Result]) -> Result:
    """Run one verb; of errors of several parts the first is the one to tell."""
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
        raise first from errors


def print_json(document: object) -> None:
    """One JSON document on the standard output."""
    sys.stdout.write(orjson.dumps(document, str, orjson.OPT_INDENT_2).decode() + "\n")


def print_json_line(document: object) -> None:
    """One of many documents, each on a line of its own, at once."""
    sys.stdout.write(orjson.dumps(document).decode() + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table that fits the terminal; where there is none, no cell is folded."""
    console = results()
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    console.print(table)


def show_document(document: Mapping[str, object], *, as_json: bool) -> None:
    """One thing: as it was answered, or a line for each of its fields."""
    if as_json:
        print_json(document)
        return
    rows = [
        (name, orjson.dumps(value).decode() if isinstance(value, dict | list) else value)
        for name, value in document.items()
        if value is not None
    ]
    print_table(("", ""), rows)


def results() -> Console:
    """Where what was asked for goes."""
    width = None if sys.stdout.isatty() else UNFOLDED
    return Console(file=sys.stdout, highlight=False, width=width)


def cell(value: object) -> str:
    """A value as it stands in a table; states have a colour."""
    text = "" if value is None else str(value)
    style = STYLES.get(text)
    escaped = text.replace("[", r"\[")
    return f"[{style}]{escaped}[/]" if style else escaped


def messages() -> Console:
    """Where bars and remarks go."""
    return Console(file=sys.stderr, highlight=False)
