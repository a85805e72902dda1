"""A place for a fleet, as tests/support/fixtures.py promises, and the pool of maintenance."""

from collections.abc import AsyncIterator

import pytest

from imagefleet.store.database import Pool
from tests.support.database import Database
from tests.support.fixtures import emulator, place

__all__ = ["emulator", "place"]


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[Pool]:
    async with database.pool("maintenance") as pool:
        yield pool
