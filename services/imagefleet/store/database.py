"""The way to Postgres: pools, transactions, and the border where the driver's errors become ours.

Every await here and in the statements behind it is bounded: connecting and waiting for a free
connection by `connect_within`, a statement by `statement_within`, first by the server (which then
cleans up), two seconds later by us (should the server have gone silent).
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg
import asyncpg.pool
import asyncpg.transaction
import orjson
from asyncpg import Record

from imagefleet.errors import (
    FleetError,
    IllegalTransition,
    Misconfigured,
    StoreRejected,
    Unavailable,
)
from imagefleet.settings.values import Pooler

Driver: TypeAlias = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
Isolation: TypeAlias = Literal["repeatable_read", "serializable"]
Timing: TypeAlias = Callable[[str, str], AbstractContextManager[object]]
"""Surrounds one use of the database, which is told by its operation and its table."""

MOST_CONNECTIONS = 10  # of a process that says nothing else
CONNECT_WITHIN = 5.0  # seconds
STATEMENT_WITHIN = 10.0
SILENCE = 2.0  # what the server is given to say that a statement timed out
CLOSE_WITHIN = 5.0
PLANNED_FOR = 10  # seconds: a plan that was made when tables were empty reads through full ones
LONGEST_DETAIL = 500  # characters: messages quote the value, and a value may be 64 KiB

READABLE_DSN = re.compile(
    r"""postgres(ql)?://
    ([^@/]*@)?                        # a user and a password, percent-encoded
    ((\[[^]]+]|[^/:,?@[]*)(:\d+)?,?)*  # hosts
    ([/?]|$)""",
    re.VERBOSE,
)
JSONB_VERSION = b"\x01"  # the first byte of the binary format

# The server has said its last word, the driver waits for the end of it, and was asked meanwhile.
IS_DYING = re.compile(r"another operation \([12]\) is in progress")

# `IF001` is raised by our own triggers (migrations/0005_lifecycle.sql).
ILLEGAL_TRANSITION = "IF001"
CREDENTIALS_REFUSED = ("28", "3D")  # classes: this user or database is not for us
UNAVAILABLE = (
    "08",  # connection lost or refused
    "28",
    "3D",
    "53",  # out of connections, memory or disk
    "57P",  # shut down, crashed, starting up
    "58",  # the server's disk failed
    "25006",  # read-only: a standby, after a failover
)
TIMED_OUT = ("57014", "25P03", "25P04")  # statement, idle in transaction, whole transaction
# Serialization failure, deadlock, lock timeout.
CONFLICT = ("40", "55P03")

FOREIGN = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # TimeoutError among them
)


class _Arguments(TypedDict):
    dsn: str
    timeout: float
    command_timeout: float
    server_settings: dict[str, str]
    statement_cache_size: int
    max_cached_statement_lifetime: NotRequired[int]
    max_cacheable_statement_size: NotRequired[int]


class _Translated:
    """Whatever the driver raises inside leaves as one of `errors`; our own pass unchanged."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if isinstance(error, FOREIGN):
            ours = _translate(error)
            if ours is not None:
                raise ours from error


_TRANSLATED: Final = _Translated()


