"""How fast it is, beside others and beside the least that would do, as ratios of one run.

Every row has sides: ours, and whoever it is compared with. In each round each side is measured
once, side after side, on the same Postgres (as durable as in production) and the same emulator of
SQS, with as many jobs. A ratio is made within a round; told are the median of all rounds and an
interval that holds it. So a figure is worth something on this machine, in this run: jobs a second
of two machines, or of two runs, are not.
"""

import argparse
import asyncio
import json
import logging
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.bench import (
    claiming,
    counting,
    crowded,
    draining,
    footprint,
    forgetting,
    growing,
    images,
    ladder,
    lingering,
    picking_up,
    pooled,
    posting,
    taking,
    uploading,
)
from tests.bench.ground import Ground, durable_ground
from tests.bench.peers import Peers
from tests.bench.report import Line, document, lines_of, markdown, table
from tests.bench.rounds import FEWEST, Asked, Row, measure
from tests.support.database import roomy_memory

ROWS: Final[Mapping[str, Row]] = {
    row.name: row
    for row in (
        *claiming.ROWS.values(),
        ladder.ROW,
        *posting.ROWS.values(),
        *draining.ROWS.values(),
        picking_up.ROW,
        counting.ROW,
        taking.ROW,
        forgetting.ROW,
        footprint.ROW,
        growing.ROW,
        crowded.ROW,
        images.ROW,
        lingering.ROW,
        uploading.ROW,
        *pooled.ROWS.values(),
    )
}

EXAMPLES: Final = """
for example
  make bench                                       everything; leave the machine alone meanwhile
  make bench ARGS="--quick"                        a tenth of the jobs: whether it runs
  make bench ARGS="--only claims-10 --rounds 11"   one row, and a narrower interval
  make bench ARGS="--json run.json"                every value of every round, to be kept
  make bench ARGS="--from run.json"                the table of a run that was kept
  make bench ARGS="--only forgetting"              a row that is measured only when it is named
  make bench-images                                the row of images alone

how to read it
  Of `ours : other` more is better where jobs or requests are told, and less where milliseconds are.
  (a to b) is the interval that holds the median: of two figures whose intervals overlap nobody can
  say that one is the faster. Nothing else should run beside it: all suffer, and not all as much.

The others are installed when a row first needs them, pinned, into .bench/, which git ignores and
`make clean` removes; --no-peers leaves them out. What is measured, and how: docs/performance.md.
"""
WIDE: Final = 160  # columns, where nobody looks on


class _Arguments(argparse.Namespace):
    only: list[str]
    rounds: int
    jobs: int | None
    quick: bool
    long: bool
    peers: bool
    disk: bool
    json: Path | None
    markdown: Path | None
    beside: Path | None
    earlier: Path | None


def parsed(words: Sequence[str] | None = None) -> _Arguments:
    """What was asked for; ends with 2 and a sentence where there is no such thing."""
    known = "\n".join(f"  {row.name:<14}{row.about}" for row in ROWS.values())
    parser = argparse.ArgumentParser(
        prog="make bench",
        usage='make bench [ARGS="..."]',
        description=f"{__doc__}\nrows\n{known}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", action="append", default=[], metavar="ROW", help="not all rows; also a,b")
    add("--rounds", type=int, default=FEWEST, help=f"how often each side has its turn ({FEWEST})")
    add("--jobs", type=int, metavar="N", help="a side and round, instead of the row's own number")
    add("--quick", action="store_true", help="a tenth of the jobs")
    add(
        "--long",
        action="store_true",
        help="ten minutes under a snapshot, ten million rows",
    )
    add("--no-peers", dest="peers", action="store_false", help="install nobody")
    add("--disk", action="store_true", help="Postgres on a disk, where all wait for its fsync")
    add("--json", type=Path, metavar="FILE", help="write every value of every round there")
    add("--markdown", type=Path, metavar="FILE", help="write the table there, for a page")
    add("--beside", type=Path, metavar="FILE", help="a run to tell in a column of that table")
    add("--from", dest="earlier", type=Path, metavar="FILE", help="measure nothing, show this run")
    given = parser.parse_args(words, namespace=_Arguments())
    given.only = [name for names in given.only for name in names.split(",")]
    if unknown := [name for name in given.only if name not in ROWS]:
        parser.error(f"no row is called {', '.join(unknown)}; there are {', '.join(ROWS)}")
    if given.rounds < 1:
        parser.error("--rounds: at least one")
    if given.jobs is not None and given.jobs < 1:
        parser.error("--jobs: at least one")
    for file in (given.json, given.markdown):  # half an hour later it would be too late
        if file is not None and not file.parent.is_dir():
            parser.error(f"there is no folder {file.parent}")
    for file in (given.earlier, given.beside):
        if file is not None and not file.is_file():
            parser.error(f"there is no file {file}")
    return given


