"""How long a page of the console takes where five million jobs are, and what its statements read.

Postgres is filled (`filling.py`); an API and a console are started as they are deployed, and
somebody logs in. Then every page is asked for, some dozens of times, by turns, in another order
each time: its lists with every filter, their second pages, single jobs, faults, tenants, images.
Told is the time from a request until the whole page is there, on this machine: the console's, the
API's and Postgres's together. Beside it stands the statement that looked at the most pages of
Postgres for it, as Postgres counted. Ends with 1 where the 95th of 100 takes longer than 300 ms,
or where a page is not answered.

    make bench-console                          # ten minutes, most of them to fill Postgres
    make bench-console ARGS="--jobs 20000"      # whether it runs
    make bench-console ARGS="--statements 10"   # and which statements took the most of the time
    make bench-console ARGS="--keep /tmp/full"  # fill that folder once, and ask again and again
"""

import argparse
import asyncio
import html
import logging
import math
import random
import re
import shutil
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import httpx
import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from imagefleet.store.schema.migrations import migrate
from tests.bench.counting import count_calls
from tests.bench.filling import Size, Tell, fill
from tests.bench.ground import Ground, durable_ground
from tests.bench.pages import KNOWN, PAGES, SECOND
from tests.bench.peers import Peers
from tests.bench.processes import started, unlimited_key
from tests.support.database import PASSWORDS, Database, driver_of, roomy_memory
from tests.support.fleet import Place

JOBS: Final = 5_000_000
ROUNDS: Final = 30
AT_MOST: Final = 0.3  # seconds, of the 95th of 100
ANSWERED_WITHIN: Final = 30.0
ROOM: Final = 2  # times what it takes, or it is left to a disk
WIDE: Final = 160  # columns, where nobody looks on
TROUBLE: Final = 'class="part-trouble"'
OLDER: Final = re.compile(r'rel="next" href="([^"]+)"')

KNOWN_WITHIN: Final = 300.0  # seconds; parts of it read all there is
IS_THERE: Final = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)"
SAID: Final = """
SELECT said.queryid AS number, said.query, said.calls, said.total_exec_time / 1000 AS seconds,
       said.shared_blks_hit + said.shared_blks_read AS pages
  FROM pg_stat_statements AS said
  JOIN pg_roles ON pg_roles.oid = said.userid
  JOIN pg_database ON pg_database.oid = said.dbid
 WHERE pg_roles.rolname IN ('imagefleet_operator', 'imagefleet_api') AND datname = $1
"""


@dataclass(slots=True)
class Statement:
    """What Postgres counted of one so far."""

    query: str
    calls: int
    seconds: float
    pages: int


