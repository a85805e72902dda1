"""Fixtures of every test that needs Postgres; what they promise is in tests/support/database.py."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from imagefleet.store.database import OwnConnection
from tests.support.database import (
    Database,
    Server,
    breaks_invariants,
    copied_database,
    left_in_order,
    migrated_template,
    refuse_leaked_sessions,
    running_server,
)
from tests.support.emulators import end_emulators, remember_descriptions
from tests.support.golden import OPTION, Golden

OpenConnection = OwnConnection

# Where a shell forbids it, every program that a test starts compiles whatever it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # noqa: TID251 - Python's own setting, not ours
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="write what golden files are to hold")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "breaks_invariants: leaves the database in a state that the product never does"
    )
    remember_descriptions()
    # Whoever began us in the background had this ignored, and so would every program that we start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    end_emulators()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(writes=request.config.getoption(OPTION))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with running_server() as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def template(postgres: Server) -> AsyncIterator[str]:
    async with migrated_template(postgres) as name:
        yield name


@pytest.fixture
async def database(
    postgres: Server, template: str, request: pytest.FixtureRequest
) -> AsyncIterator[Database]:
    """This test's own database, with the schema of migrations/."""
    async with copied_database(postgres, template) as database:
        yield database
        await (refuse_leaked_sessions if breaks_invariants(request) else left_in_order)(database)


@pytest.fixture
async def empty_database(postgres: Server, template: str) -> AsyncIterator[Database]:
    """Belongs to the owner and is as bare as `ensure_database` makes it."""
    async with copied_database(postgres, "template0") as database:
        yield database
        await refuse_leaked_sessions(database)


@pytest.fixture
async def owner(database: Database) -> AsyncIterator[OpenConnection]:
    async with database.connect("owner") as connection:
        yield connection


@pytest.fixture
async def api(database: Database) -> AsyncIterator[OpenConnection]:
    async with database.connect("api") as connection:
        yield connection


@pytest.fixture
async def worker(database: Database) -> AsyncIterator[OpenConnection]:
    async with database.connect("worker") as connection:
        yield connection


@pytest.fixture
async def maintenance(database: Database) -> AsyncIterator[OpenConnection]:
    async with database.connect("maintenance") as connection:
        yield connection


@pytest.fixture
async def operator(database: Database) -> AsyncIterator[OpenConnection]:
    async with database.connect("operator") as connection:
        yield connection


@pytest.fixture
async def admin(database: Database) -> AsyncIterator[OpenConnection]:
    async with database.connect("admin") as connection:
        yield connection


@pytest.fixture
async def scaler(database: Database) -> AsyncIterator[OpenConnection]:
    async with database.connect("scaler") as connection:
        yield connection


@pytest.fixture
async def superuser(database: Database) -> AsyncIterator[OpenConnection]:
    """Ages rows, and does what no role of the product may do."""
    async with database.connect("superuser") as connection:
        yield connection
