"""Pools, transactions, and what becomes of the driver's errors."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from uuid import uuid4

import asyncpg
import pytest
import uvloop

from imagefleet.errors import (
    ClaimLost,
    FleetError,
    IllegalTransition,
    Misconfigured,
    StoreRejected,
    Unavailable,
)
from imagefleet.store import database as subject
from imagefleet.store.database import Connection, Pool, connect, open_pool
from tests.support.database import Database

AWAY = "postgresql://imagefleet_api:secret-word@127.0.0.1:{port}/nowhere"


async def test_jsonb_travels_as_python_values(api: Connection) -> None:
    value = {"a": [1, 2.5, None, True], "text": "ünïcode \N{SNOWMAN}", "nested": {"b": []}}
    moment, identity = datetime(2024, 1, 2, tzinfo=UTC), uuid4()

    assert await api.fetchval("SELECT $1::jsonb", value) == value
    assert await api.fetchval("SELECT $1::jsonb -> 'text'", value) == value["text"]
    assert await api.fetchval("SELECT $1::jsonb", {"at": moment, "id": identity}) == {
        "at": "2024-01-02T00:00:00+00:00",
        "id": str(identity),
    }


async def test_a_session_tells_whose_it_is(database: Database) -> None:
    async with (
        open_pool(database.url("worker"), process="worker") as pool,
        pool.connection() as mine,
    ):
        row = await mine.fetchrow("SELECT current_user, current_setting('application_name')")

    assert row is not None
    assert tuple(row) == ("imagefleet_worker", "imagefleet-worker")


async def test_no_session_compiles_what_it_runs(database: Database) -> None:
    """Not even that of somebody who is no role of ours."""
    async with connect(database.url("superuser"), process="test") as connection:
        assert "off" == await connection.fetchval("SHOW jit")


async def test_a_transaction_is_committed_whole_or_not_at_all(database: Database) -> None:
    async with database.pool("owner") as pool:
        async with pool.connection() as connection, connection.transaction():
            await connection.execute("CREATE TABLE scratch (what text)")
            await connection.execute("INSERT INTO scratch VALUES ('kept')")
        with pytest.raises(ClaimLost):  # ours pass unchanged
            await write_and_lose_the_claim(pool)

        async with pool.connection() as connection:
            kept = await connection.fetchval("SELECT array_agg(what) FROM scratch")
    assert kept == ["kept"]


async def write_and_lose_the_claim(pool: Pool) -> None:
    async with pool.connection() as connection, connection.transaction():
        await connection.execute("INSERT INTO scratch VALUES ('lost')")
        reason = "for this test"
        raise ClaimLost(reason)


@pytest.mark.parametrize(
    ("state", "expected", "code"),
    [
        ("IF001", IllegalTransition, "illegal_transition"),
        ("08006", Unavailable, "database_unavailable"),
        ("25006", Unavailable, "database_unavailable"),  # a standby, after a failover
        ("53300", Unavailable, "database_unavailable"),
        ("57P01", Unavailable, "database_unavailable"),
        ("57P03", Unavailable, "database_unavailable"),
        ("58030", Unavailable, "database_unavailable"),
        ("28P01", Unavailable, "database_unavailable"),
        ("57014", Unavailable, "database_timeout"),
        ("25P03", Unavailable, "database_timeout"),
        ("40001", Unavailable, "database_conflict"),
        ("40P01", Unavailable, "database_conflict"),
        ("55P03", Unavailable, "database_conflict"),
        ("22021", StoreRejected, "store_rejected"),
        ("23505", StoreRejected, "store_rejected"),
        ("42501", StoreRejected, "store_rejected"),
        ("42P01", StoreRejected, "store_rejected"),
        ("XX000", StoreRejected, "store_rejected"),
    ],
)
async def test_every_sqlstate_has_one_meaning(
    api: Connection, state: str, expected: type[FleetError], code: str
) -> None:
    with pytest.raises(expected) as raised:
        await api.execute(f"DO $$ BEGIN RAISE 'as said' USING ERRCODE = '{state}'; END $$")

    assert raised.value.code == code
    assert "as said" in (raised.value.detail or "")
    assert "as said" not in raised.value.public_message


async def test_a_violation_names_the_constraint_and_quotes_no_row(
    owner: Connection,
) -> None:
    await owner.execute(
        "CREATE TABLE scratch (what text CONSTRAINT what_is_short CHECK (length(what) < 9))"
    )

    with pytest.raises(StoreRejected) as raised:
        await owner.execute("INSERT INTO scratch VALUES ($1)", "confidential")

    assert "constraint=what_is_short table=scratch" in (raised.value.detail or "")
    assert "confidential" not in str(raised.value)


@pytest.mark.parametrize("value", ["a\0b", "\ud800", 1, object()])
async def test_a_value_that_no_text_can_hold_is_rejected(api: Connection, value: object) -> None:
    with pytest.raises(StoreRejected):
        await api.fetchval("SELECT $1::text", value)


async def test_a_privilege_that_was_not_granted_is_rejected(api: Connection) -> None:
    with pytest.raises(StoreRejected, match="permission denied"):
        await api.execute("UPDATE jobs SET state = 'completed'")


async def test_a_misused_driver_is_a_bug_and_stays_what_it_is(api: Connection) -> None:
    async with asyncio.TaskGroup() as tasks:
        busy = tasks.create_task(api.fetchval("SELECT pg_sleep(0.2)"))
        await asyncio.sleep(0)
        with pytest.raises(asyncpg.InterfaceError, match="in progress"):
            await api.fetchval("SELECT 1")
    assert busy.done()


async def test_what_else_goes_wrong_in_between_is_not_the_databases(database: Database) -> None:
    lost = FileNotFoundError("of a handler")

    async def loses(connections: AbstractAsyncContextManager[Connection]) -> None:
        async with connections as connection, connection.transaction():
            await connection.fetchval("SELECT 1")
            raise lost

    async with database.pool("api") as pool:
        for one in (pool.use("find_job", "jobs"), pool.connection(), database.connect("api")):
            with pytest.raises(FileNotFoundError) as raised:
                await loses(one)
            assert lost is raised.value
        async with pool.connection() as connection:
            with pytest.raises(TimeoutError):  # of whoever waits, not of the statement
                await asyncio.wait_for(connection.fetchval("SELECT pg_sleep(30)"), timeout=0.01)


async def test_a_use_is_told_with_its_name_and_how_it_ended(database: Database) -> None:
    told: list[object] = []

    @contextmanager
    def timing(operation: str, table: str) -> Iterator[None]:
        told.append((operation, table))
        try:
            yield
        except Unavailable as error:
            told.append(error.code)
            raise

    async with database.pool("api", max_size=1) as pool:
        timed = pool.timed_by(timing)
        async with timed.use("find_job", "jobs") as connection:
            assert await connection.fetchval("SELECT 1") == 1
            with pytest.raises(Unavailable):
                async with timed.use("ping", within=0.05):
                    pytest.fail("there was a second one")
        async with timed.connection():
            pass

    assert told == [("find_job", "jobs"), ("ping", ""), "database_timeout"]


async def test_what_is_refused_at_the_commit_is_translated(owner: Connection) -> None:
    await owner.execute(
        "CREATE TABLE scratch (one int CONSTRAINT once UNIQUE DEFERRABLE INITIALLY DEFERRED)"
    )

    with pytest.raises(StoreRejected, match="constraint=once"):
        async with owner.transaction():
            await owner.executemany("INSERT INTO scratch VALUES ($1)", [(1,), (1,)])


LAST_WORDS = b"SFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"


async def test_a_server_whose_last_word_was_heard_is_not_there(database: Database) -> None:
    """Between that and the end of the connection a statement is refused by the driver itself."""
    async with connect(database.url("api"), process="test") as connection:
        heard = b"E" + (len(LAST_WORDS) + 4).to_bytes(4, "big") + LAST_WORDS
        connection._driver._protocol.data_received(heard)  # type: ignore[union-attr]

        with pytest.raises(Unavailable) as raised:
            await connection.fetch("SELECT 1")
        connection.terminate()

    assert raised.value.code == "database_unavailable"


async def test_a_plan_that_a_migration_outdated_is_a_conflict(
    owner: Connection, database: Database
) -> None:
    await owner.execute("CREATE TABLE scratch AS SELECT 1 AS one")
    async with database.connect("owner") as other:
        await owner.fetch("SELECT * FROM scratch")
        await other.execute("ALTER TABLE scratch ALTER COLUMN one TYPE text")

        with pytest.raises(Unavailable) as raised:
            async with owner.transaction():
                await owner.fetch("SELECT * FROM scratch")

    assert raised.value.code == "database_conflict"


async def test_the_server_ends_a_statement_that_takes_too_long(database: Database) -> None:
    url = database.url("api")
    async with open_pool(url, process="api", statement_within=0.05) as pool:
        with pytest.raises(Unavailable, match="statement timeout") as raised:
            async with pool.connection() as connection:
                await connection.fetchval("SELECT pg_sleep(30)")

        async with pool.connection() as connection:  # and the pool goes on
            assert await connection.fetchval("SELECT 1") == 1
    assert raised.value.code == "database_timeout"


async def test_we_end_it_when_the_server_does_not(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "SILENCE", 0)
    async with open_pool(
        database.url("api"), process="api", statement_within=0.5, pooler="pgbouncer"
    ) as pool:
        with pytest.raises(Unavailable) as raised:
            async with pool.connection() as connection, connection.transaction():
                await connection.fetchval("SELECT pg_sleep(30)")

        async with pool.connection() as connection:
            assert await connection.fetchval("SELECT 1") == 1
    assert raised.value.code == "database_timeout"


async def test_a_pool_with_no_free_connection_says_so_in_time(database: Database) -> None:
    async with database.pool("api", max_size=1) as pool, pool.connection():
        with pytest.raises(Unavailable) as raised:
            async with pool.connection(within=0.05):
                pytest.fail("there was a second one")

    assert raised.value.code == "database_timeout"


async def test_a_session_that_was_ended_is_replaced(database: Database) -> None:
    async with database.pool("api", max_size=1) as pool:
        async with pool.connection() as connection:
            pid = await connection.fetchval("SELECT pg_backend_pid()")
        with pytest.raises(Unavailable) as raised:
            async with pool.connection() as connection, connection.transaction():
                await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

        async with pool.connection() as connection:
            assert await connection.fetchval("SELECT pg_backend_pid()") != pid
    assert raised.value.code == "database_unavailable"


async def test_an_open_transaction_never_goes_back_into_the_pool(database: Database) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, what: reported.append(what))
    async with database.pool("api", max_size=1) as pool:
        async with pool.connection() as connection:
            await connection.execute("BEGIN")
        async with pool.connection() as connection:
            assert not connection.is_in_transaction()

    assert len(reported) == 1


async def test_behind_pgbouncer_nothing_relies_on_the_session(database: Database) -> None:
    url = database.url("api")
    async with (
        open_pool(url, process="api", pooler="pgbouncer") as pool,
        pool.connection() as mine,
    ):
        value = await mine.fetchval("SELECT $1::jsonb", {"a": 1})
        prepared = await mine.fetchval("SELECT count(*) FROM pg_prepared_statements")
        limit = await mine.fetchval("SHOW statement_timeout")

    assert value == {"a": 1}
    assert prepared == 0
    assert limit == "10s"  # the role's own


async def test_nobody_listening_is_unavailable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = AWAY.format(port=closed.getsockname()[1])

        with pytest.raises(Unavailable) as raised:
            async with open_pool(url, process="api"):
                pytest.fail("connected to nobody")

    assert raised.value.code == "database_unavailable"
    assert "secret-word" not in str(raised.value)


async def test_a_pool_may_open_before_the_database_is_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = AWAY.format(port=closed.getsockname()[1])

        async with open_pool(url, process="api", min_size=0) as pool:
            with pytest.raises(Unavailable):
                async with pool.connection():
                    pytest.fail("connected to nobody")


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """Accepts and never answers, like a host behind a firewall that drops packets."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


