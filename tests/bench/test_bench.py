"""Whether `make bench` measures what it says, with few jobs; how fast anything is, is not asked."""

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from rich.console import Console

import tests.bench.__main__ as bench
from tests.bench import draining, ladder
from tests.bench.__main__ import ROWS, parsed
from tests.bench.claiming import CONNECTIONS, of_a_worker
from tests.bench.counting import AT_WORK, calls_of, count_calls
from tests.bench.draining import Way
from tests.bench.ground import PROMISED, Ground, durable_ground
from tests.bench.peers import REQUIREMENTS, Peers
from tests.bench.report import Line, document, lines_of, markdown
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides, Summary, measure, rotated
from tests.support import wheels
from tests.support.database import Server, roomy_memory
from tests.support.emulators import Emulator
from tests.support.wheels import ROOT

JOBS = 20
DONE = """
SELECT (SELECT count(*) FROM bare WHERE bare.state = 'done') AS bare,
       (SELECT count(*) FROM jobs WHERE jobs.state = 'completed') AS ended,
       (SELECT count(*) FROM attempts) AS attempts,
       (SELECT count(*) FROM rings) AS rings,
       (SELECT sum(ledger_book.completed) FROM ledger_book) AS moves
"""
BUSY = 1.25  # of a goal, where how fast the machine is says how much there is at a time
RIVALS = {"celery", "pgqueuer", "procrastinate"}
SOON_OVER = ["claims-10", "claims-1", "ladder", "post", "drain", "buffers"]
"""Rows that take little time with few jobs; the others are made of the same parts."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """As `make bench` makes it."""
    async with durable_ground(Peers(tmp_path_factory.mktemp("peers")), roomy_memory()) as ground:
        yield ground


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", SOON_OVER)
async def test_a_row_measures_what_its_figures_tell_of(name: str, ground: Ground) -> None:
    asked = Asked(rounds=1, jobs=JOBS, quick=True, peers=False)

    rounds = await measure(ROWS[name], ground, asked, lambda _: None)

    lines = lines_of(ROWS[name], rounds)
    assert lines != []
    assert all(value > 0 for line in lines if line.unit != "ms" for value in line.ours.values)
    assert list(ground.peers.cache.iterdir()) == [], "somebody was installed"


@pytest.mark.timeout(180)
async def test_a_job_asks_no_more_of_others_than_it_may(ground: Ground) -> None:
    """With enough jobs that the beats of those seconds do not count."""
    asked = Asked(rounds=1, jobs=1_000, peers=False)

    lines = lines_of(ROWS["counts"], await measure(ROWS["counts"], ground, asked, lambda _: None))

    goals = {figure.title: figure.at_most for figure in ROWS["counts"].figures}
    judged = {line.title: goals[line.title] for line in lines if goals[line.title] is not None}
    assert len(judged) >= 9
    assert {} == {
        line.title: line.ours.median
        for line in lines
        if line.ours.median
        > (BUSY if AT_WORK in line.title else 1) * (judged.get(line.title) or math.inf)
    }


async def test_every_rung_of_the_ladder_does_what_those_below_it_do(ground: Ground) -> None:
    made: dict[str, dict[str, int]] = {}
    for rung in ladder.LADDER:
        async with ground.database() as database:
            await ladder.climbed(database, rung, ladder.BATCH)
            async with database.connect("superuser") as superuser:
                row = await superuser.fetchrow(DONE)
                assert row is not None
                made[rung.name] = {name: count for name, count in row.items() if count}

    jobs = ladder.BATCH * (1 + CONNECTIONS)
    rows = {"ended": jobs, "attempts": jobs}
    assert made == {
        "bare SQL": {"bare": jobs, "rings": jobs},
        "our table": {"ended": jobs, "rings": jobs},
        "our rows": rows,
        "our triggers": rows | {"moves": jobs},
        "our fence": rows | {"moves": jobs},
        "imagefleet": rows | {"moves": jobs},
    }


def test_what_was_measured_is_shown_though_the_rest_was_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class NoGround(Ground):
        async def promises(self) -> dict[str, str]:
            return {"postgres": "18"}

    @asynccontextmanager
    async def no_ground(*_: object) -> AsyncIterator[Ground]:
        nowhere = Path("nowhere")
        yield NoGround(
            server=Server(""),
            template="",
            emulator=Emulator("ministack", ""),
            folder=nowhere,
            peers=Peers(nowhere),
        )

    def a_row(name: str, measured: Callable[[], Measured]) -> Row:
        @asynccontextmanager
        async def sides(*_: object) -> AsyncIterator[Sides]:
            async def side() -> Measured:
                await asyncio.sleep(0)
                return measured()

            yield {name: side}

        figure = Figure(title=f"what {name} came to", unit="", ours=name)
        return Row(name=name, about="", figures=[figure], open=sides)

    def ctrl_c() -> Measured:
        raise asyncio.CancelledError

    rows = [a_row("first", lambda: {"first": 7.0}), a_row("second", ctrl_c)]
    monkeypatch.setattr(bench, "ROWS", {row.name: row for row in rows})
    monkeypatch.setattr(bench, "durable_ground", no_ground)
    monkeypatch.setattr(bench, "_end_in_order", lambda: None)

    code = bench.run_and_show(parsed(["--rounds", "1"]), Console(width=120))

    told = capsys.readouterr().out
    assert 130 == code
    assert "what first came to" in told
    assert "what second came to" not in told
    assert "ended before its time" in told


async def test_celery_is_measured_in_the_way_that_is_best_with_as_many_messages(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few of them another one was."""
    asked: list[int] = []

    async def celery(_: Ground, jobs: int, way: Way) -> tuple[float, float]:
        asked.append(jobs)
        return way.slots + (way.prefetch if jobs == 200 else -way.prefetch), 0.0

    monkeypatch.setattr(draining, "celery", celery)

    way = await draining.best_way(ground, 1_000)

    assert ([200] * 12 + [1_000] * 3) == asked
    assert Way("prefork", 32, 4) == way
    assert "with 200 jobs" in ground.notes[-1]


