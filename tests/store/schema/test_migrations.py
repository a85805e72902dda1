"""The migration runner: order, repetition, rivals, and runners that are killed."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from imagefleet.errors import Misconfigured, StoreRejected, Unavailable
from imagefleet.store.database import Connection, connect
from imagefleet.store.schema import migrations
from imagefleet.store.schema.migration_files import shipped_migrations
from imagefleet.store.schema.migrations import (
    applied,
    invalid_indexes,
    migrate,
    pending,
    require_schema,
    status,
)
from tests.support.database import Database, driver_of
from tests.support.eventually import eventually

TABLE = "CREATE TABLE things (id bigint GENERATED ALWAYS AS IDENTITY, what text);"
FILL = "INSERT INTO things (what) VALUES ('once');"
INDEX = """-- imagefleet: no-transaction
DROP INDEX CONCURRENTLY IF EXISTS things_by_what;
CREATE INDEX CONCURRENTLY things_by_what ON things (what);
"""
RUNNER = "import asyncio, sys, pathlib; from imagefleet.store.schema.migrations import migrate; "
RUNNER += "asyncio.run(migrate(sys.argv[1], folder=pathlib.Path(sys.argv[2])))"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three migrations: a table, a row in it, an index built concurrently."""
    write(tmp_path, TABLE, FILL, INDEX)
    return tmp_path


def write(folder: Path, *files: str) -> None:
    for number, sql in enumerate(files, start=1):
        (folder / f"{number:04}_step.sql").write_text(sql)


@asynccontextmanager
async def owner_of(database: Database) -> AsyncIterator[Connection]:
    async with database.connect("owner") as connection:
        yield connection


async def test_files_are_applied_in_order_once_and_recorded(
    empty_database: Database, folder: Path
) -> None:
    url = empty_database.url("owner")

    first = await migrate(url, folder=folder)
    second = await migrate(url, folder=folder)

    assert [str(each) for each in first] == ["0001_step.sql", "0002_step.sql", "0003_step.sql"]
    assert second == ()
    async with owner_of(empty_database) as connection:
        assert await connection.fetchval("SELECT count(*) FROM things") == 1
        rows = await connection.fetch("SELECT * FROM schema_migrations ORDER BY version")
    assert [(row["version"], row["name"], row["sha256"]) for row in rows] == [
        (each.version, each.name, each.sha256) for each in first
    ]
    assert all(row["duration_ms"] >= 0 for row in rows)


async def test_the_products_own_migrations_leave_nothing_to_do(database: Database) -> None:
    async with owner_of(database) as connection:
        known = await status(connection)

    assert known.pending == ()
    assert known.invalid_indexes == ()
    assert len(known.applied) == len(shipped_migrations())


async def test_status_of_a_database_that_was_never_migrated(
    empty_database: Database, folder: Path
) -> None:
    async with owner_of(empty_database) as connection:
        known = await status(connection, shipped_migrations(folder))

    assert (known.applied, len(known.pending)) == ((), 3)


async def test_a_file_that_fails_leaves_nothing_and_is_named(
    empty_database: Database, tmp_path: Path
) -> None:
    write(tmp_path, TABLE, f"{FILL} SELECT 1 / 0;")

    with pytest.raises(StoreRejected, match=r"0002_step\.sql.*division by zero"):
        await migrate(empty_database.url("owner"), folder=tmp_path)

    async with owner_of(empty_database) as connection:
        assert await connection.fetchval("SELECT count(*) FROM things") == 0
        assert [each.version for each in await applied(connection)] == [1]


@pytest.mark.parametrize("change", ["contents", "name"])
async def test_a_migration_that_was_changed_after_it_was_applied_is_refused(
    empty_database: Database, folder: Path, change: str
) -> None:
    await migrate(empty_database.url("owner"), folder=folder)
    file = folder / "0002_step.sql"
    if change == "contents":
        file.write_text(FILL.replace("once", "twice"))
    else:
        file.rename(folder / "0002_stride.sql")

    with pytest.raises(Misconfigured, match="never edited"):
        await migrate(empty_database.url("owner"), folder=folder)


