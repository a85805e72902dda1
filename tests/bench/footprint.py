"""What a process takes: seconds until it is ready, memory while it idles, connections at load."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from imagefleet.store.database import Connection
from tests.bench.ground import Ground, submitted, until_over
from tests.bench.processes import started
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides
from tests.support.factories import a_submission
from tests.support.fleet import Process

SETTLED_AFTER: Final = 6.0  # seconds of idling: beats, and what a start leaves is given back
MB: Final = 1_000_000
CONNECTED: Final = """
SELECT count(*) FROM pg_stat_activity
 WHERE usename = 'imagefleet_worker' AND datname = current_database()
"""


async def idle(ground: Ground, process: Process) -> Measured:
    """From its start, and then with nothing to do."""
    async with ground.place() as place, started(place, process, ground.folder) as running:
        await asyncio.sleep(SETTLED_AFTER)
        return {
            f"{process} ready": running.ready_after,
            f"{process} PSS": running.pss_bytes() / MB,
        }


async def at_load(ground: Ground, jobs: int) -> Measured:
    """The most connections that a worker with a backlog had at any look."""
    async with ground.place() as place:
        ids = await submitted(place.database, jobs)
        await place.ring_all([a_submission(job_id=job_id) for job_id in ids])
        async with place.database.connect("superuser") as watching:
            over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(_most_connected(watching, over))
                async with started(place, "worker", ground.folder):
                    await until_over(place.database)
                over.set()
        return {"connections": looking.result()}


async def _most_connected(watching: Connection, over: asyncio.Event) -> float:
    most = 0
    while not over.is_set():
        most = max(most, await watching.fetchval(CONNECTED))
        await asyncio.sleep(0.1)
    return float(most)


@asynccontextmanager
async def sides(ground: Ground, asked: Asked) -> AsyncIterator[Sides]:
    yield {
        "worker": partial(idle, ground, "worker"),
        "api": partial(idle, ground, "api"),
        "load": partial(at_load, ground, asked.jobs_of(ROW)),
    }


ROW: Final = Row(
    name="footprint",
    about="seconds to ready, memory while idle, connections at load",
    figures=[
        Figure(title="worker, start to ready", unit="s", ours="worker ready", at_most=1),
        Figure(
            title="worker idle, PSS of all its processes", unit="MB", ours="worker PSS", at_most=75
        ),
        Figure(title="API, start to ready", unit="s", ours="api ready"),
        Figure(title="API idle, PSS", unit="MB", ours="api PSS", at_most=85),
        Figure(
            title="Postgres connections of a worker at load", unit="", ours="connections", at_most=3
        ),
    ],
    open=sides,
    jobs=2_000,
)
