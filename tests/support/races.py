"""Many backends at once: opened together, started together, watched while they wait.

No test of a race sleeps and hopes. Either fifty connections are released by one barrier and
whatever they answer is checked against what is true afterwards, or one transaction is held open at
a chosen point and the other is seen to wait for it in `pg_stat_activity`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from imagefleet.store.database import Connection
from tests.support.database import Database, Role, driver_of, refuse_leaked_sessions
from tests.support.eventually import eventually

T = TypeVar("T")

OPENED_AT_ONCE = 10  # Postgres forks a process for each; more at a time are not faster
DEADLOCKS = """
SELECT pg_stat_get_db_deadlocks(oid) FROM pg_database WHERE datname = current_database()
"""
WAITS_FOR = "SELECT pg_blocking_pids($1)"


@asynccontextmanager
async def many_connections(
    database: Database, role: Role, count: int
) -> AsyncIterator[list[Connection]]:
    """`count` backends, each of its own."""
    async with AsyncExitStack() as stack:
        door = asyncio.Semaphore(OPENED_AT_ONCE)

        async def opened() -> Connection:
            async with door:
                return await stack.enter_async_context(database.connect(role))

        yield list(await asyncio.gather(*(opened() for _ in range(count))))


async def all_at_once(actions: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Start every action at one moment, each in a task of its own, and return their answers."""
    barrier = asyncio.Barrier(len(actions))

    async def one(action: Callable[[], Awaitable[T]]) -> T:
        await barrier.wait()
        return await action()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(action)) for action in actions]
    return [task.result() for task in tasks]


@asynccontextmanager
async def no_deadlocks(database: Database) -> AsyncIterator[None]:
    """What runs inside opens and closes its own connections: a backend counts when it ends."""
    async with database.server.admin(database.name) as admin:
        before = await admin.fetchval(DEADLOCKS)
    yield
    await refuse_leaked_sessions(database)
    async with database.server.admin(database.name) as admin:
        assert await admin.fetchval(DEADLOCKS) == before


async def wait_until_blocked(watcher: Connection, by: Connection, who: Connection) -> None:
    """Return when `who` waits for a lock that `by` holds."""
    blocker, blocked = driver_of(by).get_server_pid(), driver_of(who).get_server_pid()

    async def waits() -> bool:
        return blocker in await watcher.fetchval(WAITS_FOR, blocked)

    await eventually(waits, within=5)


async def somebody_waits(connection: Connection) -> bool:
    """For a transaction to end."""
    waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid')"
    return bool(await connection.fetchval(waits))


@asynccontextmanager
async def meanwhile(
    watcher: Connection,
    holder: Connection,
    waiter: Connection,
    action: Coroutine[object, object, T],
) -> AsyncIterator["asyncio.Task[T]"]:
    """Start `action` on `waiter` and enter the body once it waits for `holder`'s transaction.

    The body ends that transaction; the action is awaited at the end.
    """
    async with asyncio.TaskGroup() as group:
        task = group.create_task(action)
        try:
            await wait_until_blocked(watcher, holder, waiter)
            yield task
        except BaseException:
            task.cancel()
            raise
