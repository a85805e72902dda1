"""What is foretold of a migration is what Postgres does: each lock, each scan, each rewrite."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

import pytest

from imagefleet.store.database import Connection
from imagefleet.store.schema import locks
from imagefleet.store.schema.locks import ROW, Step, foretell, plan
from imagefleet.store.schema.migration_files import Migration, shipped_migrations
from imagefleet.store.schema.roles import ensure_roles
from tests.support.database import PASSWORDS, Database, copied_database, of_debian, own_server
from tests.support.eventually import eventually

Seen: TypeAlias = dict[str, tuple[str, str]]
"""By table, the strongest lock on it and what was done under it."""

THERE: Final = """
SELECT oid FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')
"""
HELD: Final = """
SELECT class.relname, array_agg(locks.mode) AS modes
  FROM pg_locks AS locks
  JOIN pg_class AS class ON class.oid = locks.relation
 WHERE locks.pid = $1 AND class.oid = ANY ($2::oid[]) AND locks.granted
 GROUP BY 1
"""
DONE: Final = """
SELECT class.relname, pg_relation_filenode(class.oid) AS filenode,
       coalesce(told.seq_scan, 0) AS scans
  FROM pg_class AS class
  LEFT JOIN pg_stat_xact_user_tables AS told ON told.relid = class.oid
 WHERE class.oid = ANY ($1::oid[]) AND class.relkind = 'r'
"""
SPELLED: Final = {
    "".join(word.title() for word in mode.split()) + "Lock": mode for mode in locks.MODES
}

PLAYGROUND: Final = """
CREATE TABLE lonely (id integer);
CREATE TABLE elders (id integer PRIMARY KEY, name text);
CREATE TABLE things (id integer, what text, number integer NOT NULL DEFAULT 1, elder integer,
    CONSTRAINT things_are_few CHECK (id < 1000),
    CONSTRAINT things_differ UNIQUE (id));
CREATE INDEX things_by_what ON things (what);
CREATE UNIQUE INDEX things_by_number ON things (number);
CREATE VIEW seen AS SELECT id FROM things;
CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER looked AFTER INSERT ON things EXECUTE FUNCTION look();
ALTER TABLE things ADD CONSTRAINT things_later CHECK (id > 0) NOT VALID;
CREATE TABLE of_elders (id integer, elder integer,
    CONSTRAINT it_is_of_an_elder FOREIGN KEY (elder) REFERENCES elders (id));