class Transaction:
    """From its begin to its commit; rolled back by whatever is raised inside.

    Unavailable at its end may mean: committed, but not heard of.
    """

    __slots__ = ("_driver",)

    def __init__(self, driver: asyncpg.transaction.Transaction) -> None:
        self._driver = driver

    async def __aenter__(self) -> None:
        """Begin."""
        with _TRANSLATED:
            await self._driver.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Commit, or roll back."""
        with _TRANSLATED:
            await self._driver.__aexit__(kind, error, at)


class Connection:
    """A session with Postgres. Each call translates what the driver raises, and nothing else."""

    __slots__ = ("_driver",)

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def fetch(
        self, statement: str, *values: object, within: float | None = None
    ) -> list[Record]:
        """All rows."""
        with _TRANSLATED:
            return await self._driver.fetch(statement, *values, timeout=within)

    async def fetchrow(self, statement: str, *values: object) -> Record | None:
        """The first row."""
        with _TRANSLATED:
            return await self._driver.fetchrow(statement, *values)

    async def fetchval(self, statement: str, *values: object) -> Any:  # noqa: ANN401 - any column's type
        """The first column of the first row."""
        with _TRANSLATED:
            return await self._driver.fetchval(statement, *values)

    async def execute(self, statement: str, *values: object) -> str:
        """Run it; what the server says was done."""
        with _TRANSLATED:
            return await self._driver.execute(statement, *values)

    async def executemany(self, statement: str, values: Iterable[Sequence[object]]) -> None:
        """Run it for each of these, all or none."""
        with _TRANSLATED:
            await self._driver.executemany(statement, values)

    def transaction(
        self, *, isolation: Isolation | None = None, readonly: bool = False
    ) -> Transaction:
        """What is done inside is done whole or not at all; inside another, it is a savepoint."""
        return Transaction(self._driver.transaction(isolation=isolation, readonly=readonly))

    def is_in_transaction(self) -> bool:
        """Whether one was begun here."""
        return self._driver.is_in_transaction()


class OwnConnection(Connection):
    """One outside any pool: the same session for as long as it lasts."""

    __slots__ = ()

    async def is_shared(self) -> bool:
        """Whether a pooler stands between: who answers is not whom we were connected to."""
        return bool(self._driver.get_server_pid() != await self.fetchval("SELECT pg_backend_pid()"))

    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self._driver.is_closed()

    def terminate(self) -> None:
        """End it now, without a goodbye."""
        self._driver.terminate()


class Pool:
    """The connections of a process; each use has a name, under which it is timed."""

    def __init__(self, driver: asyncpg.Pool, timing: Timing) -> None:
        self._driver = driver
        self._timing = timing

    def timed_by(self, timing: Timing) -> "Pool":
        """The same connections, told to these metrics."""
        return Pool(self._driver, timing)

    @property
    def connections(self) -> dict[str, int]:
        """How many are busy, idle, and not opened yet though they may be."""
        size, idle = self._driver.get_size(), self._driver.get_idle_size()
        unopened = self._driver.get_max_size() - size
        return {"busy": size - idle, "idle": idle, "unopened": unopened}

    @asynccontextmanager
    async def use(
        self, operation: str, table: str = "", *, within: float = CONNECT_WITHIN
    ) -> AsyncIterator[Connection]:
        """A connection for this operation."""
        with self._timing(operation, table):
            async with self.connection(within=within) as connection:
                yield connection

    @asynccontextmanager
    async def connection(self, *, within: float = CONNECT_WITHIN) -> AsyncIterator[Connection]:
        """One for what no metric tells: a start, an end, a probe."""
        with _TRANSLATED:
            driver = await self._driver.acquire(timeout=within)
        try:
            yield Connection(driver)
        finally:
            with _TRANSLATED:
                await self._driver.release(driver)


@asynccontextmanager
async def open_pool(
    dsn: str,
    *,
    process: str,
    min_size: int = 1,
    max_size: int = MOST_CONNECTIONS,
    connect_within: float = CONNECT_WITHIN,
    statement_within: float = STATEMENT_WITHIN,
    pooler: Pooler = "none",
    generic_plans: bool = False,
    custom_plans: bool = False,
) -> AsyncIterator[Pool]:
    """A pool for the life of a process; with `min_size=0` it opens though nobody answers yet.

    With `generic_plans` a statement is planned once for all values, and every so often anew: for
    few and large statements, whose plan costs more than what they do. With `custom_plans` it is
    planned each time, for the values that it has: for those that may be asked for anything, one
    filter or none. Behind PgBouncer the server decides that: a session that is shared is nobody's
    to set.
    """
    arguments = _arguments(dsn, process, connect_within, statement_within, pooler)
    if generic_plans:
        arguments["max_cacheable_statement_size"] = 0  # any: the claim has more than 15 KiB
    if generic_plans and pooler == "none":
        arguments["server_settings"]["plan_cache_mode"] = "force_generic_plan"
        arguments["max_cached_statement_lifetime"] = PLANNED_FOR
    if custom_plans and pooler == "none":
        arguments["server_settings"]["plan_cache_mode"] = "force_custom_plan"
    with _opening():
        pool = asyncpg.create_pool(
            **arguments,
            min_size=min_size,
            max_size=max_size,
            init=_prepare,
            reset=_nothing_to_reset,
        )
    try:
        with _opening():
            await pool
        yield Pool(pool, lambda _operation, _table: nullcontext())
    finally:
        await _close(pool)


@asynccontextmanager
async def connect(
    dsn: str,
    *,
    process: str,
    connect_within: float = CONNECT_WITHIN,
    statement_within: float = STATEMENT_WITHIN,
    pooler: Pooler = "none",
) -> AsyncIterator[OwnConnection]:
    """One connection outside any pool: a heartbeat, a migration, a tool."""
    arguments = _arguments(dsn, process, connect_within, statement_within, pooler)
    with _opening():
        connection = await asyncpg.connect(**arguments)
    try:
        with _TRANSLATED:
            await _prepare(connection)
        yield OwnConnection(connection)
    finally:
        with _TRANSLATED:
            await _hang_up(connection)


PING: Final = "SELECT 1"


async def ping(connection: Connection) -> None:
    """Return if Postgres answers."""
    await connection.execute(PING)


def _translate(error: Exception) -> FleetError | None:
    detail = f"{type(error).__name__}: {error}".split("\nDETAIL:", maxsplit=1)[0][:LONGEST_DETAIL]
    match error:
        case asyncpg.InvalidCachedStatementError() | asyncpg.OutdatedSchemaCacheError():
            # A migration outdated the plan; the driver has dropped it, so the next try succeeds.
            return unavailable("database_conflict", detail)
        case asyncpg.PostgresError():
            return _translate_state(error, detail)
        case asyncpg.DataError():  # refused on our side of the wire, as `22` is on the other
            return _rejected(detail)
        case asyncpg.ClientConfigurationError():  # what the URL asks for makes no sense
            return Misconfigured(f"the database URL: {error}")
        case asyncpg.InterfaceError() if _is_closed(error):
            return unavailable("database_unavailable", detail)
        case asyncpg.InternalClientError() if IS_DYING.search(detail):
            return unavailable("database_unavailable", detail)
        case TimeoutError():
            return unavailable("database_timeout", detail)
        case OSError() | asyncpg.TargetServerAttributeNotMatched():
            return unavailable("database_unavailable", detail)
        case _:  # the driver was misused: a bug, and its own words say it best
            return None


def _translate_state(error: asyncpg.PostgresError, detail: str) -> FleetError:
    state = error.sqlstate or ""
    if state == ILLEGAL_TRANSITION:
        return IllegalTransition(detail)
    if state.startswith(TIMED_OUT):
        return unavailable("database_timeout", detail)
    if state.startswith(CONFLICT):
        return unavailable("database_conflict", detail)
    if state.startswith(UNAVAILABLE):
        return unavailable("database_unavailable", detail)
    # Postgres's own DETAIL quotes whole rows; the names are what an operator needs.
    named = {
        "constraint": error.constraint_name,
        "table": error.table_name,
        "column": error.column_name,
    }
    told = "".join(f" {what}={name}" for what, name in named.items() if name)
    return _rejected(f"{state}{told} {detail}")


def unavailable(code: str, detail: str | None = None) -> Unavailable:
    """What is told of a database that does not answer, or not in time, whoever waits for it."""
    late = code == "database_timeout"
    sentence = "did not answer in time" if late else "is not available right now"
    return Unavailable(code, f"The database {sentence}.", detail)


def _rejected(detail: str) -> StoreRejected:
    return StoreRejected("store_rejected", "The database refused this.", detail)


def _is_closed(error: asyncpg.InterfaceError) -> bool:
    # It has no class of its own; the words are "connection is closed", "pool is closing", …
    return "closed" in str(error) or "closing" in str(error)


@contextmanager
def _opening() -> Iterator[None]:
    """At the start, credentials that do not work are a mistake to correct; later, an outage."""
    try:
        with _TRANSLATED:
            yield
    except Unavailable as error:
        mistake = _mistake(error.__cause__)
        if mistake is not None:
            raise Misconfigured(mistake or error.detail or "") from error
        raise


def _mistake(raised: BaseException | None) -> str | None:
    """What is to be corrected, empty where the raised says it best; None: it is an outage."""
    match raised:
        case ssl.SSLCertVerificationError():
            return (
                f"the certificate of the database's server is refused: {raised.verify_message}. "
                "sslrootcert in the database URL names the file of whom it is to be signed by, and "
                "the host there has to be one that it was made out to"
            )
        case asyncpg.ProtocolViolationError() if "startup parameter" in str(raised):
            return (
                "the database URL leads to a pooler: say which by DATABASE_POOLER; to migrate, "
                "take the URL of Postgres itself"
            )
        case asyncpg.PostgresError() if (raised.sqlstate or "").startswith(CREDENTIALS_REFUSED):
            return ""
        case _:
            return None


def _refuse_unreadable(dsn: str) -> None:
    """Before the driver does: it quotes what it cannot read, and that may be the password."""
    if READABLE_DSN.match(dsn) is None:
        detail = "the database URL is not of the form postgresql://user:password@host:port/name"
        raise Misconfigured(detail)
    for path in parse_qs(urlsplit(dsn).query).get("sslrootcert", ()):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except OSError as error:  # those of OpenSSL among them
            detail = f"sslrootcert of the database URL: no certificate can be read from {path}"
            raise Misconfigured(detail) from error


def _arguments(
    dsn: str,
    process: str,
    connect_within: float,
    statement_within: float,
    pooler: Pooler,
) -> _Arguments:
    _refuse_unreadable(dsn)
    settings = {"application_name": f"imagefleet-{process}"}
    if pooler == "none":  # the others refuse parameters they do not know; the role's limits hold
        settings["statement_timeout"] = f"{statement_within * 1000:.0f}"
        # To compile a claim takes two seconds, and to run it milliseconds.
        settings["jit"] = "off"
    return {
        "dsn": dsn,
        "timeout": connect_within,
        "command_timeout": statement_within + SILENCE,
        "server_settings": settings,
        # In transaction mode the next statement may meet another server, without our prepared ones.
        "statement_cache_size": 0 if pooler == "pgbouncer" else 100,
    }


async def _prepare(connection: asyncpg.Connection) -> None:
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        encoder=lambda value: JSONB_VERSION + orjson.dumps(value, default=_of_driver),
        decoder=lambda stored: orjson.loads(memoryview(stored)[1:]),
        format="binary",
    )


def _of_driver(value: object) -> str:
    """The ids that the driver gives are of a class of its own, which the encoder does not know."""
    if isinstance(value, UUID):
        return str(value)
    raise TypeError


async def _nothing_to_reset(connection: Driver) -> None:
    """Saves a round trip a use: we set no session state, and open transactions are rolled back."""


async def _close(pool: asyncpg.Pool) -> None:
    try:
        async with asyncio.timeout(CLOSE_WITHIN):
            await pool.close()
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        pool.terminate()


async def _hang_up(connection: asyncpg.Connection) -> None:
    try:
        await connection.close(timeout=CLOSE_WITHIN)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
