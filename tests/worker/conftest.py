"""A place for a fleet, and a bench on which one attempt is tried."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from imagefleet.store.database import Connection
from tests.support.bench import Bench, a_bench
from tests.support.database import Database
from tests.support.fixtures import emulator, place

__all__ = ["bench", "emulator", "place"]


@pytest.fixture
async def bench(database: Database, worker: Connection, tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(database, worker, tmp_path) as bench:
        yield bench
