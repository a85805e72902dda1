"""Bringing a database's schema to what this code needs: plain SQL files, in order, once each.

A file runs in one transaction together with the row that records it. A file whose first line is
`-- imagefleet: no-transaction` (CREATE INDEX CONCURRENTLY) runs statement by statement; it may be
killed half way, so it is written to be run again: DROP INDEX CONCURRENTLY IF EXISTS, then CREATE.
`-- imagefleet: breaking` says that code older than this file must no longer start.

Any number of runners may start at once, and any of them may be killed at any point. The lock is on
the connection that does the work: a server still busy for a killed runner still holds it. It is
polled, because a session that waits inside a statement is what CREATE INDEX CONCURRENTLY waits for.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from imagefleet.errors import FleetError, Misconfigured, StoreRejected, Unavailable
from imagefleet.settings.slices import Database
from imagefleet.store.database import Connection, Pool, connect, open_pool
from imagefleet.store.schema.migration_files import (
    Applied,
    Migration,
    shipped_migrations,
    statements,
)
from imagefleet.store.schema.roles import ROLES

# Statements that wait behind a long query make every later query wait behind them.
LOCK_TIMEOUT = "2s"
# Building an index concurrently waits for old transactions, and nobody waits for it.
PATIENT_LOCK_TIMEOUT = "15min"
STATEMENT_WITHIN = 3600.0  # seconds; an index of a large table
TRIES = 10  # on a lock timeout or a deadlock
RETRY_AFTER = 0.5  # seconds, and that much more each time: about 40 s in all with the timeouts
RUNNERS_LOCK = 0x1F1EE700  # any number of ours
RUNNERS_POLL = 0.1  # seconds
RUNNERS_WAIT = 600.0  # seconds a runner waits for another one


@dataclass(frozen=True, slots=True)
class Status:
    applied: tuple[Applied, ...]
    pending: tuple[Migration, ...]
    unknown: tuple[Applied, ...]
    """Applied by a newer version."""
    invalid_indexes: tuple[str, ...]


async def migrate(
    dsn: str, *, folder: Path | None = None, wait: float = RUNNERS_WAIT
) -> tuple[Migration, ...]:
    """Apply what is missing, as the owner and directly: a session lock fails behind PgBouncer."""
    shipped = shipped_migrations(folder)
    done = []
    async with connect(dsn, process="migrate", statement_within=STATEMENT_WITHIN) as connection:
        if await connection.is_shared():
            detail = "a pooler shares sessions, and migrations lock theirs: take Postgres's own URL"
            raise Misconfigured(detail)
        await _become_the_only_runner(connection, wait)
        # A server that works for a killed runner stops, and lets go of the lock.
        await connection.execute("SET client_connection_check_interval = '1s'")
        await connection.execute(CREATE_RECORD)
        missing = await pending(connection, shipped)
        if missing:
            await require_roles(connection)
        for migration in missing:
            await _apply_patiently(connection, migration)
            done.append(migration)
        _refuse_invalid_indexes(await invalid_indexes(connection))
    return tuple(done)


CREATE_RECORD = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version integer NOT NULL CONSTRAINT schema_migrations_pk PRIMARY KEY,
    name text NOT NULL,
    sha256 text NOT NULL,
    breaking boolean NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    duration_ms bigint NOT NULL
);
GRANT SELECT ON schema_migrations TO PUBLIC  -- every process compares it at its start
"""


MISSING_ROLES = """
SELECT ours.name
  FROM unnest($1::text[]) WITH ORDINALITY AS ours (name, place)
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE pg_roles.rolname = ours.name)
 ORDER BY ours.place
"""


async def require_roles(connection: Connection) -> None:
    """Refuse where a migration would: a new version may grant to a role that is new with it."""
    rows = await connection.fetch(MISSING_ROLES, list(ROLES))
    if rows:
        names = ", ".join(row["name"] for row in rows)
        detail = (
            f"there is no role {names}, which this version needs: run `imagefleet migrate --roles` "
            "as an administrator, it makes what is missing and then migrates"
        )
        raise Misconfigured(detail)


async def require_schema(
    connection: Connection, shipped: Sequence[Migration] | None = None
) -> None:
    """For a process at its start: refuse a database older than this code, or changed beyond it."""
    newest = (shipped or shipped_migrations())[-1]
    entries = await applied(connection)
    if len(entries) < newest.version:
        last = entries[-1] if entries else "nothing"
        detail = f"the database is at {last}, this code needs {newest}: run `imagefleet migrate`"
        raise Misconfigured(detail)
    breaking = [str(entry) for entry in entries[newest.version :] if entry.breaking]
    if breaking:
        detail = (
            f"the database has {', '.join(breaking)}, which code that knows only up to {newest} "
            "cannot work with: deploy the newer version"
        )
        raise Misconfigured(detail)


@asynccontextmanager
async def open_current(
    database: Database, process: str, *, generic_plans: bool = False
) -> AsyncIterator[Pool]:
    """The pool of a process for its life, on a schema that this code can work with."""
    async with open_pool(
        database.url.get_secret_value(),
        process=process,
        min_size=database.pool_min,
        max_size=database.pool_of(process),
        connect_within=database.connect_timeout.total_seconds(),
        statement_within=database.statement_timeout.total_seconds(),
        pooler=database.pooler,
        generic_plans=generic_plans,
    ) as pool:
        async with pool.connection() as connection:
            await require_schema(connection)
        yield pool