async def test_all_stand_on_a_postgres_that_forgets_nothing(ground: Ground) -> None:
    promises = await ground.promises()

    assert {"on"} == {promises[name] for name in PROMISED}
    assert PROMISED >= ("fsync", "synchronous_commit")


async def test_what_a_job_says_is_counted_once(ground: Ground) -> None:
    """By Postgres: a statement in a transaction is one statement, and three round trips."""
    async with ground.database() as database:
        await count_calls(database)
        before = await calls_of(ground.server, "worker", database.name)
        async with database.connect("worker") as worker:
            await worker.fetchval("SELECT 1")
            between = await calls_of(ground.server, "worker", database.name)
            async with worker.transaction():
                await worker.fetchval("SELECT 1")
        after = await calls_of(ground.server, "worker", database.name)

    assert (1, 3) == (after.since(between).statements, after.since(between).trips)
    assert before.trips < between.trips


def test_every_round_begins_with_another_side() -> None:
    assert [rotated("abc", number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert sorted(rotated("abc", 1)) == ["a", "b", "c"]


def test_the_interval_is_of_values_and_narrows_with_their_number() -> None:
    five = Summary((3.0, 1.0, 2.0, 5.0, 4.0))
    eleven = Summary(tuple(map(float, range(11))))

    assert (3.0, (1.0, 5.0)) == (five.median, five.interval)
    assert (5.0, (1.0, 9.0)) == (eleven.median, eleven.interval)  # 98.8 %; (2, 8) holds it in 93


def test_a_ratio_is_made_within_its_round() -> None:
    """A machine that slows down in the second round changes no ratio."""
    figure = Figure(title="t", unit="u", ours="a", other="b", at_least=2)
    row = Row(name="r", about="", figures=[figure], open=ROWS["post"].open)

    (line,) = lines_of(row, [{"a": 20.0, "b": 10.0}, {"a": 2.0, "b": 1.0}])

    assert (2.0, 2.0) == line.compared.values
    assert line.met


def test_where_nobody_else_was_measured_ours_is_told_alone_and_once() -> None:
    figures = [
        Figure(title="t", unit="u", ours="a", other="b", at_least=1),
        Figure(title="t", unit="u", ours="a", other="c"),
    ]
    row = Row(name="r", about="", figures=figures, open=ROWS["post"].open)

    (alone,) = lines_of(row, [{"a": 1.0}])
    (beside,) = lines_of(row, [{"a": 1.0, "c": 1.0}])

    assert (None, "", None) == (alone.other_name, alone.goal, alone.met)
    assert "c" == beside.other_name


def test_a_run_can_be_read_again_as_it_was_written() -> None:
    row = ROWS["claims-1"]
    measured = {figure.other or "": 2.0 for figure in row.figures} | {row.figures[0].ours: 1.0}
    lines = lines_of(row, [measured, measured])

    told = json.loads(json.dumps(document(lines, rounds=2, postgres="18", notes=["a note"])))

    assert lines == [Line.read(line) for line in told["lines"]]
    assert all(f"| {line.title} |" in markdown(told) for line in lines)


def test_a_page_tells_what_another_run_said_and_where_something_changed() -> None:
    figure = Figure(title="t", unit="u", ours="a", other="b", at_least=1)
    row = Row(name="r", about="", figures=[figure], open=ROWS["post"].open)
    run, near, far = (
        document(
            lines_of(row, [{"a": a, "b": 1.0} for a in values]), rounds=2, postgres="18", notes=[]
        )
        for values in ((1.0, 3.0), (2.0, 4.0), (5.0, 6.0))
    )

    assert markdown(run, near).endswith("| ≥ 1 | yes | 3.00 (2.00 to 4.00) |")
    assert markdown(run, far).endswith("| ≥ 1 | yes | 5.50 (5.00 to 6.00), changed |")


def test_the_page_and_the_help_name_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(["--help"])
    told = capsys.readouterr().out
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")

    assert [name for name in ROWS if f"\n  {name} " not in told] == []
    assert [name for name in ROWS if f"`{name}`" not in page] == []


def test_a_row_that_there_is_not_is_refused_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(["--only", "claims-1,nothing"])

    assert ended.value.code == 2
    assert "no row is called nothing; there are claims-10, claims-1," in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--rounds", "0"], "--rounds: at least one"),
        (["--jobs", "0"], "--jobs: at least one"),
        (["--json", "nowhere/run.json"], "there is no folder nowhere"),
        (["--markdown", "nowhere/run.md"], "there is no folder nowhere"),
        (["--from", "nowhere.json"], "there is no file nowhere.json"),
        (["--beside", "nowhere.json"], "there is no file nowhere.json"),
    ],
)
def test_what_could_not_be_done_in_the_end_is_refused_in_the_beginning(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(words)

    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def test_who_cannot_be_installed_is_said_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: str, **__: str) -> None:
        raise AssertionError

    monkeypatch.setattr(wheels, "run_uv", refused)

    with pytest.raises(RuntimeError, match="--no-peers"):
        _ = Peers(tmp_path).python


async def test_ours_is_measured_with_the_plans_of_a_worker(ground: Ground) -> None:
    async with (
        ground.database() as database,
        of_a_worker(database) as pool,
        pool.connection() as worker,
    ):
        assert "force_generic_plan" == await worker.fetchval("SHOW plan_cache_mode")


def test_the_others_are_pinned_and_none_of_them_is_ours() -> None:
    """Who installs the product or its tests is not brought a rival."""
    pins = re.findall(r"^([a-z-]+)(\[.+\])?(.*)$", REQUIREMENTS.read_text(), re.MULTILINE)
    lock = (ROOT / "uv.lock").read_text(encoding="utf-8")

    assert RIVALS <= {name for name, _, _ in pins}
    assert [name for name, _, pin in pins if not re.fullmatch(r"==[0-9.]+", pin)] == []
    assert [name for name in RIVALS if f'\nname = "{name}"\n' in lock] == []
    assert "\n/.bench/\n" in (ROOT / ".gitignore").read_text(encoding="utf-8")
