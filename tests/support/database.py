"""A database per test, copied from a template that was migrated once.

One server per test process, so that tests which change roles or count sessions meet nobody else's:
starting one takes 0.3 s, a copy 10 ms. TEST_DATABASE_URL, a superuser's, names an existing server
instead, and TEST_POSTGRES a major version that Debian has installed instead of the wheel's.
"""

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg
import pytest

from imagefleet.embedded.postgres import EmbeddedPostgres
from imagefleet.store.database import Connection, OwnConnection, Pool, connect, open_pool
from imagefleet.store.schema.migrations import migrate
from imagefleet.store.schema.roles import ensure_database, ensure_roles
from tests.support.eventually import eventually
from tests.support.invariants import ledger_balances, no_row_offends

# By the short name of the process that uses them.
Role = Literal["owner", "api", "worker", "maintenance", "operator", "admin", "scaler", "superuser"]

# Throw-away servers on 127.0.0.1. Fixed, so that parallel test processes on one given server agree.
PASSWORDS = {
    f"imagefleet_{name}": f"{name}-of-tests"
    for name in ("owner", "api", "worker", "maintenance", "operator", "admin", "scaler")
}

# Asserted by every database test at its end, as superuser, unless it is marked `breaks_invariants`.
INVARIANTS: tuple[Callable[[Connection], Awaitable[None]], ...] = (ledger_balances, no_row_offends)

THROW_AWAY = {
    "fsync": "off",
    "authentication_timeout": "10s",  # see `drop`, of which it is the last resort
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "max_wal_size": "128MB",
    "min_wal_size": "32MB",
    "autovacuum": "off",  # databases live for milliseconds
}
FOLDER_PREFIX = "imagefleet-tests-"
SESSIONS = """
SELECT format('%s %s: %s', usename, application_name, left(query, 80))
  FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""

# Who said no password yet; of a server that others use as well, most are about to.
SILENT = """
SELECT pid, CASE WHEN backend_start < clock_timestamp() - interval '1 second'
                 THEN pg_terminate_backend(pid) END
  FROM pg_stat_activity WHERE backend_type = 'client backend' AND usename IS NULL
"""


def login(role: Role) -> str:
    return "postgres" if role == "superuser" else f"imagefleet_{role}"


@dataclass(frozen=True, slots=True)
class Server:
    superuser_url: str

    def url(self, database: str, role: Role = "superuser") -> str:
        parts = urlsplit(self.superuser_url)
        if role != "superuser":
            user, place = login(role), parts.netloc.rpartition("@")[2]
            parts = parts._replace(netloc=f"{user}:{quote(PASSWORDS[user], safe='')}@{place}")
        return urlunsplit(parts._replace(path=f"/{database}"))

    def admin(self, database: str = "postgres") -> AbstractAsyncContextManager[OwnConnection]:
        return connect(self.url(database), process="test-admin")


@dataclass(frozen=True, slots=True)
class Database:
    """What the fixture `database` gives: one test's own database."""

    server: Server
    name: str

    def url(self, role: Role) -> str:
        return self.server.url(self.name, role)

    def connect(self, role: Role) -> AbstractAsyncContextManager[OwnConnection]:
        return connect(self.url(role), process=f"test-{role}")

    def pool(
        self, role: Role, *, min_size: int = 1, max_size: int = 10
    ) -> AbstractAsyncContextManager[Pool]:
        return open_pool(
            self.url(role), process=f"test-{role}", min_size=min_size, max_size=max_size
        )


def driver_of(connection: Connection) -> asyncpg.Connection:
    """What no statement of the product needs: to listen, to begin here and commit there."""
    driver: Any = connection._driver
    lent: asyncpg.Connection = getattr(driver, "_con", driver)
    return lent


@contextmanager
def running_server() -> Iterator[Server]:
    given = os.environ.get("TEST_DATABASE_URL")  # noqa: TID251 - no setting of the product
    if given:
        yield Server(given)
        return
    wanted = os.environ.get("TEST_POSTGRES")  # noqa: TID251 - as above
    with own_server(of_debian(wanted) if wanted else None) as server:
        yield server


