"""What verbs print: tables for people, JSON for scripts, and codes for the shell.

Nothing else prints. References, reasons, names of files and messages are written by tenants and
read in an operator's terminal: here they lose whatever steers it, and are never read as markup.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any, Final, TypeAlias, TypeVar

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text

from imagefleet.client.api import Document, Reply
from imagefleet.errors import FleetError, Misconfigured, RequestRejected, Unavailable
from imagefleet.telemetry.plain import Visible, plain

Result = TypeVar("Result")
Tell: TypeAlias = Callable[[str], None]

STYLES: Final[Mapping[str, str]] = {
    "completed": "green",
    "ready": "green",
    "ok": "green",
    "failed": "red",
    "failed_retryable": "yellow",
    "processing": "cyan",
}

UNFOLDED: Final = 10_000  # columns

Cell: TypeAlias = Callable[[Any], object]
Columns: TypeAlias = Mapping[str, str | Cell]


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


def confirm(question: str, *, yes: bool) -> None:
    """Return if the operator agrees; end the verb if not, or if there is nobody to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        detail = f"{question} Say --yes where nobody can be asked."
        raise Misconfigured(detail)
    if not typer.confirm(plain(question), err=True):
        complain("nothing was done")
        finish(ExitCode.FAILED)


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


def print_json(document: object, *, on_a_line: bool = False) -> None:
    """JSON that a terminal can show; one of many documents is on a line of its own, at once."""
    option = 0 if on_a_line else orjson.OPT_INDENT_2
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


@dataclass(frozen=True, slots=True)
class Table:
    """A row for each of some things; a column is one of their fields, or what is made of them."""

    things: Iterable[Any]
    columns: Columns
    whole: int = 0
    """So many of the first columns are never folded."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A line for each field of one thing."""

    fields: Mapping[str, object]
    heads: tuple[str, str] = ("", "")


Part: TypeAlias = str | Table | Fields
View: TypeAlias = Callable[[Any], Part | Iterable[Part]]


def show(answer: object, view: View, *, as_json: bool) -> None:
    """An answer: itself for scripts, whatever newer fields it has; for people what they look at."""
    document, shape = (
        (answer.document, answer.shape) if isinstance(answer, Reply) else (answer, answer)
    )
    if as_json:
        print_json(document)
        return
    seen = view(shape)
    for part in [seen] if isinstance(seen, Part) else seen:
        match part:
            case str():
                say(part)
            case Fields(fields, heads):
                print_table(heads, [*fields.items()])
            case Table(things, columns, whole):
                rows = [_cells(thing, columns) for thing in things]
                print_table([*columns], rows, whole=whole)


def show_list(page: Document | Reply[Any], name: str, columns: Columns, *, as_json: bool) -> None:
    """A page of things, its columns in order, and how to go on if there are more."""
    show(page, lambda shape: Table(_field(shape, name), columns), as_json=as_json)
    document = page.document if isinstance(page, Reply) else page
    if not as_json and (cursor := document.get("nextCursor")):
        complain(f"there are more: --cursor {cursor}")


def show_fields(document: Mapping[str, object], *, as_json: bool) -> None:
    """One thing whole: as it was answered, or a line for each of its fields."""
    show(document, lambda fields: Fields(filled(**fields)), as_json=as_json)


def filled(**fields: object) -> dict[str, object]:
    """Only what has a value."""
    return {name: value for name, value in fields.items() if value is not None}


def section(things: Sequence[Any], columns: Columns) -> Iterator[Part]:
    """A table below others, if there is anything in it."""
    if things:
        yield ""
        yield Table(things, columns)


def at(name: str) -> Cell:
    """A column of times."""
    return lambda thing: moment(_field(thing, name))


def _field(thing: Any, name: str) -> Any:  # noqa: ANN401 - of a document or a shape
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name)


def _cells(thing: object, columns: Columns) -> list[object]:
    return [
        _field(thing, column) if isinstance(column, str) else column(thing)
        for column in columns.values()
    ]


def moment(told: object) -> str | None:
    """A time of the API as tables show it."""
    when = datetime.fromisoformat(told) if isinstance(told, str) else told
    return f"{when:%Y-%m-%d %H:%M:%S}" if when else None


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, whole: int = 0
) -> None:
    """A table that fits the terminal, of which the first `whole` columns are never folded.

    Where there is no terminal, no cell is.
    """
    heads = (Column(name, no_wrap=place < whole) for place, name in enumerate(columns))
    table = Grid(*heads, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    width = None if sys.stdout.isatty() else UNFOLDED
    Console(file=sys.stdout, highlight=False, width=width).print(table)


def cell(value: object) -> Text:
    """A value as it stands in a table; states have a colour."""
    if isinstance(value, dict | list):
        value = orjson.dumps(value).decode()
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
def waiting(what: str) -> Iterator[Tell]:
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
