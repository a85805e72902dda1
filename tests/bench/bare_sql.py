"""The least that a queue in Postgres can be: no tenants, no attempts, no fence, nothing told.

One statement takes the oldest that wait, one says that they are done. The table has its primary key
and the one index that the first statement needs.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg

from tests.support.database import Database

MAKE: Final = """
CREATE TABLE bare (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state text NOT NULL DEFAULT 'queued',
    payload jsonb NOT NULL DEFAULT '{}',
    locked_by uuid,
    locked_at timestamptz,
    finished_at timestamptz);
CREATE INDEX bare_queued ON bare (id) WHERE state = 'queued';
"""
FILL: Final = "INSERT INTO bare (payload) SELECT '{}' FROM generate_series(1, $1::bigint)"
CLAIM: Final = """
UPDATE bare SET state = 'processing', locked_by = $2, locked_at = now()
 WHERE bare.id = ANY (ARRAY (SELECT waiting.id FROM bare AS waiting
                              WHERE waiting.state = 'queued'
                              ORDER BY waiting.id
                              LIMIT $1
                                FOR UPDATE SKIP LOCKED))
RETURNING bare.id, bare.payload
"""
SETTLE: Final = """
UPDATE bare SET state = 'done', locked_by = NULL, locked_at = NULL, finished_at = now()
 WHERE bare.id = ANY ($1::bigint[])
"""
WHO: Final = "00000000-0000-0000-0000-000000000001"


@asynccontextmanager
async def connected(database: Database, many: int) -> AsyncIterator[list[asyncpg.Connection]]:
    """Plain connections, as the owner of the table."""
    lines = [await asyncpg.connect(database.url("superuser")) for _ in range(many)]
    try:
        yield lines
    finally:
        for line in lines:
            await line.close()


async def claimed_and_settled(
    database: Database, jobs: int, *, batch: int, connections: int
) -> float:
    """Jobs a second, every connection warm."""
    async with connected(database, connections) as lines:
        await lines[0].execute(MAKE)
        await lines[0].execute(FILL, jobs + batch * connections)
        await lines[0].execute("ANALYZE")
        for line in lines:
            await line.fetch(SETTLE, [row["id"] for row in await line.fetch(CLAIM, batch, WHO)])
        done = 0

        async def drain(line: asyncpg.Connection) -> None:
            nonlocal done
            while rows := await line.fetch(CLAIM, batch, WHO):
                await line.fetch(SETTLE, [row["id"] for row in rows])
                done += len(rows)

        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for line in lines:
                group.create_task(drain(line))
        seconds = time.perf_counter() - begun
        assert done == jobs, f"{done} of {jobs} jobs were done"
        return jobs / seconds
