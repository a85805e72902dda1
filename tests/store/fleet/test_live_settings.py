"""What operators turned, as the rows say it, and how little is read while nothing changes."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from imagefleet.errors import StoreRejected, Unavailable
from imagefleet.store.database import Connection
from imagefleet.store.fleet.live_settings import (
    MOST_SETTINGS,
    LiveRows,
    list_turned,
    read_defaults,
    read_live,
    tell_defaults,
    turn,
    turn_back,
    turn_retention,
)
from tests.support.database import Database, Role, driver_of

RETENTION = "SELECT retention FROM fleet"


async def everything(connection: Connection) -> LiveRows:
    rows = await read_live(connection, None)
    assert rows is not None
    return rows


async def limit(superuser: Connection, tenant: str, name: str, value: int) -> None:
    await superuser.execute(
        "INSERT INTO tenants (id, name) VALUES ($1, $1) ON CONFLICT DO NOTHING", tenant
    )
    await superuser.execute(
        "INSERT INTO tenant_limits (tenant_id, name, value, set_by, reason)"
        " VALUES ($1, $2, $3, 'me', 'why')",
        tenant,
        name,
        value,
    )


async def test_everything_is_read_once_and_then_only_its_version(
    operator: Connection, api: Connection, superuser: Connection
) -> None:
    await turn(operator, "slots.lane.fast", 2, by="me", reason="why")
    await turn(operator, "retention.sweep_deletes", value=False, by="me", reason="why")
    await limit(superuser, "acme", "streams", 7)

    first = await everything(api)

    assert {"slots.lane.fast": 2, "retention.sweep_deletes": False} == first.settings
    assert {("acme", "streams"): 7} == first.limits
    assert await read_live(api, first.version) is None


async def test_every_change_is_seen_whoever_makes_it_and_however(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    seen = [(await everything(worker)).version]

    async def changed() -> LiveRows:
        rows = await read_live(worker, seen[-1])
        assert rows is not None
        seen.append(rows.version)
        return rows

    await turn(operator, "slots.lane.fast", 2, by="me", reason="why")
    assert {"slots.lane.fast": 2} == (await changed()).settings
    await turn(operator, "slots.lane.fast", 1, by="me", reason="why")
    assert {"slots.lane.fast": 1} == (await changed()).settings
    await limit(superuser, "acme", "streams", 7)
    assert {("acme", "streams"): 7} == (await changed()).limits
    await operator.execute("UPDATE tenant_limits SET value = 0")
    assert {("acme", "streams"): 0} == (await changed()).limits
    await operator.execute("DELETE FROM tenant_limits")
    assert {} == (await changed()).limits
    await turn_back(operator, "slots.lane.fast")
    assert {} == (await changed()).settings
    await superuser.execute("TRUNCATE live_settings")
    assert {} == (await changed()).settings


async def test_a_transaction_that_began_earlier_and_commits_later_is_seen(
    database: Database, worker: Connection
) -> None:
    """By times it would not be: its row is older than what was read before it."""
    async with database.connect("operator") as one, database.connect("operator") as other:
        early = driver_of(one).transaction()
        await early.start()
        await one.fetchval("SELECT now()")
        await turn(other, "slots.lane.fast", 2, by="other", reason="why")
        seen = await everything(worker)
        await turn(one, "slots.lane.general", 1, by="one", reason="why")
        assert await read_live(worker, seen.version) is None
        await early.commit()

    rows = await read_live(worker, seen.version)

    assert rows is not None
    assert {"slots.lane.fast": 2, "slots.lane.general": 1} == rows.settings


async def test_no_more_rows_are_read_than_there_may_be(
    superuser: Connection, worker: Connection
) -> None:
    await superuser.execute(
        "INSERT INTO live_settings (name, value, set_by, reason)"
        " SELECT 'slots.type.t' || lpad(n::text, 5, '0'), '1', 'me', 'why'"
        "   FROM generate_series(1, $1) AS n",
        MOST_SETTINGS + 50,
    )

    assert MOST_SETTINGS == len((await everything(worker)).settings)


@pytest.mark.parametrize("role", ["api", "worker", "maintenance"])
async def test_processes_read_and_turn_nothing(role: Role, database: Database) -> None:
    async with database.connect(role) as connection:
        with pytest.raises(StoreRejected):
            await turn(connection, "slots.lane.fast", 2, by="me", reason="why")
        with pytest.raises(StoreRejected):
            await turn_back(connection, "slots.lane.fast")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await driver_of(connection).execute("UPDATE live_version SET version = 0")


async def test_who_turned_it_and_why_is_kept(operator: Connection) -> None:
    await turn(operator, "slots.lane.fast", 2, by="me", reason="the first")
    await turn(operator, "slots.lane.fast", 1, by="you", reason="the second")

    ((name, row),) = (await list_turned(operator)).items()

    assert ("slots.lane.fast", 1, "you", "the second") == (
        name,
        row.value,
        row.set_by,
        row.reason,
    )


async def test_a_process_that_knows_less_takes_no_default_away(
    worker: Connection, operator: Connection
) -> None:
    await tell_defaults(worker, "worker", {"slots.lane.fast": 3, "slots.lane.general": 8})
    await tell_defaults(worker, "worker", {"slots.lane.quarantine": 1, "slots.lane.fast": 4})

    defaults, _ = await read_defaults(operator)

    lanes = {"fast": 4, "general": 8, "quarantine": 1}
    assert {f"slots.lane.{lane}": slots for lane, slots in lanes.items()} == defaults["worker"]


async def test_defaults_are_those_of_who_started_last(
    api: Connection, worker: Connection, operator: Connection
) -> None:
    assert ({}, 30) == await read_defaults(operator)
    await tell_defaults(api, "api", {"retry.*.max_attempts": 5})
    await tell_defaults(worker, "worker", {"slots.lane.fast": 3})
    await tell_defaults(worker, "worker", {"slots.lane.fast": 8})
    told = await operator.fetchval("SELECT told_at FROM live_defaults WHERE process = 'worker'")
    await tell_defaults(worker, "worker", {"slots.lane.fast": 8})

    defaults, _ = await read_defaults(operator)

    assert {"api": {"retry.*.max_attempts": 5}, "worker": {"slots.lane.fast": 8}} == defaults
    assert told == await operator.fetchval(
        "SELECT told_at FROM live_defaults WHERE process = 'worker'"
    )


async def test_retention_goes_back_to_what_it_was_before_the_first_turn(
    operator: Connection, owner: Connection
) -> None:
    await owner.execute("UPDATE fleet SET retention = interval '90 days'")

    for days in (40, 50):
        await turn_retention(operator, days)
        assert timedelta(days=days) == await operator.fetchval(RETENTION)
        assert 90 == (await read_defaults(operator))[1]
    await turn_retention(operator, None)

    assert timedelta(days=90) == await operator.fetchval(RETENTION)
    await turn_retention(operator, None)
    assert timedelta(days=90) == await operator.fetchval(RETENTION)


async def test_a_retention_below_what_keys_are_promised_is_refused_by_the_database(
    operator: Connection,
) -> None:
    with pytest.raises(StoreRejected):
        await turn_retention(operator, 29)

    assert timedelta(days=30) == await operator.fetchval(RETENTION)


async def test_who_reads_does_not_wait_for_who_writes(
    operator: Connection, worker: Connection
) -> None:
    async with operator.transaction():
        await turn(operator, "slots.lane.fast", 2, by="me", reason="why")
        try:
            async with asyncio.timeout(5):
                assert {} == (await everything(worker)).settings
        except Unavailable:
            pytest.fail("a reader waited for a lock")
