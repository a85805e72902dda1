"""Claim and settle while somebody holds a snapshot: a report, a backup, a forgotten transaction.

Until it ends no row that it may see is cleaned up, so that every version of every row that changed
since stays, in tables and in indexes. Told is the rate of the last quarter, when most has gathered.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from tests.bench.claiming import ended, of_a_worker
from tests.bench.ground import Ground, submitted
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides
from tests.support.database import Database
from tests.support.factories import a_worker

BATCH: Final = 10
AT_ONCE: Final = 1_000  # jobs submitted before their turn; the clock stands meanwhile
SHORT: Final = 20.0  # seconds
LONG: Final = 600.0
HELD: Final = "a held snapshot"
FREE: Final = "nobody's snapshot"


async def for_a_while(database: Database, seconds: float) -> float:
    """Jobs a second in the last quarter of this time."""
    turns: list[tuple[float, float]] = []
    begun = time.monotonic()
    async with of_a_worker(database) as pool, pool.connection() as worker:
        worker_id = await a_worker(worker)
        while not turns or time.monotonic() - begun < seconds:
            ids = await submitted(database, AT_ONCE)
            turn = time.monotonic()
            for at in range(0, len(ids), BATCH):
                await ended(worker, ids[at : at + BATCH], worker_id=worker_id)
            turns.append((turn - begun, time.monotonic() - turn))
    last = [took for at, took in turns if at >= 0.75 * turns[-1][0]]
    return len(last) * AT_ONCE / sum(last)


async def held(ground: Ground, seconds: float) -> Measured:
    async with (
        ground.database() as database,
        database.connect("superuser") as reporting,
        reporting.transaction(isolation="repeatable_read", readonly=True),
    ):
        await reporting.fetchval("SELECT count(*) FROM jobs")
        return {HELD: await for_a_while(database, seconds)}


async def free(ground: Ground, seconds: float) -> Measured:
    async with ground.database() as database:
        return {FREE: await for_a_while(database, seconds)}


@asynccontextmanager
async def sides(ground: Ground, asked: Asked) -> AsyncIterator[Sides]:
    seconds = LONG if asked.long else SHORT / 10 if asked.quick else SHORT
    yield {HELD: partial(held, ground, seconds), FREE: partial(free, ground, seconds)}


ROW: Final = Row(
    name="snapshot",
    about="claim and settle under a snapshot that is held for twenty seconds (--long: ten minutes)",
    figures=[
        Figure(
            title="claim + settle under a held snapshot",
            unit="jobs/s",
            ours=HELD,
            other=FREE,
            at_least=0.9,
        ),
    ],
    open=sides,
)
