"""A place for a fleet, a bench on which one attempt is tried, and a look at who holds what."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from traceback import format_stack

import pytest

from imagefleet.store.database import CONNECT_WITHIN, Connection, Pool
from tests.support.bench import Bench, a_bench
from tests.support.database import Database
from tests.support.fixtures import emulator, place

__all__ = ["bench", "emulator", "place"]


@pytest.fixture
async def bench(database: Database, worker: Connection, tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(database, worker, tmp_path) as bench:
        yield bench


@pytest.fixture(autouse=True)
def nobody_asks_for_a_connection_who_holds_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With two in the pool, two who did would wait for each other."""
    holding: set[asyncio.Task[object] | None] = set()
    greedy: list[str] = []
    alone = Pool.connection

    @asynccontextmanager
    async def watched(self: Pool, *, within: float = CONNECT_WITHIN) -> AsyncIterator[Connection]:
        task = asyncio.current_task()
        if task in holding:
            greedy.append("".join(format_stack(limit=12)))
        async with alone(self, within=within) as connection:
            holding.add(task)
            try:
                yield connection
            finally:
                holding.discard(task)

    monkeypatch.setattr(Pool, "connection", watched)
    yield
    assert greedy == []
