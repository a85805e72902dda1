"""What verbs print: tables for people, JSON for scripts, and codes for the shell.

Nothing else prints. References, reasons, names of files and messages are written by tenants and
read in an operator's terminal: here they lose whatever steers it, and are never read as markup.
"""

import asyncio
import shutil
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from itertools import islice
from typing import Any, BinaryIO, Final, TextIO, TypeAlias, TypedDict, TypeVar, Unpack

import typer
from rich.console import Console
from rich.text import Text

from imagefleet.cli import layout
from imagefleet.client.api import Document, Reply
from imagefleet.errors import FleetError, Misconfigured, RequestRejected, Unavailable
from imagefleet.telemetry.plain import json, plain

Result = TypeVar("Result")

STYLES: Final[Mapping[str, str]] = {
    "completed": "green",
    "ready": "green",
    "ok": "green",
    "failed": "red",
    "failed_retryable": "yellow",
    "processing": "cyan",
}

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


def say(*lines: str) -> None:
    """Print what was asked for, a line each; none is an empty line."""
    _write(sys.stdout, lines or ("",))


def complain(*lines: str) -> None:
    """Say on the standard error why it did not work."""
    _write(sys.stderr, (f"imagefleet: {lines[0]}", *lines[1:]))


def _write(file: TextIO, lines: Sequence[str]) -> None:
    width = _width(file)
    folded = (part for line in lines for part in layout.folded(plain(line), width))
    file.write("".join(line + "\n" for line in folded))
    file.flush()


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


def print_json(document: object, *, on_a_line: bool = False, before: str = "") -> None:
    """JSON that a terminal can show; one of many documents is on a line of its own, at once."""
    sys.stdout.write(before + json(document, on_a_line=on_a_line) + "\n")
    sys.stdout.flush()


def takes_bytes() -> bool:
    """Whether the standard output is no terminal, which bytes of anything would steer."""
    return not sys.stdout.isatty()


def print_bytes(file: BinaryIO) -> None:
    """What is no text."""
    shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()


class GivesWay(TypedDict, total=False):
    """What gives way in a table, and what stands for an empty one."""

    wraps: Collection[str]
    """Columns of prose, which may be folded between words; all others stay whole."""
    drops: Sequence[str]
    """Columns that are left out where there is no room for all, in this order."""
    none: str
    """What is said where there is nothing, and what to do then."""
    goes_on: bool
    """Below a table of the same columns."""


@dataclass(frozen=True, slots=True)
class Table:
    """A row for each of some things; a column is one of their fields, or what is made of them."""

    things: Iterable[Any]
    columns: Columns
    gives_way: GivesWay = field(default_factory=GivesWay)


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
            case Fields():
                _print_fields(part)
            case Table():
                _print_table(part)


def show_list(
    page: Document | Reply[Any],
    name: str,
    columns: Columns,
    *,
    as_json: bool,
    **gives_way: Unpack[GivesWay],
) -> None:
    """A page of things, its columns in order, and how to go on if there are more."""
    gives_way.setdefault("none", f"no {name}")
    goes_on = gives_way.get("goes_on")
    show(page, lambda shape: Table(_field(shape, name), columns, gives_way), as_json=as_json)
    document = page.document if isinstance(page, Reply) else page
    if not as_json and goes_on is None and (cursor := document.get("nextCursor")):
        complain(f"there are more: --cursor {cursor}")


def show_fields(document: Mapping[str, object], *, as_json: bool) -> None:
    """One thing whole: as it was answered, or a line for each of its fields."""
    show(document, lambda fields: Fields(filled(**fields)), as_json=as_json)


def filled(**fields: object) -> dict[str, object]:
    """Only what has a value."""
    return {name: value for name, value in fields.items() if value is not None}


def section(
    things: Sequence[Any], columns: Columns, **gives_way: Unpack[GivesWay]
) -> Iterator[Part]:
    """A table below others, if there is anything in it."""
    if things:
        yield ""
        yield Table(things, columns, gives_way)


def at(name: str) -> Cell:
    """A column of times."""
    return lambda thing: moment(_field(thing, name))


def _field(thing: Any, name: str) -> Any:  # noqa: ANN401 - of a document or a shape
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name)


def moment(told: object) -> str | None:
    """A time of the API as tables show it."""
    when = datetime.fromisoformat(told) if isinstance(told, str) else told
    return f"{when:%Y-%m-%d %H:%M:%S}" if when else None


def _print_table(table: Table) -> None:
    rows = [
        [
            cell(_field(thing, column) if isinstance(column, str) else column(thing))
            for column in table.columns.values()
        ]
        for thing in table.things
    ]
    wraps, drops = table.gives_way.get("wraps", ()), table.gives_way.get("drops", ())
    if not rows and (none := table.gives_way.get("none")):
        say(none)
        return
    laid = layout.table([*table.columns], rows, _width(sys.stdout), wraps=wraps, drops=drops)
    if table.gives_way.get("goes_on"):
        _print(laid.lines if sys.stdout.isatty() else islice(laid.lines, 1, None))
        return
    _print(laid.lines)
    if laid.dropped:
        complain(f"no room for {', '.join(laid.dropped)}; --json has all")


def _print_fields(shown: Fields) -> None:
    width = _width(sys.stdout)
    room = width and width - layout.GAP - max(map(layout.columns_of, shown.fields), default=0)
    pairs = [(cell(name), cell(value, room)) for name, value in shown.fields.items()]
    if any(shown.heads):
        pairs.insert(0, (layout.Cell(shown.heads[0], "bold"), layout.Cell(shown.heads[1], "bold")))
    _print(layout.fields(pairs, width))


def cell(value: object, room: int | None = None) -> layout.Cell:
    """A value as tables show it: states have a colour, a document has lines if it has no room."""
    if isinstance(value, dict | list):
        text = json(value, on_a_line=True)
        return layout.Cell(text if room is None or len(text) <= room else json(value))
    text = "" if value is None else str(value)
    return layout.Cell(plain(text), STYLES.get(text, ""))


def _print(lines: Iterable[layout.Line]) -> None:
    """On a terminal with its colours; what is wider than it is folded by itself."""
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for line in lines:
        text = Text.assemble(*line)
        text.rstrip()
        console.print(text)


def _width(file: TextIO) -> int | None:
    """How many columns a terminal has; None: it is none, and there is room for everything."""
    return Console(file=file).width if file.isatty() else None