async def test_a_silent_server_is_given_up() -> None:
    async with silent_server() as port:
        with pytest.raises(Unavailable) as raised:
            async with connect(AWAY.format(port=port), process="api", connect_within=0.05):
                pytest.fail("connected to silence")

    assert raised.value.code == "database_timeout"


async def test_wrong_credentials_stop_the_start_and_are_not_repeated(database: Database) -> None:
    url = database.url("api").replace("api-of-tests", "secret-word")

    with pytest.raises(Misconfigured, match="password authentication failed") as raised:
        async with open_pool(url, process="api"):
            pytest.fail("was let in")

    assert "secret-word" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:secret-word@localhost/x",
        "postgresql://u:secret-word@localhost:port/x",
        "postgresql://u:sec/ret-word@localhost/x",
    ],
)
async def test_a_url_that_cannot_be_read_is_not_repeated(url: str) -> None:
    with pytest.raises(Misconfigured) as raised:
        async with open_pool(url, process="api", min_size=0):
            pytest.fail("was read")

    assert "ret-word" not in str(raised.value)


async def test_closing_does_not_wait_for_ever(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "CLOSE_WITHIN", 0.05)
    async with asyncio.timeout(2), open_pool(database.url("api"), process="api") as pool:
        await pool._driver.acquire()


def test_it_works_on_uvloop(database: Database) -> None:
    async def use() -> object:
        async with open_pool(database.url("api"), process="api", statement_within=0.05) as pool:
            with pytest.raises(Unavailable):
                async with pool.connection() as connection, connection.transaction():
                    await connection.fetchval("SELECT pg_sleep(30)")
            async with pool.connection() as connection, connection.transaction():
                return await connection.fetchval("SELECT $1::jsonb", {"a": 1})

    assert uvloop.run(use()) == {"a": 1}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p%40w@first:5432,second:5433/x?target_session_attrs=primary",
        "postgres://u@[::1]:5432/x",
        "postgresql:///x?host=/run/postgresql",
    ],
)
async def test_a_url_may_be_of_any_form_the_driver_reads(url: str) -> None:
    async with open_pool(url, process="api", min_size=0):
        pass