INSERT INTO elders VALUES (1, 'one');
INSERT INTO things (id, what, elder) VALUES (1, 'one', 1);
"""
STATEMENTS: Final = (
    "CREATE INDEX more ON things (id)",
    "CREATE UNIQUE INDEX IF NOT EXISTS more ON ONLY things (id) WHERE what <> 'x ON elders'",
    "DROP INDEX things_by_what",
    "DROP INDEX IF EXISTS nowhere",
    "DROP VIEW seen",
    "DROP TABLE lonely",
    "CREATE OR REPLACE VIEW seen AS SELECT id FROM things WHERE id > 0",
    "CREATE TRIGGER more BEFORE UPDATE OF what ON things FOR EACH ROW EXECUTE FUNCTION look()",
    "CREATE CONSTRAINT TRIGGER more AFTER INSERT ON things FOR EACH ROW EXECUTE FUNCTION look()",
    "DROP TRIGGER looked ON things",
    "CREATE TABLE young (id integer REFERENCES elders (id))",
    "CREATE TABLE young (id integer)",
    "CREATE FUNCTION more() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
    "GRANT SELECT ON things TO PUBLIC",
    "REVOKE ALL ON things FROM PUBLIC",
    "INSERT INTO things (id, number) VALUES (7, 7)",
    "UPDATE things SET what = 'two'",
    "DELETE FROM things",
    "ALTER TABLE things ADD COLUMN more text",
    "ALTER TABLE IF EXISTS ONLY things ADD COLUMN more text DEFAULT 'a, b', DROP COLUMN what",
    "ALTER TABLE things ADD COLUMN more integer [] NOT NULL DEFAULT '{}'",
    "ALTER TABLE things ADD COLUMN more timestamptz NOT NULL DEFAULT now()",
    "ALTER TABLE things ADD COLUMN more timestamptz DEFAULT clock_timestamp()",
    "ALTER TABLE things ADD COLUMN more uuid NOT NULL DEFAULT gen_random_uuid()",
    "ALTER TABLE things ADD COLUMN more integer GENERATED ALWAYS AS IDENTITY",
    "ALTER TABLE things ADD COLUMN more integer GENERATED ALWAYS AS (id + 1) STORED",
    "ALTER TABLE things ADD COLUMN more integer CONSTRAINT it_is_more CHECK (more > 0)",
    "ALTER TABLE things ADD COLUMN more integer UNIQUE",
    "ALTER TABLE things ADD COLUMN more integer REFERENCES elders (id)",
    "ALTER TABLE things ADD COLUMN more integer DEFAULT 1 REFERENCES elders (id)",
    "ALTER TABLE of_elders DROP CONSTRAINT it_is_of_an_elder",
    "ALTER TABLE of_elders DROP COLUMN elder",
    "ALTER TABLE elders DROP COLUMN name",
    "DROP TABLE of_elders",
    "ALTER TABLE things ADD CONSTRAINT more CHECK (id > 0)",
    "ALTER TABLE things ADD CONSTRAINT more CHECK (id > 0) NOT VALID",
    "ALTER TABLE things ADD CHECK (id > 0)",
    "ALTER TABLE things ADD CONSTRAINT more FOREIGN KEY (elder) REFERENCES elders (id)",
    "ALTER TABLE things ADD CONSTRAINT more FOREIGN KEY (elder) REFERENCES elders (id) NOT VALID",
    "ALTER TABLE things ADD CONSTRAINT more UNIQUE (what)",
    "ALTER TABLE things ADD PRIMARY KEY (id)",
    "ALTER TABLE things ADD CONSTRAINT more UNIQUE USING INDEX things_by_number",
    "ALTER TABLE things VALIDATE CONSTRAINT things_later",
    "ALTER TABLE things DROP CONSTRAINT things_are_few, DROP CONSTRAINT IF EXISTS nothing",
    "ALTER TABLE things DROP COLUMN what",
    "ALTER TABLE things ALTER COLUMN what SET DEFAULT 'x', ALTER number DROP DEFAULT",
    "ALTER TABLE things ALTER COLUMN number DROP NOT NULL",
    "ALTER TABLE things ALTER COLUMN what SET NOT NULL",
    "ALTER TABLE things ALTER COLUMN number TYPE bigint",
    "ALTER TABLE things ALTER COLUMN what SET STATISTICS 1000",
    "ALTER TABLE things SET (fillfactor = 50)",
    "ALTER TABLE things RENAME COLUMN what TO that",
    "ALTER TABLE things DISABLE TRIGGER looked",
    "ALTER TABLE things SET (fillfactor = 50), ADD COLUMN more text",
)  # fmt: skip
UNKNOWN: Final = (
    "DO $$ BEGIN DELETE FROM things; END $$",
    "SELECT look()",
    "WITH gone AS (DELETE FROM things RETURNING id) SELECT id FROM gone",
    "TRUNCATE things",
    "DROP TABLE things CASCADE",
    "ALTER TABLE things DROP COLUMN id CASCADE",
    "VACUUM FULL things",
    "ALTER TABLE things SET UNLOGGED",
    "ALTER TABLE things ADD COLUMN more text, CLUSTER ON things_by_what",
)


@dataclass(frozen=True)
class Watch:
    """Runs statements one by one, and sees what each takes of the tables that were there."""

    runs: Connection
    sees: Connection
    pid: int
    tables: list[int]

    @classmethod
    async def of(cls, runs: Connection, sees: Connection) -> Self:
        pid = await runs.fetchval("SELECT pg_backend_pid()")
        return cls(runs, sees, pid, [row[0] for row in await sees.fetch(THERE)])

    async def sees_of(self, statement: str, *, keeps: bool = True) -> Seen:
        """In a transaction of its own."""

        def by_key(name: str, mode: str) -> bool:
            """Whoever is referred to is looked for by key, or read whole where there are few."""
            return mode == ROW or f"REFERENCES {name} " in statement

        with suppress(Undone):
            async with self.runs.transaction():
                before = await self._done(self.runs)
                await self.runs.execute(statement)
                held, after = await self._held(), await self._done(self.runs)
                if not keeps:
                    raise Undone
        return {
            name: (mode, "" if by_key(name, mode) else _work(before.get(name), after.get(name)))
            for name, mode in held.items()
        }

    async def sees_of_concurrent(self, statement: str) -> Seen:
        """It waits for whoever has a snapshot, and holds its lock meanwhile."""
        async with asyncio.TaskGroup() as group:
            async with self.sees.transaction(isolation="repeatable_read"):
                await self.sees.fetchval("SELECT count(*) FROM things_that_wait")
                running = group.create_task(self.runs.execute(statement))
                held = await eventually(self._held_or_done(running), within=10)
            await running
        return {name: (mode, "scans") for name, mode in held.items()}

    def _held_or_done(self, running: asyncio.Task[str]) -> Callable[[], Awaitable[dict[str, str]]]:
        async def look() -> dict[str, str]:
            held = await self._held()
            assert held or running.done()
            return held or {"": ""}

        return look

    async def _held(self) -> dict[str, str]:
        held = {}
        for row in await self.sees.fetch(HELD, self.pid, self.tables):
            modes = [SPELLED[mode] for mode in row["modes"] if mode in SPELLED]
            if modes:
                held[row["relname"]] = max(modes, key=locks.MODES.index)
        return held

    async def _done(self, connection: Connection) -> dict[str, tuple[int, int]]:
        rows = await connection.fetch(DONE, self.tables)
        return {row["relname"]: (row["filenode"], row["scans"]) for row in rows}


class Undone(Exception):
    """Rolls back."""


def _work(before: tuple[int, int] | None, after: tuple[int, int] | None) -> str:
    if before is None or after is None:  # a view, or a table that is gone
        return ""
    if before[0] != after[0]:
        return "rewrites"
    return "scans" if after[1] > before[1] else ""


def told(step: Step) -> Seen:
    assert step.locks is not None, f"not known: {step.statement}"
    return {lock.table: (lock.mode, lock.work) for lock in step.locks}


@pytest.fixture(params=["", "15"], ids=["embedded", "debian-15"])
async def ground(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[Database]:
    """An empty database, of the suite's own Postgres and of the oldest that is allowed."""
    if not request.param:
        async with copied_database(database.server, "template0") as empty:
            yield empty
        return
    with own_server(of_debian(request.param)) as server:
        async with server.admin() as admin:
            await ensure_roles(admin, PASSWORDS, scram_iterations=1)
        async with copied_database(server, "template0") as empty:
            yield empty