def of_debian(version: str) -> Path:
    """The binaries of a major version as Debian installs it; without them a test is skipped."""
    folder = Path("/usr/lib/postgresql") / version
    if not (folder / "bin" / "initdb").exists():
        pytest.skip(f"Debian's Postgres {version} is not installed")
    return folder


@contextmanager
def own_server(
    software: Path | None = None, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Server]:
    """Embedded, whatever TEST_DATABASE_URL says: for tests that change what a server has once."""
    # Not pytest's own folder: that one is closed to the account which root hands the server to.
    parent = roomy_memory() or Path(tempfile.gettempdir())
    remove_abandoned_servers(parent)
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, dir=parent) as folder:
        Path(folder).chmod(0o711)
        given = {**THROW_AWAY, **settings}
        with EmbeddedPostgres(Path(folder), settings=given, software=software) as postgres:
            yield Server(postgres.url())


def remove_abandoned_servers(parent: Path) -> None:
    """Of test processes that were killed: an hour old, and nobody holds their lock."""
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError), (folder / "postgres" / "lock").open("rb") as lock:
            if time.time() - folder.stat().st_mtime > 3600:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)


def roomy_memory() -> Path | None:
    """A disk with a quota on writes makes a copy take 200 ms now and then; a tmpfs never does."""
    memory = Path("/dev/shm")  # noqa: S108 - the folder in it has a random name
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > 2 * 1024**3 else None


@asynccontextmanager
async def migrated_template(server: Server) -> AsyncIterator[str]:
    """Built anew for every session, so it is never older than migrations/."""
    name = f"template_{secrets.token_hex(6)}"
    async with server.admin() as admin:
        # One round of hashing, not 4096: the passwords are no secret, and tests log in a lot.
        await ensure_roles(admin, PASSWORDS, scram_iterations=1)
        await ensure_database(admin, name)
    try:
        await migrate(server.url(name, "owner"))
        yield name
    finally:
        async with server.admin() as admin:
            await drop(admin, name)


@asynccontextmanager
async def copied_database(server: Server, template: str) -> AsyncIterator[Database]:
    database = Database(server, f"test_{secrets.token_hex(6)}")
    async with server.admin() as admin:
        # With fsync off, copying files is as fast as writing them through the log, and steadier.
        await admin.execute(
            f"CREATE DATABASE {database.name} OWNER imagefleet_owner "
            f"TEMPLATE {template} STRATEGY FILE_COPY"
        )
        try:
            await admin.execute(f"REVOKE ALL ON DATABASE {database.name} FROM PUBLIC")
            await admin.execute(
                f"GRANT CONNECT ON DATABASE {database.name} TO {', '.join(PASSWORDS)}"
            )
            yield database
        finally:
            await drop(admin, database.name)


async def drop(admin: Connection, name: str) -> None:
    """Soon, whoever is connected, and whoever is about to be.

    Every backend has to agree, of whichever database. One whose client never says its password, as
    behind a proxy that lost the question, agrees to nothing, and FORCE does not reach it.
    """

    async def nobody_is_silent() -> bool:
        return not await admin.fetch(SILENT)

    await eventually(nobody_is_silent, within=20)
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def refuse_leaked_sessions(database: Database) -> None:
    async with database.connect("superuser") as connection:
        await nobody_is_left(connection)


async def left_in_order(database: Database) -> None:
    """Nobody has a session any more, and what is true between any two transactions is true."""
    async with database.connect("superuser") as connection:
        await nobody_is_left(connection)
        for invariant in INVARIANTS:
            await invariant(connection)


async def nobody_is_left(connection: Connection) -> None:
    async def all_are_gone() -> bool:
        left = [row[0] for row in await connection.fetch(SESSIONS)]
        assert left == [], f"sessions left open by the test: {left}"
        return True

    # A session ends a moment after its connection was closed.
    await eventually(all_are_gone, within=2)


def breaks_invariants(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("breaks_invariants") is not None
