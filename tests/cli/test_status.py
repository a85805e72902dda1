"""`imagefleet status`: five lines, each by what makes it kept, at risk or broken."""

from datetime import timedelta

import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.jobs.model import JobState
from imagefleet.store.database import Connection
from tests.cli.conftest import Cli, Ended, failed
from tests.cli.world import COUNTED_BY_NOW
from tests.support.api import Running
from tests.support.factories import a_job, a_worker, open_breaker

LINES = ["published", "dark", "waiting", "trouble", "workers"]
COUNTED = """
INSERT INTO rollups (step, at, type, lane, promised, late)
SELECT step, date_trunc(step, counted_until - $1::interval, 'UTC'), $2, lane, $3, $4
  FROM rollup_progress, unnest('{minute,hour}'::text[]) AS step,
       unnest('{fast,general}'::text[]) AS lane
"""
HOURS_AGO = timedelta(hours=5)


@pytest.fixture(autouse=True)
async def maintained(running: Running, worker: Connection, superuser: Connection) -> None:
    """A worker, and somebody who looks after the fleet."""
    await a_worker(worker)
    await superuser.execute(COUNTED_BY_NOW)
    await superuser.execute(
        "INSERT INTO elections (name, holder, term, until)"
        " VALUES ('flusher', gen_random_uuid(), 1, now() + interval '1 hour')"
    )


async def counted(
    superuser: Connection,
    promised: int,
    late: int,
    *,
    ago: timedelta = timedelta(minutes=5),
    of: str = "process_image",
) -> None:
    """In each of two lanes."""
    await superuser.execute(COUNTED, ago, of, promised, late)


def told(ended: Ended) -> dict[str, tuple[str, str]]:
    """Each line's standing and sentence."""
    lines = {}
    for line in ended.out.splitlines():
        standing, name, sentence = line[:7].rstrip(), line[9:20].rstrip(), line[20:]
        lines[name] = (standing, sentence)
    return lines


async def test_of_a_fleet_that_is_well_each_of_five_lines_is_kept(
    operate: Cli, superuser: Connection
) -> None:
    await counted(superuser, 1000, 2)
    await counted(superuser, 20, 0, of="delete_image")

    ended = await operate("status")

    assert LINES == [*told(ended)]
    assert {"kept"} == {standing for standing, _ in told(ended).values()}
    assert "99.8 % of 2,000 within 30 s; last day 99.8 % of 2,000" == told(ended)["published"][1]
    assert "100 % of 40 within 60 s; last day 100 % of 40" == told(ended)["dark"][1]
    assert ExitCode.DONE == ended.code


@pytest.mark.parametrize(
    ("promised", "late", "ago", "standing"),
    [
        (1000, 11, timedelta(minutes=5), "broken"),
        (1000, 10, timedelta(minutes=5), "kept"),
        (1000, 11, HOURS_AGO, "at risk"),
        (2, 1, timedelta(minutes=5), "at risk"),  # two are no trend
    ],
)
async def test_a_promise_is_judged_by_the_last_hour_and_the_last_day(
    operate: Cli,
    superuser: Connection,
    promised: int,
    late: int,
    ago: timedelta,
    standing: str,
) -> None:
    await counted(superuser, promised, late, ago=ago)

    ended = await operate("status")

    assert standing == told(ended)["published"][0]
    assert (ExitCode.FAILED if standing == "broken" else ExitCode.DONE) == ended.code


async def test_almost_all_are_not_told_as_all(operate: Cli, superuser: Connection) -> None:
    await counted(superuser, 1_000_000, 1)

    assert "99.99 % of 2,000,000 within" in told(await operate("status"))["published"][1]


async def test_where_nothing_is_counted_any_more_the_line_says_until_when_it_was(
    operate: Cli, superuser: Connection
) -> None:
    await counted(superuser, 10, 0)
    await superuser.execute("UPDATE rollup_progress SET counted_until = now() - interval '6 min'")
    standing, sentence = told(await operate("status"))["published"]

    assert "at risk" == standing
    assert "counted until" in sentence


