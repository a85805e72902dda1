"""Offices have one holder, and periods one runner."""

from datetime import datetime, timedelta
from functools import partial
from uuid import UUID, uuid4

from imagefleet.store.database import Connection
from imagefleet.store.fleet.elections import (
    begin_period,
    finish_period,
    forget_periods,
    hold_election,
    resign,
)
from tests.support.database import Database
from tests.support.races import all_at_once, many_connections

OFFICE = "sampler"
ONE, TWO = uuid4(), uuid4()
HOUR = timedelta(hours=1)


async def run_out(superuser: Connection) -> None:
    await superuser.execute("UPDATE elections SET until = now() - interval '1 second'")


async def test_of_many_candidates_one_wins(database: Database) -> None:
    async def stand(connection: Connection) -> int | None:
        return await hold_election(connection, OFFICE, uuid4())

    async with many_connections(database, "maintenance", 10) as connections:
        terms = await all_at_once([partial(stand, connection) for connection in connections])

    assert [1] == [term for term in terms if term is not None]


async def test_the_holder_renews_its_own_term(
    maintenance: Connection, superuser: Connection
) -> None:
    await hold_election(maintenance, OFFICE, ONE)
    await superuser.execute("UPDATE elections SET until = now() + interval '1 second'")

    term = await hold_election(maintenance, OFFICE, ONE)

    left = await maintenance.fetchval("SELECT until - now() FROM elections")
    assert 1 == term
    assert timedelta(seconds=5) < left <= timedelta(seconds=10)


async def test_an_office_that_is_held_is_not_given_to_another(
    maintenance: Connection,
) -> None:
    await hold_election(maintenance, OFFICE, ONE)

    assert await hold_election(maintenance, OFFICE, TWO) is None
    assert 1 == await hold_election(maintenance, OFFICE, ONE)


async def test_an_office_whose_holder_went_silent_is_taken_over(
    maintenance: Connection, superuser: Connection
) -> None:
    await hold_election(maintenance, OFFICE, ONE)
    await run_out(superuser)

    assert 2 == await hold_election(maintenance, OFFICE, TWO)
    assert await hold_election(maintenance, OFFICE, ONE) is None


async def test_a_holder_that_comes_back_in_time_keeps_its_term(
    maintenance: Connection, superuser: Connection
) -> None:
    await hold_election(maintenance, OFFICE, ONE)
    await run_out(superuser)

    assert 1 == await hold_election(maintenance, OFFICE, ONE)


async def test_who_resigns_is_followed_at_once_under_a_new_term(
    maintenance: Connection,
) -> None:
    await hold_election(maintenance, OFFICE, ONE)

    await resign(maintenance, OFFICE, ONE)

    assert 2 == await hold_election(maintenance, OFFICE, TWO)


async def test_nobody_resigns_for_another(maintenance: Connection) -> None:
    await hold_election(maintenance, OFFICE, ONE)

    await resign(maintenance, OFFICE, TWO)

    assert await hold_election(maintenance, OFFICE, TWO) is None


async def test_offices_are_held_apart(maintenance: Connection) -> None:
    await hold_election(maintenance, OFFICE, ONE)

    assert 1 == await hold_election(maintenance, "flusher", TWO)


async def test_a_period_runs_once_among_many(database: Database) -> None:
    async def begin(connection: Connection) -> datetime | None:
        return await begin_period(connection, "prune", timedelta(days=365), uuid4())

    async with many_connections(database, "maintenance", 10) as connections:
        starts = await all_at_once([partial(begin, connection) for connection in connections])

    assert 1 == len([start for start in starts if start is not None])


async def begin_again(maintenance: Connection, name: str = "prune") -> datetime | None:
    return await begin_period(maintenance, name, HOUR, ONE)


async def test_a_period_begins_on_the_clock_of_the_database(
    maintenance: Connection,
) -> None:
    start = await begin_again(maintenance)

    now = await maintenance.fetchval("SELECT now()")
    assert start is not None
    assert (0, 0, 0) == (start.minute, start.second, start.microsecond)
    assert start <= now < start + 2 * HOUR


async def test_the_next_period_is_another_and_the_missed_ones_are_not_made_up(
    maintenance: Connection, superuser: Connection
) -> None:
    first = await begin_again(maintenance)
    await superuser.execute("UPDATE periods SET period_start = period_start - interval '5 hours'")

    second = await begin_again(maintenance)

    assert first is not None
    assert second is not None
    assert second - first in {timedelta(0), HOUR}  # the hour may have struck
    assert 2 == await maintenance.fetchval("SELECT count(*) FROM periods")


async def test_steps_have_periods_of_their_own(maintenance: Connection) -> None:
    await begin_again(maintenance)

    assert await begin_again(maintenance, "sweep") is not None


async def test_a_finished_period_tells_what_it_did(maintenance: Connection) -> None:
    start = await begin_again(maintenance)
    assert start is not None

    await finish_period(maintenance, "prune", start, {"pruned": 3})

    row = await maintenance.fetchrow("SELECT holder, finished_at, report FROM periods")
    assert row is not None
    assert (ONE, {"pruned": 3}) == (UUID(str(row["holder"])), row["report"])
    assert row["finished_at"] is not None


async def test_the_newest_period_of_each_step_is_never_forgotten(
    maintenance: Connection, superuser: Connection
) -> None:
    for name in ("prune", "sweep_walk"):
        await begin_again(maintenance, name)
        await superuser.execute(
            "UPDATE periods SET period_start = period_start - interval '3 days',"
            "       started_at = started_at - interval '3 days'"
        )
    await begin_again(maintenance, "prune")

    await forget_periods(maintenance)

    rows = await superuser.fetch(
        "SELECT name, started_at < now() - interval '1 day' AS old FROM periods ORDER BY name"
    )
    assert [("prune", False), ("sweep_walk", True)] == [(row["name"], row["old"]) for row in rows]