async def test_a_gap_in_what_was_applied_is_refused(empty_database: Database, folder: Path) -> None:
    await migrate(empty_database.url("owner"), folder=folder)
    async with owner_of(empty_database) as connection:
        await connection.execute("DELETE FROM schema_migrations WHERE version = 2")

        with pytest.raises(Misconfigured, match="gap"):
            await pending(connection, shipped_migrations(folder))


@pytest.mark.parametrize("runners", [2, 8])
async def test_rival_runners_apply_every_file_once(
    empty_database: Database, folder: Path, runners: int
) -> None:
    url = empty_database.url("owner")

    async with asyncio.timeout(20):
        done = await asyncio.gather(*(migrate(url, folder=folder) for _ in range(runners)))

    assert sorted(len(each) for each in done) == [0] * (runners - 1) + [3]
    async with owner_of(empty_database) as connection:
        assert await connection.fetchval("SELECT count(*) FROM things") == 1
        assert await invalid_indexes(connection) == ()


async def test_an_index_is_built_while_another_runner_waits_for_its_turn(
    empty_database: Database, folder: Path
) -> None:
    """The other one must not wait inside a statement: the build would wait for it, for ever."""
    url = empty_database.url("owner")
    (folder / "0003_step.sql").unlink()
    await migrate(url, folder=folder)
    write(folder, TABLE, FILL, INDEX)
    async with owner_of(empty_database) as connection, owner_of(empty_database) as watcher:
        snapshot = driver_of(connection).transaction(isolation="repeatable_read")
        await snapshot.start()
        await connection.fetchval("SELECT count(*) FROM things")  # what the build has to wait for
        async with asyncio.TaskGroup() as both:
            builder = both.create_task(migrate(url, folder=folder))
            await eventually(lambda: is_running(watcher, "CREATE INDEX CONCURRENTLY"))
            waiter = both.create_task(migrate(url, folder=folder))
            await eventually(lambda: runners_connected(watcher, 2))
            await snapshot.rollback()

    assert (len(builder.result()), waiter.result()) == (1, ())


async def is_running(watcher: Connection, statement: str) -> bool:
    waiting = await watcher.fetchval(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()"
        " AND state = 'active' AND pid <> pg_backend_pid() AND query LIKE '%' || $1 || '%')",
        statement,
    )
    return bool(waiting)


async def runners_connected(watcher: Connection, number: int) -> bool:
    waiting = await watcher.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'imagefleet-migrate'"
    )
    return bool(waiting == number)


async def test_a_runner_that_waits_too_long_names_the_other_one(
    empty_database: Database, folder: Path
) -> None:
    url = empty_database.url("owner")
    async with connect(url, process="rival") as rival:
        await rival.fetchval("SELECT pg_try_advisory_lock($1)", migrations.RUNNERS_LOCK)

        with pytest.raises(Unavailable, match=r"pid \d+, imagefleet-rival") as refused:
            await migrate(url, folder=folder, wait=0.2)

    assert refused.value.code == "migration_running"


@asynccontextmanager
async def runner_killed_at(
    database: Database, folder: Path, statement: str
) -> AsyncIterator[Connection]:
    """A runner in its own process, killed outright while the server executes this statement."""
    command = [sys.executable, "-c", RUNNER, database.url("owner"), str(folder)]
    async with owner_of(database) as watcher:
        runner = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
        await eventually(lambda: is_running(watcher, statement), within=10)
        runner.kill()
        assert await runner.wait() == -signal.SIGKILL
        yield watcher


async def test_a_runner_killed_inside_a_file_has_not_applied_it(
    empty_database: Database, folder: Path
) -> None:
    held_up = (
        "DO $$ BEGIN WHILE EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(30); END LOOP; END $$;"
    )
    write(folder, f"{TABLE} CREATE TABLE gate AS SELECT 1 AS closed;", f"{FILL} {held_up}", INDEX)

    async with runner_killed_at(empty_database, folder, "pg_sleep") as watcher:
        await watcher.execute("DELETE FROM gate")
    done = await migrate(empty_database.url("owner"), folder=folder, wait=10)

    assert [each.version for each in done] == [2, 3]
    async with owner_of(empty_database) as connection:
        assert await connection.fetchval("SELECT count(*) FROM things") == 1


