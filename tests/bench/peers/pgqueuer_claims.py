"""pgqueuer: its own dequeue and its own log of what is done, as its manager calls them."""

import asyncio
import json
import sys
import time
import uuid
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer.adapters.persistence.queries import (  # type: ignore[import-not-found]  # there alone
    EntrypointExecutionParameter,
    Queries,
)

PATIENCE = timedelta(seconds=30)


async def main(dsn: str, jobs: int, batch: int, connections: int) -> float:
    """Seconds for so many jobs, every connection warm."""
    lines = [
        Queries.from_asyncpg_connection(await asyncpg.connect(dsn)) for _ in range(connections)
    ]
    await lines[0].install()
    every = jobs + batch * connections
    await lines[0].enqueue(["noop"] * every, [None] * every, [0] * every)
    await lines[0].driver.execute("ANALYZE")
    noop = {"noop": EntrypointExecutionParameter(concurrency_limit=0)}

    async def some(line: Queries, who: uuid.UUID) -> int:
        taken = await line.dequeue(batch, noop, who, None, PATIENCE)
        if taken:
            await line.log_jobs([(job, "successful", None) for job in taken])
        return len(taken)

    async def drain(line: Queries) -> int:
        done, who = 0, uuid.uuid4()
        while taken := await some(line, who):
            done += taken
        return done

    for line in lines:
        await some(line, uuid.uuid4())
    begun = time.perf_counter()
    done = sum(await asyncio.gather(*(drain(line) for line in lines)))
    seconds = time.perf_counter() - begun
    assert done == jobs, f"{done} of {jobs}"
    return seconds


if __name__ == "__main__":
    print(json.dumps({"seconds": uvloop.run(main(**json.loads(sys.argv[1])))}))