async def status(connection: Connection, shipped: Sequence[Migration] | None = None) -> Status:
    """Raises as `pending` does: what contradicts itself has no status."""
    files = shipped or shipped_migrations()
    entries = await applied(connection)
    return Status(
        entries,
        await pending(connection, files),
        entries[len(files) :],
        await invalid_indexes(connection),
    )


APPLIED = """
SELECT version, name, sha256, breaking FROM schema_migrations ORDER BY version
"""


async def applied(connection: Connection) -> tuple[Applied, ...]:
    """Oldest first; empty when nobody ever migrated this database."""
    if await connection.fetchval("SELECT to_regclass('schema_migrations') IS NULL"):
        return ()
    rows = await connection.fetch(APPLIED)
    entries = tuple(Applied(**row) for row in rows)
    if [entry.version for entry in entries] != list(range(1, len(entries) + 1)):
        detail = f"schema_migrations has a gap: {', '.join(map(str, entries))}"
        raise Misconfigured(detail)
    return entries


async def pending(connection: Connection, shipped: Sequence[Migration]) -> tuple[Migration, ...]:
    """What is still to be applied. An older code on a newer database has nothing to apply."""
    entries = await applied(connection)
    changed = [
        f"{file} was applied as {entry} with other contents"
        for entry, file in zip(entries, shipped, strict=False)
        if (entry.name, entry.sha256) != (file.name, file.sha256)
    ]
    if changed:
        detail = f"applied migrations are never edited, only followed: {'; '.join(changed)}"
        raise Misconfigured(detail)
    return tuple(shipped[len(entries) :])


INVALID_INDEXES = """
SELECT indexes.indexrelid::regclass::text
  FROM pg_index AS indexes
  JOIN pg_class AS class ON class.oid = indexes.indexrelid
 WHERE NOT indexes.indisvalid
   AND class.relkind = 'i'
   AND class.relnamespace = 'public'::regnamespace
   AND NOT EXISTS (  -- still being built by somebody
       SELECT FROM pg_stat_progress_create_index AS building
        WHERE building.index_relid = indexes.indexrelid)
 ORDER BY 1
"""


async def invalid_indexes(connection: Connection) -> tuple[str, ...]:
    """Left behind by a CREATE INDEX CONCURRENTLY that failed: kept up to date, never used."""
    return tuple(row[0] for row in await connection.fetch(INVALID_INDEXES))


def _refuse_invalid_indexes(names: Sequence[str]) -> None:
    if names:
        repair = "; ".join(f"DROP INDEX CONCURRENTLY {name}" for name in names)
        detail = (
            "an interrupted CREATE INDEX CONCURRENTLY left invalid indexes behind: "
            f"run `{repair}`, and create them again with a migration"
        )
        raise Misconfigured(detail)


HOLDER = """
SELECT format(
           'pid %s, %s, since %s',
           activity.pid, activity.application_name, activity.backend_start)
  FROM pg_locks AS locks
  JOIN pg_stat_activity AS activity ON activity.pid = locks.pid
 WHERE locks.locktype = 'advisory' AND locks.classid = 0 AND locks.objid = $1 AND locks.objsubid = 1
   AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND locks.granted
"""


async def _become_the_only_runner(connection: Connection, wait: float) -> None:
    """Until the connection closes, which is also how the lock ends when this process is killed."""
    deadline = time.monotonic() + wait
    while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", RUNNERS_LOCK):
        if time.monotonic() > deadline:
            holder = await connection.fetchval(HOLDER, RUNNERS_LOCK)
            raise Unavailable(
                "migration_running",
                "The database is being migrated.",
                f"another runner ({holder or 'just gone'}) still migrates after {wait:.0f} s",
            )
        await asyncio.sleep(RUNNERS_POLL)


async def _apply_patiently(connection: Connection, migration: Migration) -> None:
    for tried in range(1, TRIES + 1):
        try:
            await _apply(connection, migration)
        except Unavailable as error:
            if error.code != "database_conflict" or tried == TRIES:
                raise _named(error, migration) from error
            await asyncio.sleep(RETRY_AFTER * tried)
        except StoreRejected as error:
            raise _named(error, migration) from error
        else:
            return


def _named(error: Unavailable | StoreRejected, migration: Migration) -> FleetError:
    return type(error)(error.code, error.public_message, f"{migration}: {error.detail}")


async def _apply(connection: Connection, migration: Migration) -> None:
    started = time.monotonic()
    if migration.transactional:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            await connection.execute(migration.sql)
            await _record(connection, migration, started)
        return
    await connection.execute(f"SET lock_timeout = '{PATIENT_LOCK_TIMEOUT}'")
    for statement in statements(migration.sql):
        await connection.execute(statement)
    _refuse_invalid_indexes(await invalid_indexes(connection))
    await _record(connection, migration, started)


RECORD = """
INSERT INTO schema_migrations (version, name, sha256, breaking, duration_ms)
VALUES ($1, $2, $3, $4, $5)
"""


async def _record(connection: Connection, migration: Migration, started: float) -> None:
    duration_ms = round((time.monotonic() - started) * 1000)
    await connection.execute(
        RECORD,
        migration.version,
        migration.name,
        migration.sha256,
        migration.breaking,
        duration_ms,
    )
