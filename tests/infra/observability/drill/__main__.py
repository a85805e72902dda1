"""`make drill`: faults brought in, alerts seen to fire, runbooks followed, alerts seen gone.

A stack of its own and a real Prometheus, by the rules as they are shipped, but that every duration
is divided. promtool reads the undivided ones first.
"""

import argparse
import asyncio
import json
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.infra.observability.asking import alerts
from tests.infra.observability.check import complaints_of
from tests.infra.observability.drill.dividing import durations_of
from tests.infra.observability.drill.faults import FAULTS
from tests.infra.observability.drill.playing import Commands, Played, Player, Row
from tests.infra.observability.drill.runbooks import Command, command_of
from tests.infra.observability.drill.world import SCRAPED_EVERY, a_world
from tests.support.prometheus import program

DIVISOR: Final = 10.0
SCRAPES: Final = 4  # of the shortest range of a rule, at the least
PATIENCE: Final = 90.0  # seconds, for what no rule is to blame for: leases, timeouts, starts
LONGEST: Final = 1200.0  # seconds that an alert may look back, but for burn rates
HEAD: Final = ("fault", "alert", "seconds to alert", "command", "seconds to resolve")


class _Arguments(argparse.Namespace):
    only: list[str] | None
    divisor: float
    json: bool
    without: str | None
    command: str | None


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments, namespace=_Arguments())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends it: nothing is left
    promtool = program("promtool")
    if promtool is None or program("prometheus") is None:
        say("NOT PLAYED: there is no Prometheus, and Debian's package cannot be had")
        return 1
    if hindrance := _hindrance(promtool, given.divisor):
        say(hindrance)
        return 1
    say(f"promtool has nothing to complain of; every duration is divided by {given.divisor:g}")
    begun = time.monotonic()
    try:
        played = asyncio.run(drill(given))
    except KeyboardInterrupt:
        say("ended before its time")
        return 130
    seconds = time.monotonic() - begun
    tell(played, given.divisor, seconds, as_json=given.json)
    wrong = [what for each in played for what in each.wrong]
    for what in wrong:
        say(f"BROKEN {what}")
    if not wrong:
        say(f"all were seen, in {seconds:.0f} s")
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="drill", description=__doc__)
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", action="append", choices=names, help="this fault alone")
    parser.add_argument("--divisor", type=float, default=DIVISOR, help="of every duration")
    parser.add_argument("--json", action="store_true", help="the table as one document")
    parser.add_argument("--without", metavar="ALERT", help="as if nobody had written its rule")
    parser.add_argument("--command", help="another than a runbook's, to see it noticed")
    return parser


def _hindrance(promtool: Path, divisor: float) -> str:
    """What is wrong with the rules as they are, or with dividing them by so much."""
    if complaints := complaints_of(promtool):
        return complaints
    shortest = min(length for rule in alerts() for length in durations_of(rule.query)) / 1000
    most = shortest / (SCRAPES * SCRAPED_EVERY)
    if not 1 <= divisor <= most:
        return f"NOT PLAYED: by more than {most:g} a range of {shortest:g} s holds too few scrapes"
    return ""


async def drill(given: _Arguments) -> list[Played]:
    """Every fault that was asked for, on one stack."""
    chosen = [fault for fault in FAULTS if given.only is None or fault.name in given.only]
    patience = PATIENCE + LONGEST / given.divisor
    with tempfile.TemporaryDirectory(prefix="imagefleet-drill-") as folder:
        async with a_world(Path(folder), given.divisor, without=given.without) as world:
            say("the stack is up, and scraped")
            commands = command_of if given.command is None else _always(given.command)
            player = Player(world, say, commands=commands, patience=patience)
            return [await player.play(fault) for fault in chosen]


def _always(line: str) -> Commands:
    return lambda _alert, _stands_for: Command(line, tuple(shlex.split(line)))


def tell(played: Sequence[Played], divisor: float, seconds: float, *, as_json: bool) -> None:
    """The results, on the standard output."""
    rows = [row for each in played for row in each.rows]
    if as_json:
        document = {
            "divisor": divisor,
            "seconds": round(seconds, 1),
            "rows": [asdict(row) for row in rows],
            "others": {each.rows[0].fault: each.others for each in played},
            "wrong": [what for each in played for what in each.wrong],
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(table(rows)) + "\n")


def table(rows: Sequence[Row]) -> list[str]:
    """As it stands in docs/operations.md."""
    cells = [
        (row.fault, f"`{row.alert}`", _spent(row.fired), f"`{row.command}`", _spent(row.resolved))
        for row in rows
    ]
    return [f"| {' | '.join(line)} |" for line in (HEAD, ("---",) * len(HEAD), *cells)]


def _spent(seconds: float | None) -> str:
    return "not seen" if seconds is None else f"{seconds:.0f}"


def say(line: str) -> None:
    """How it goes, on the standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