async def run(given: _Arguments, console: Console, told: dict[str, Any]) -> None:
    """Tell everything that was measured, row by row, and which ones could not be."""
    _end_in_order()
    names = given.only or [row.name for row in ROWS.values() if not row.by_name]
    asked = Asked(
        rounds=given.rounds,
        jobs=given.jobs,
        quick=given.quick,
        long=given.long,
        peers=given.peers,
    )
    parent = None if given.disk or given.long else roomy_memory()  # ten million rows are too many
    lines: list[Line] = []
    failed: list[str] = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        shown = progress.add_task("starting Postgres and the emulator", total=len(names))
        async with durable_ground(Peers(), parent) as ground:
            for name in names:

                def tell(what: str, name: str = name) -> None:
                    progress.update(shown, description=f"{name}: {what}")

                done = await _measured(ROWS[name], ground, asked, tell, console)
                lines += done
                failed += [] if done else [name]
                progress.advance(shown)
                told |= document(
                    lines,
                    rounds=given.rounds,
                    jobs=given.jobs,
                    quick=given.quick,
                    disk=parent is None,
                    not_measured=failed,
                    notes=ground.notes,
                    **await ground.promises(),
                )
                keep(told, given)  # what was measured is there, whatever becomes of the others


def _end_in_order() -> None:
    """Whoever ends it: nothing is left running."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)


async def _measured(
    row: Row, ground: Ground, asked: Asked, tell: Callable[[str], None], console: Console
) -> list[Line]:
    """The lines of a row; none, and the reason on the terminal, where something broke."""
    begun = time.monotonic()
    try:
        rounds = await measure(row, ground, asked, tell)
    except Exception:  # noqa: BLE001 - the other rows are worth measuring
        console.print(f"{row.name}: NOT MEASURED\n{traceback.format_exc()}", markup=False)
        return []
    told = f"{row.name}: {row.about}; {len(rounds)} rounds, {time.monotonic() - begun:.0f} s"
    console.print(told, markup=False, highlight=False)
    return lines_of(row, rounds)


def keep(told: Mapping[str, Any], given: _Arguments) -> None:
    """Write it where it was asked for."""
    if given.json is not None:
        given.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    if given.markdown is not None:
        beside = None
        if given.beside is not None:
            beside = json.loads(given.beside.read_text(encoding="utf-8"))
        given.markdown.write_text(markdown(told, beside) + "\n", encoding="utf-8")


def show(told: Mapping[str, Any], console: Console) -> None:
    """The table, and what rows have to say beside it."""
    console.print(table([Line.read(line) for line in told["lines"]]))
    for note in told["on"]["notes"]:
        console.print(note, markup=False, highlight=False)


def main() -> int:
    """End with 1 where a row could not be measured; goals that are not met are only told."""
    given = parsed()
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    if given.earlier is not None:
        told = json.loads(given.earlier.read_text(encoding="utf-8"))
        keep(told, given)
        show(told, console)
        return 0
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    # A worker that ends cuts its long poll in the middle of the proxy that counts.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    return run_and_show(given, console)


def run_and_show(given: _Arguments, console: Console) -> int:
    """What was measured is shown, though the rest was not waited for."""
    told: dict[str, Any] = {}
    try:
        uvloop.run(run(given, console, told))  # as every process of ours runs
    except (asyncio.CancelledError, KeyboardInterrupt):
        if told:
            show(told, console)
        console.print("ended before its time")
        return 130
    show(told, console)
    for name in told["on"]["not_measured"]:
        console.print(f"{name}: NOT MEASURED, the reason stands above", style="red")
    return 1 if told["on"]["not_measured"] else 0


if __name__ == "__main__":
    sys.exit(main())
