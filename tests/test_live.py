"""A process follows what operators turn: soon, through outages, and whatever stands there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from imagefleet import live as live_module
from imagefleet.errors import Unavailable
from imagefleet.live import Live
from imagefleet.settings.in_force import Overlay
from imagefleet.store.database import Connection
from imagefleet.store.fleet.live_settings import turn, turn_back
from tests.support.database import Database
from tests.support.eventually import eventually

WITHIN = 10.0  # a look is a second away
DEFAULTS = {"slots.lane.fast": 3}


@asynccontextmanager
async def following(database: Database) -> AsyncIterator[Live]:
    async with (
        database.pool("worker") as pool,
        Live().open(pool, "worker", DEFAULTS) as live,
    ):
        yield live


async def turned(operator: Connection, name: str, value: object) -> None:
    await turn(operator, name, value, by="me", reason="why")


async def test_what_stands_already_holds_from_the_beginning(
    database: Database, operator: Connection
) -> None:
    await turned(operator, "slots.lane.fast", 2)

    async with following(database) as live:
        assert {"slots.lane.fast": 2} == live.now.turned


async def test_a_change_is_followed_told_and_undone(
    database: Database, operator: Connection
) -> None:
    seen: list[Overlay] = []
    with capture_logs() as lines:
        async with following(database) as live:
            live.watch(seen.append)
            await turned(operator, "slots.lane.fast", 2)
            await eventually(lambda: live.now.turned == {"slots.lane.fast": 2}, within=WITHIN)
            await turned(operator, "slots.lane.fast", 1)
            await eventually(lambda: live.now.turned == {"slots.lane.fast": 1}, within=WITHIN)
            await turn_back(operator, "slots.lane.fast")
            await eventually(lambda: live.now.turned == {}, within=WITHIN)

    assert [{}, {"slots.lane.fast": 2}, {"slots.lane.fast": 1}, {}] == [
        dict(one.turned) for one in seen
    ]
    told = [(line["name"], line["before"], line["after"]) for line in lines if "before" in line]
    assert [
        ("slots.lane.fast", None, 2),
        ("slots.lane.fast", 2, 1),
        ("slots.lane.fast", 1, None),
    ] == told
    assert {"setting.changed"} == {line["event"] for line in lines}


async def test_limits_of_a_tenant_are_followed_too(
    database: Database, superuser: Connection
) -> None:
    async with following(database) as live:
        await superuser.execute("INSERT INTO tenants (id, name) VALUES ('acme', 'Acme')")
        await superuser.execute(
            "INSERT INTO tenant_limits (tenant_id, name, value, set_by, reason)"
            " VALUES ('acme', 'streams', 4, 'me', 'why')"
        )

        assert 4 == await eventually(lambda: live.now.limit("acme", "streams"), within=WITHIN)


async def test_nothing_is_parsed_or_told_while_nothing_changes(
    database: Database, operator: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await turned(operator, "slots.lane.fast", 2)
    async with database.pool("worker") as pool, Live().open(pool, "worker", DEFAULTS) as live:
        now = live.now
        monkeypatch.setattr(live_module, "in_force", _never)

        for _ in range(3):
            await live.look(pool)

        assert now is live.now


def _never(*_arguments: object) -> None:
    pytest.fail("it was parsed again")


async def test_an_outage_leaves_what_was_read_last_in_force_and_is_told_once(
    database: Database, operator: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "LOOK_EVERY", 0.01)
    await turned(operator, "slots.lane.fast", 2)
    asked = 0

    async def away(_connection: Connection, _known: int | None) -> None:
        nonlocal asked
        asked += 1
        raise Unavailable("database_unavailable", "away")

    with capture_logs() as lines:
        async with following(database) as live:
            age = live.age
            with monkeypatch.context() as outage:
                outage.setattr(live_module, "read_live", away)
                await eventually(lambda: asked > 5, within=WITHIN)
                assert {"slots.lane.fast": 2} == live.now.turned
                assert live.age > age
            await turned(operator, "slots.lane.fast", 1)
            await eventually(lambda: live.now.turned == {"slots.lane.fast": 1}, within=WITHIN)

    assert ["database_unavailable"] == [
        line["code"] for line in lines if line["event"] == "settings.unread"
    ]


async def test_a_change_that_somebody_could_not_take_is_given_to_him_again_and_told_once(
    database: Database, operator: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "LOOK_EVERY", 0.01)
    given: list[Overlay] = []
    bad = True

    def take(now: Overlay) -> None:
        if now.turned:
            given.append(now)
            if bad:
                raise RuntimeError

    with capture_logs() as lines:
        async with following(database) as live:
            live.watch(take)
            await turned(operator, "slots.lane.fast", 2)
            await eventually(lambda: len(given) > 3, within=WITHIN)
            bad = False
            await eventually(lambda: live._version, within=WITHIN)
            tries = len(given)
            await eventually(lambda: live._failing is None, within=WITHIN)

    assert tries <= len(given) <= tries + 1
    told = [line["event"] for line in lines]
    assert (1, 1) == (told.count("settings.unread"), told.count("setting.changed"))


async def test_a_look_that_hangs_is_given_up_and_the_next_one_is_taken(
    database: Database, operator: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "LOOK_EVERY", 0.01)
    async with following(database) as live:
        with monkeypatch.context() as hanging:
            hanging.setattr(live_module, "LOOK_WITHIN", 0.05)
            hanging.setattr(live_module, "read_live", _hang)
            with capture_logs() as lines:
                await eventually(lambda: lines, within=WITHIN)
        await turned(operator, "slots.lane.fast", 1)

        await eventually(lambda: live.now.turned == {"slots.lane.fast": 1}, within=WITHIN)
    told = [(line["event"], line["code"]) for line in lines]
    assert [("settings.unread", "database_timeout")] == told


async def _hang(_connection: Connection, _known: int | None) -> None:
    await asyncio.Event().wait()


async def test_rows_of_a_newer_release_and_nonsense_are_told_once_and_ignored(
    database: Database, operator: Connection
) -> None:
    await turned(operator, "later.release", 1)
    await turned(operator, "slots.lane.fast", "two")

    with capture_logs() as lines:
        async with following(database) as live:
            await turned(operator, "slots.lane.general", 1)
            await eventually(lambda: live.now.turned == {"slots.lane.general": 1}, within=WITHIN)

    ignored = [(line["name"], line["why"]) for line in lines if line["event"] == "setting.ignored"]
    assert [
        ("later.release", "this release has no such setting"),
        ("slots.lane.fast", "slots.lane.fast is a whole number of slots from 0 to 100."),
    ] == ignored


async def test_what_a_process_would_do_by_itself_is_told(
    database: Database, operator: Connection
) -> None:
    async with following(database):
        pass

    assert DEFAULTS == await operator.fetchval("SELECT defaults FROM live_defaults")


async def test_a_process_that_cannot_read_does_not_start(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "LOOK_WITHIN", 0.05)
    monkeypatch.setattr(live_module, "read_live", _hang)

    with pytest.raises(Unavailable):
        async with following(database):
            pytest.fail("it started")


async def test_a_process_starts_though_what_it_would_do_by_itself_cannot_be_told(
    database: Database, operator: Connection
) -> None:
    await turned(operator, "slots.lane.fast", 2)
    too_much = {f"retry.type_{number}.{'a' * 40}": 10.0 for number in range(1_000)}

    with capture_logs() as lines:
        async with (
            database.pool("worker") as pool,
            Live().open(pool, "worker", DEFAULTS | too_much) as live,
        ):
            assert {"slots.lane.fast": 2} == live.now.turned

    (line,) = [line for line in lines if line["event"] == "settings.defaults_untold"]
    assert ("warning", "store_rejected") == (line["log_level"], line["code"])