@dataclass(slots=True)
class Asked:
    """A page, and how it was answered."""

    address: str
    seconds: list[float] = field(default_factory=list)
    pages: int = 0
    """Those that one statement looked at, the most of all times."""
    fault: str = ""
    """Why it is not what it should be, where it was not at some time."""

    @property
    def p50(self) -> float:
        return statistics.median(self.seconds) if self.seconds else math.inf

    @property
    def p95(self) -> float:
        """Never, of a page that was not answered as it should be."""
        if self.fault:
            return math.inf
        return sorted(self.seconds)[min(len(self.seconds) - 1, len(self.seconds) * 95 // 100)]


Said: TypeAlias = Callable[[], Awaitable[dict[int, Statement]]]
"""What was said until now, by the number that Postgres gave each."""


@asynccontextmanager
async def listening(database: Database) -> AsyncIterator[Said]:
    async with database.server.admin() as admin:

        async def said() -> dict[int, Statement]:
            return {
                row["number"]: Statement(row["query"], row["calls"], row["seconds"], row["pages"])
                for row in await admin.fetch(SAID, database.name)
            }

        yield said


def most_of_one(before: Mapping[int, Statement], after: Mapping[int, Statement]) -> int:
    """How many pages the greediest statement looked at, each time that it was said."""
    nothing = Statement("", 0, 0, 0)
    shares = (
        (now.pages - was.pages) / (now.calls - was.calls)
        for number, now in after.items()
        for was in (before.get(number, nothing),)
        if now.calls > was.calls
    )
    return round(max(shares, default=0))


@asynccontextmanager
async def visitor(place: Place, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody who has logged in at a console before an API, each a process of its own."""
    key = await unlimited_key(place.database, ("operate",))
    operating = {"OPERATOR_DATABASE_URL": place.database.url("operator")}
    async with (
        started(place, "api", folder, operating) as api,
        started(place, "console", folder, {"IMAGEFLEET_URL": api.url}) as console,
        httpx.AsyncClient(base_url=console.url, timeout=ANSWERED_WITHIN) as http,
    ):
        origin = {"Origin": console.url}
        answer = await http.post("/login", data={"key": key}, headers=origin)
        assert answer.status_code == httpx.codes.SEE_OTHER, answer.text
        yield http


async def look(http: httpx.AsyncClient, page: Asked) -> tuple[float, str]:
    """The seconds until all of a page was there, and the page."""
    begun = time.perf_counter()
    try:
        answer = await http.get(page.address)
    except httpx.HTTPError as error:
        page.fault = repr(error)
        return math.inf, ""
    seconds = time.perf_counter() - begun
    if answer.status_code != httpx.codes.OK:
        page.fault = f"it was answered with {answer.status_code}"
    elif TROUBLE in answer.text:  # which is a state of a page, and not what is measured here
        page.fault = "the API did not tell a part of it"
    return seconds, answer.text


async def pages_of(
    database: Database, http: httpx.AsyncClient, second: Sequence[str] = SECOND
) -> dict[str, Asked]:
    """Where all of them are, with the ids of what there is."""
    async with database.connect("superuser") as superuser:
        driver = driver_of(superuser)
        await driver.execute("SET statement_timeout = 0")
        row = await driver.fetchrow(KNOWN, timeout=KNOWN_WITHIN)
    assert row is not None
    known = dict(row)
    assert None not in known.values(), known
    asked = {name: Asked(address.format(**known)) for name, address in PAGES.items()}
    for name in second:
        _, text = await look(http, asked[name])
        older = OLDER.search(text)
        if older is None:
            asked[name].fault = asked[name].fault or "it has no second page"
        else:
            asked[f"{name}, second page"] = Asked(html.unescape(older[1]))
    return asked


async def by_turns(
    asked: dict[str, Asked], http: httpx.AsyncClient, said: Said, rounds: int, tell: Tell
) -> None:
    """Every page so often, in another order each time; first once for nothing, as it warms."""
    order, chance = list(asked), random.Random(7)
    for number in range(rounds + 1):
        tell(f"pages: round {number} of {rounds}", number / rounds)
        chance.shuffle(order)
        for name in order:
            before = await said()
            seconds, _ = await look(http, asked[name])
            if number:
                asked[name].seconds.append(seconds)
            asked[name].pages = max(asked[name].pages, most_of_one(before, await said()))


async def filled_once(ground: Ground, size: Size, tell: Tell) -> Database:
    """What an earlier run has filled in this folder; else it is filled now."""
    database = Database(ground.server, f"filled_{size.jobs}")
    coming = Database(ground.server, f"{database.name}_coming")
    roles = ", ".join(PASSWORDS)
    async with ground.server.admin() as admin:
        if not await admin.fetchval(IS_THERE, database.name):
            await admin.execute(f"DROP DATABASE IF EXISTS {coming.name}")
            await admin.execute(
                f"CREATE DATABASE {coming.name} OWNER imagefleet_owner TEMPLATE {ground.template}"
            )
            await admin.execute(f"GRANT CONNECT ON DATABASE {coming.name} TO {roles}")
            await fill(coming, size, tell)
            await admin.execute(f"ALTER DATABASE {coming.name} RENAME TO {database.name}")
    await migrate(database.url("owner"))  # of a folder of before
    return database


async def measured(
    ground: Ground, size: Size, rounds: int, tell: Tell
) -> tuple[dict[str, Asked], list[Statement]]:
    """All pages over a fleet of this size, and all statements that were said for them."""
    filled = await filled_once(ground, size, tell)
    async with ground.place(kept=filled) as place:
        await count_calls(place.database)
        async with (
            visitor(place, ground.folder) as http,
            listening(place.database) as said,
        ):
            asked = await pages_of(place.database, http)
            await by_turns(asked, http, said, rounds, tell)
            return asked, list((await said()).values())


def table(asked: Mapping[str, Asked]) -> Table:
    """A line a page, the slowest first."""
    shown = Table("page", box=None, header_style="bold")
    for name in ("p50, ms", "p95, ms", "most pages of a statement"):
        shown.add_column(name, justify="right")
    shown.add_column()
    for name, each in sorted(asked.items(), key=lambda item: -item[1].p95):
        late = "red" if each.p95 > AT_MOST else None
        times = (f"{seconds * 1000:,.0f}" for seconds in (each.p50, each.p95))
        shown.add_row(name, *times, f"{each.pages:,}", each.fault, style=late)
    return shown


def greedy(statements: Sequence[Statement], most: int) -> Table:
    """Those that took the most time of Postgres."""
    shown = Table("calls", "ms a call", "pages a call", "statement", box=None, header_style="bold")
    for each in sorted(statements, key=lambda each: -each.seconds)[:most]:
        words = " ".join(each.query.split())
        figures = (each.seconds * 1000 / each.calls, each.pages / each.calls)
        shown.add_row(f"{each.calls:,}", *(f"{figure:,.1f}" for figure in figures), words[:400])
    return shown


def place_for(size: Size) -> Path | None:
    """Memory where there is room for all of it; else a disk."""
    memory = roomy_memory()
    room = 0 if memory is None else shutil.disk_usage(memory).free
    return memory if room > ROOM * size.bytes else None


async def run(options: argparse.Namespace, console: Console) -> bool:
    """Tell it all; whether each page was in time."""
    size, begun = Size(jobs=options.jobs), time.monotonic()
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        shown = progress.add_task("starting Postgres and the emulator", total=1)

        told: set[str] = set()

        def tell(what: str, done: float) -> None:
            progress.update(shown, description=what, completed=done)
            step = what.partition(":")[0]
            if not console.is_terminal and step not in told:
                told.add(step)
                console.print(f"{time.monotonic() - begun:5.0f} s  {step}")

        parent = None if options.keep else place_for(size)
        async with durable_ground(Peers(), parent, keep=options.keep) as ground:
            asked, statements = await measured(ground, size, options.rounds, tell)
    console.print(table(asked))
    if options.statements:
        console.print(greedy(statements, options.statements))
    late = [name for name, each in asked.items() if each.p95 > AT_MOST]
    console.print(
        f"{size.jobs:,} jobs, {len(asked)} pages, {options.rounds} times each: "
        f"{len(late)} slower than {AT_MOST * 1000:.0f} ms at the 95th of 100"
    )
    return not late


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="make bench-console",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"how many there are ({JOBS:,})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"times a page ({ROUNDS})")
    parser.add_argument("--statements", type=int, default=0, metavar="N", help="the N dearest")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="fill this one, or use what it has"
    )
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(mode=0o711, parents=True, exist_ok=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    sys.exit(0 if asyncio.run(run(options, console)) else 1)


if __name__ == "__main__":
    main()