def of(statement: str) -> Migration:
    return Migration(
        version=1, name="one", sha256="", breaking=False, sql=statement, transactional=True
    )


async def test_each_statement_locks_what_is_foretold(ground: Database) -> None:
    wrong = []
    async with ground.connect("superuser") as runs, ground.connect("superuser") as sees:
        await runs.execute(PLAYGROUND)
        watch = await Watch.of(runs, sees)
        for statement in STATEMENTS:
            (step,) = await plan(sees, [of(statement)])
            seen = await watch.sees_of(statement, keeps=False)
            if seen != told(step):
                wrong.append((statement, told(step), seen))

    assert wrong == [], "\n".join(map(str, wrong))


async def test_every_migration_that_was_shipped_locks_what_is_foretold(ground: Database) -> None:
    wrong = []
    async with ground.connect("owner") as runs, ground.connect("superuser") as sees:
        await runs.execute("CREATE TABLE things_that_wait ()")
        await runs.execute("GRANT SELECT ON things_that_wait TO PUBLIC")
        for migration in shipped_migrations():
            watch = await Watch.of(runs, sees)
            for step in await plan(sees, [migration]):
                if "CREATE INDEX CONCURRENTLY" in step.statement:
                    seen = await watch.sees_of_concurrent(step.statement)
                elif migration.transactional:
                    seen = await watch.sees_of(step.statement)
                else:  # there is no such index yet
                    await runs.execute(step.statement)
                    seen = {}
                if seen != told(step):
                    wrong.append((str(migration), step.statement, told(step), seen))

    assert wrong == [], "\n".join(map(str, wrong))


@pytest.mark.parametrize("statement", UNKNOWN)
def test_what_is_not_known_is_never_called_harmless(statement: str) -> None:
    assert foretell(statement) is None


async def test_sizes_are_those_of_the_tables(superuser: Connection) -> None:
    await superuser.execute(
        "INSERT INTO audit (actor, role, action, kind, name)"
        " SELECT 'a', 'b', 'c', 'd', 'e' FROM generate_series(1, 1000)"
    )
    await superuser.execute("ANALYZE audit")

    (step,) = await plan(superuser, [of("CREATE INDEX more ON audit (kind)")])

    assert step.locks is not None
    (lock,) = step.locks
    assert (lock.table_rows, lock.table_bytes > 50_000) == (1000, True)