@pytest.mark.parametrize(("waited", "standing"), [(5, "kept"), (40, "at risk"), (3700, "broken")])
async def test_what_waits_is_judged_by_the_first(
    operate: Cli, worker: Connection, superuser: Connection, waited: int, standing: str
) -> None:
    await a_job(worker, superuser)
    await superuser.execute(
        "UPDATE jobs SET run_at = now() - $1::interval", timedelta(seconds=waited)
    )

    line = told(await operate("status"))["waiting"]

    assert standing == line[0]
    assert "1 job, the first due for" in line[1]


async def test_what_is_due_later_does_not_wait(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    await a_job(worker, superuser, due=False)

    assert ("kept", "1 job, the first due for 0 s (noop)") == (
        told(await operate("status"))["waiting"]
    )


@pytest.mark.parametrize(("owed", "standing"), [(20, "kept"), (70, "at risk"), (400, "broken")])
async def test_a_deletion_that_is_not_dark_yet_makes_a_promise_at_risk_then_broken(
    operate: Cli, superuser: Connection, owed: int, standing: str
) -> None:
    await superuser.execute(
        "INSERT INTO invalidations (image_id, tenant_id, reason, owed_at)"
        " VALUES (gen_random_uuid(), 'acme', 'deleted', now() - $1::interval)",
        timedelta(seconds=owed),
    )

    assert standing == told(await operate("status"))["dark"][0]


async def test_what_is_in_the_way_is_named_the_worst_first(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    await failed(worker, superuser, 2)
    assert ("at risk", "2 dead letters") == told(await operate("status"))["trouble"]

    await operate("queue", "pause", "--type", "noop", "--reason", "mending")
    await operate("queue", "pause", "--lane", "fast", "--reason", "mending")
    await open_breaker(worker)
    ended = await operate("status")

    assert (
        "broken",
        "s3 breaker open (s3_unavailable); 2 dead letters; lane fast paused; and 1 more",
    ) == told(ended)["trouble"]
    assert ExitCode.FAILED == ended.code


async def test_workers_that_are_silent_or_gone_are_told(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    await a_worker(worker)
    await a_job(worker, superuser, state=JobState.PROCESSING)
    assert ("kept", "3 workers, 1 of 27 slots busy") == told(await operate("status"))["workers"]

    silent = "UPDATE workers SET beat_at = now() - interval '20 s'"
    await superuser.execute(f"{silent} WHERE id = (SELECT id FROM workers LIMIT 1)")  # noqa: S608
    some = told(await operate("status"))["workers"]
    await superuser.execute(silent)
    everybody = told(await operate("status"))["workers"]
    await superuser.execute("UPDATE workers SET dead_at = now(), dead_why = 'silent'")
    nobody = told(await operate("status"))["workers"]

    assert ["at risk", "broken", "broken"] == [line[0] for line in (some, everybody, nobody)]
    assert "; 1 silent for 2" in some[1]
    assert "no worker" == nobody[1]


async def test_without_maintenance_nothing_is_promised(operate: Cli, superuser: Connection) -> None:
    await superuser.execute("DELETE FROM elections")

    line = told(await operate("status"))["workers"]

    assert "broken" == line[0]
    assert "no maintenance process" in line[1]


async def test_a_script_has_the_figures(operate: Cli, superuser: Connection) -> None:
    await counted(superuser, 10, 1)

    document = (await operate("status", "--json")).json()

    published = document["lines"][0]
    assert ("at risk", {"promised": 20, "late": 2}) == (document["status"], published["hour"])
    assert (30, 0.99) == (published["withinSeconds"], published["promisedShare"])


async def test_a_producer_is_told_what_it_may_ask(
    cli: Cli, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGEFLEET_URL", running.url)
    monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets["acme"])

    ended = await cli("status")

    assert ExitCode.REFUSED == ended.code
    assert "lacks the scope `operate`" in ended.err
    assert "`imagefleet jobs list`" in ended.err
