"""procrastinate: its own fetch and its own finish, one job at a time: it knows no batch of them."""

import asyncio
import json
import sys
import time

import procrastinate  # type: ignore[import-not-found]  # in the others' environment alone
import uvloop
from procrastinate.jobs import Status  # type: ignore[import-not-found]  # the same

AT_ONCE = 1000


async def noop() -> None:
    """Nothing."""


async def main(dsn: str, jobs: int, batch: int, connections: int) -> float:
    """Seconds for so many jobs, every connection warm."""
    connector = procrastinate.PsycopgConnector(
        conninfo=dsn, min_size=connections, max_size=connections
    )
    app = procrastinate.App(connector=connector)
    task = app.task(name="noop")(noop)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        every = jobs + connections
        for start in range(0, every, AT_ONCE):
            await task.batch_defer_async(*[{}] * min(AT_ONCE, every - start))
        await connector.execute_query_async("ANALYZE")
        manager = app.job_manager
        who = await manager.register_worker()

        async def one() -> bool:
            job = await manager.fetch_job(None, who)
            if job is None:
                return False
            await manager.finish_job(job, Status.SUCCEEDED, delete_job=False)
            return True

        async def drain() -> int:
            done = 0
            while await one():
                done += 1
            return done

        await asyncio.gather(*(one() for _ in range(connections)))
        begun = time.perf_counter()
        done = sum(await asyncio.gather(*(drain() for _ in range(connections))))
        seconds = time.perf_counter() - begun
    assert done == jobs, f"{done} of {jobs}"
    return seconds


if __name__ == "__main__":
    print(json.dumps({"seconds": uvloop.run(main(**json.loads(sys.argv[1])))}))