async def test_a_runner_killed_inside_an_index_build_is_followed_by_a_whole_index(
    empty_database: Database, folder: Path
) -> None:
    (folder / "0003_step.sql").unlink()
    await migrate(empty_database.url("owner"), folder=folder)
    write(folder, TABLE, FILL, INDEX)
    async with owner_of(empty_database) as reader:
        snapshot = driver_of(reader).transaction(isolation="repeatable_read")
        await snapshot.start()
        await reader.fetchval("SELECT count(*) FROM things")
        async with runner_killed_at(empty_database, folder, "CREATE INDEX") as watcher:
            await eventually(lambda: runners_connected(watcher, 0), within=5)
            assert await invalid_indexes(watcher) == ("things_by_what",)
        await snapshot.rollback()

    done = await migrate(empty_database.url("owner"), folder=folder, wait=10)

    assert [each.version for each in done] == [3]
    async with owner_of(empty_database) as connection:
        assert await invalid_indexes(connection) == ()


async def test_an_invalid_index_left_behind_is_reported_until_somebody_acts(
    empty_database: Database, folder: Path
) -> None:
    url = empty_database.url("owner")
    write(folder, TABLE, FILL + FILL, INDEX.replace("CREATE INDEX", "CREATE UNIQUE INDEX"))

    with pytest.raises(StoreRejected, match=r"0003_step\.sql.*things_by_what"):
        await migrate(url, folder=folder)
    (folder / "0003_step.sql").unlink()

    with pytest.raises(Misconfigured, match="DROP INDEX CONCURRENTLY things_by_what"):
        await migrate(url, folder=folder)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "LOCK_TIMEOUT", "20ms")
    monkeypatch.setattr(migrations, "RETRY_AFTER", 0.005)


@pytest.mark.usefixtures("impatient")
async def test_a_table_in_use_is_tried_again_until_it_is_free(
    empty_database: Database, tmp_path: Path
) -> None:
    url = empty_database.url("owner")
    write(tmp_path, TABLE)
    await migrate(url, folder=tmp_path)
    write(tmp_path, TABLE, "ALTER TABLE things ADD COLUMN more text;")
    async with owner_of(empty_database) as reader:
        reading = driver_of(reader).transaction()
        await reading.start()
        await reader.fetchval("SELECT count(*) FROM things")

        with pytest.raises(Unavailable, match=r"0002_step\.sql") as gave_up:
            await migrate(url, folder=tmp_path)
        assert gave_up.value.code == "database_conflict"

        async with asyncio.TaskGroup() as tasks:
            runner = tasks.create_task(migrate(url, folder=tmp_path))
            async with owner_of(empty_database) as watcher:
                await eventually(lambda: is_running(watcher, "ADD COLUMN"))
            await reading.rollback()
    assert len(runner.result()) == 1


async def test_every_process_may_check_the_schema_it_needs(database: Database) -> None:
    for role in ("api", "worker", "maintenance", "operator"):
        async with database.connect(role) as connection:
            await require_schema(connection)


async def test_a_database_older_than_the_code_is_refused(
    empty_database: Database, folder: Path
) -> None:
    shipped = shipped_migrations(folder)
    async with owner_of(empty_database) as connection:
        with pytest.raises(Misconfigured, match="at nothing, this code needs 0003_step"):
            await require_schema(connection, shipped)
        (folder / "0003_step.sql").unlink()
        await migrate(empty_database.url("owner"), folder=folder)

        with pytest.raises(Misconfigured, match="at 0002_step"):
            await require_schema(connection, shipped)


async def test_a_newer_database_is_refused_only_where_it_says_that_it_breaks_older_code(
    empty_database: Database, folder: Path
) -> None:
    shipped = shipped_migrations(folder)
    url = empty_database.url("owner")
    async with owner_of(empty_database) as connection:
        write(folder, TABLE, FILL, INDEX, "SELECT 1;")
        await migrate(url, folder=folder)
        await require_schema(connection, shipped)
        assert await pending(connection, shipped) == ()

        write(folder, TABLE, FILL, INDEX, "SELECT 1;", "-- imagefleet: breaking\nSELECT 1;")
        await migrate(url, folder=folder)
        with pytest.raises(Misconfigured, match=r"0005_step\.sql"):
            await require_schema(connection, shipped)
