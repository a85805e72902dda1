"""What verbs print: tables for people, JSON for scripts, and codes for the shell.

Nothing else prints. References, reasons, names of files and messages are written by tenants and
read in an operator's terminal: here they lose whatever steers it, and are never read as markup.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Annotated, Final, TypeVar

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from imagefleet.errors import FleetError, Misconfigured, RequestRejected, Unavailable
from imagefleet.telemetry.plain import Visible, plain

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


def _in_json(character: str) -> str:
    units = character.encode("utf-16-be")
    pairs = (units[at : at + 2].hex() for at in range(0, len(units), 2))
    return "".join(f"\\u{pair}" for pair in pairs)


_IN_JSON: Final = Visible(_in_json, kept="\n")  # a break in a string is escaped by then


def say(*lines: str) -> None:
    """Print what was asked for, a line each; none is an empty line."""
    sys.stdout.write("".join(plain(line) + "\n" for line in lines or ("",)))
    sys.stdout.flush()


def complain(*lines: str) -> None:
    """Say on the standard error why it did not work."""
    sys.stderr.write("imagefleet: " + "\n".join(plain(line) for line in lines) + "\n")
    sys.stderr.flush()


def agreed(question: str) -> bool:
    """Ask at the terminal."""
    return typer.confirm(plain(question), err=True)


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
    _say_json(document, orjson.OPT_INDENT_2)


def print_json_line(document: object) -> None:
    """One of many documents, each on a line of its own, at once."""
    _say_json(document, 0)


def _say_json(document: object, option: int) -> None:
    """Print JSON that means the same, and that a terminal can show."""
    try:
        written = orjson.dumps(document, str, option)
    except orjson.JSONEncodeError:  # the name of a file need not be Unicode
        written = orjson.dumps(_encodable(document), str, option)
    sys.stdout.write(written.decode().translate(_IN_JSON) + "\n")
    sys.stdout.flush()


def _encodable(value: object) -> object:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_encodable(name): _encodable(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_encodable(inner) for inner in value]
        case _:
            return value


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, whole: int = 0
) -> None:
    """A table that fits the terminal, of which the first `whole` columns are never folded.

    Where there is no terminal, no cell is.
    """
    heads = (Column(name, no_wrap=place < whole) for place, name in enumerate(columns))
    table = Table(*heads, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    width = None if sys.stdout.isatty() else UNFOLDED
    Console(file=sys.stdout, highlight=False, width=width).print(table)


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


def cell(value: object) -> Text:
    """A value as it stands in a table; states have a colour."""
    text = "" if value is None else str(value)
    return Text(plain(text), style=STYLES.get(text, ""))


def print_checks(checks: Sequence[tuple[bool, str, str, str]]) -> None:
    """A line each: whether it is well, its name, what was found; and below what to do about it."""
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    width = max(len(name) for _, name, _, _ in checks)
    for ok, name, found, advice in checks:
        line = Text("ok    " if ok else "failed", style="green" if ok else "red")
        line.append(plain(f"  {name:<{width}}  {found}"), style="default")
        console.print(line)
        if advice:
            console.print(Text(plain(f"{'':<{width + 8}}  {advice}")))


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Show at the terminal that something goes on; what is yielded says what by now."""
    with _messages().status(Text(plain(what))) as status:
        yield lambda now: status.update(Text(plain(now)))


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar at the terminal; what is yielded moves it on by one."""
    # No markup: a column reads it by default.
    columns = (TextColumn(plain(what), markup=False), BarColumn(), MofNCompleteColumn())
    console = _messages()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("", total=total)
        yield lambda: progress.advance(bar)


def _messages() -> Console:
    return Console(file=sys.stderr, highlight=False)
