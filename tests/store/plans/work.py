"""What a statement touches: its plan, watched by auto_explain."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import asyncpg

from imagefleet.store.database import Connection
from tests.support.database import Database, Role, driver_of, login

SCANS = frozenset(
    {
        "Seq Scan",
        "Index Scan",
        "Index Only Scan",
        "Bitmap Heap Scan",
        "Bitmap Index Scan",
        "Tid Scan",
        "Sample Scan",
    }
)


REMOVED = ("Rows Removed by Filter", "Rows Removed by Index Recheck")


Node: TypeAlias = dict[str, Any]


@dataclass
class Work:
    """What the statements of one call touched, as Postgres itself counted it."""

    plans: list[Node] = field(default_factory=list, repr=False)

    def listen(self, _connection: object, message: asyncpg.PostgresLogMessage) -> None:
        _, _, plan = str(message.message).partition(" plan:")
        if plan and "pg_type" not in plan:  # the driver learns about types, once a connection
            self.plans.append(json.loads(plan))

    @property
    def rows(self) -> int:
        return round(sum(rows_touched(plan["Plan"]) for plan in self.plans))

    @property
    def pages(self) -> int:
        """Of indexes too: rows that an index was read through for are counted nowhere else."""
        roots = [plan["Plan"] for plan in self.plans]
        return sum(root["Shared Hit Blocks"] + root["Shared Read Blocks"] for root in roots)

    @property
    def told(self) -> str:
        """The plans in short, for whoever has to find out."""
        return "\n\n".join("\n".join(lines_of(plan["Plan"])) for plan in self.plans)


def lines_of(node: Node, depth: int = 0) -> Iterator[str]:
    named = [str(node[what]) for what in ("Index Name", "Relation Name") if what in node]
    rows = f"{node['Actual Rows']:.0f} rows x {node['Actual Loops']}"
    removed = "".join(f", {what} {node[what]}" for what in REMOVED if what in node)
    yield f"{'  ' * depth}{' '.join([node['Node Type'], *named])}: {rows}{removed}"
    for child in node.get("Plans", []):
        yield from lines_of(child, depth + 1)


def rows_touched(node: Node) -> float:
    below = sum(rows_touched(child) for child in node.get("Plans", []))
    if node["Node Type"] not in SCANS:
        return below
    rows = node["Actual Rows"] + sum(node.get(removed, 0) for removed in REMOVED)
    return float(below + rows * node["Actual Loops"])


PlanMode: TypeAlias = Literal["force_custom_plan", "force_generic_plan"]


AUTO_EXPLAIN = """
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0;
SET auto_explain.log_analyze = on;
SET auto_explain.log_buffers = on;
SET auto_explain.log_timing = off;
SET auto_explain.log_format = json;
SET client_min_messages = log;
"""


# Also what was undone: it leaves dead rows behind, and pages that are no longer known to hold none.
WRITTEN = """
SELECT string_agg(relid::regclass::text, ', ')
  FROM pg_stat_user_tables AS told JOIN pg_class ON pg_class.oid = told.relid
 WHERE n_tup_ins + n_tup_upd + n_tup_del > 0 OR relallvisible < relpages
"""
UNSURE = """
SELECT format('%s: %s of %s pages', relname, relpages - relallvisible, relpages)
  FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relallvisible < relpages
"""
SNAPSHOTS = """
SELECT format('%s %s %s in %s: %s', pid, backend_type, application_name, datname, left(query, 80))
  FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
 ORDER BY age(backend_xmin) DESC
"""


async def tidy(connection: Connection) -> None:
    """Make every row one that all can see, so that nobody looks for it behind its index.

    Without it the pages of an index-only scan depend on what was tried and undone before.
    """
    await connection.execute("SELECT pg_stat_force_next_flush()")
    if written := await connection.fetchval(WRITTEN):
        driver = driver_of(connection)
        await driver.execute(f"VACUUM (INDEX_CLEANUP ON) {written}", timeout=60)
    unsure = [row[0] for row in await connection.fetch(UNSURE)]
    if unsure:
        message = f"{unsure}; snapshots, oldest first: {await connection.fetch(SNAPSHOTS)}"
        raise AssertionError(message)
    await connection.execute("SELECT pg_stat_reset()")


@asynccontextmanager
async def watched(
    database: Database, role: Role, mode: PlanMode
) -> AsyncIterator[tuple[Connection, Work]]:
    """A connection of this role that tells of every statement what it cost; nothing is left of it.

    For tests that share a database.
    """
    try:
        async with watching(database, role, mode) as connection_and_work:
            yield connection_and_work
    finally:
        async with database.connect("superuser") as superuser:
            await tidy(superuser)


@asynccontextmanager
async def watching(
    database: Database, role: Role, mode: PlanMode
) -> AsyncIterator[tuple[Connection, Work]]:
    """The same, but what was undone lies about."""
    async with database.connect("superuser") as connection:
        await connection.execute(AUTO_EXPLAIN)
        await connection.execute(f"SET plan_cache_mode = {mode}")
        await connection.execute(f"SET ROLE {login(role)}")
        work = Work()
        undo = driver_of(connection).transaction()
        await undo.start()
        driver_of(connection).add_log_listener(work.listen)
        try:
            yield connection, work
            await connection.execute("RESET ROLE")  # ends the last statement, which tells its plan
            await asyncio.sleep(0)  # listeners are called by the loop, in their turn
        finally:
            driver_of(connection).remove_log_listener(work.listen)
            await undo.rollback()


@dataclass(frozen=True)
class Case:
    """A function of the store, and what its statements may touch in all."""

    run: Callable[[Connection], Awaitable[object]]
    by: Role
    rows: int
    pages: int
