"""POST /v1/jobs and /v1/jobs:batch of one API process, beside the least that could take them.

The one who asks is a process of its own. Beside our API runs maintenance, as it does where it is
deployed, and no worker: some jobs are announced, the others wait in Postgres.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from imagefleet.embedded.machine import HOST, free_port
from tests.bench import bare_api
from tests.bench.ground import Ground
from tests.bench.processes import ended, started, unlimited_key
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides
from tests.support.eventually import eventually

CONNECTIONS: Final = 64
BATCHES_AT_ONCE: Final = 8
JOBS_OF_A_BATCH: Final = 100
WARM_UP: Final = 300  # requests before the clock starts
WITHIN: Final = 300.0
OURS: Final = "imagefleet"
BARE: Final = "bare FastAPI"
JOB: Final = {"jobType": "noop", "payload": {}}


@dataclass(frozen=True, slots=True)
class Kind:
    """What is posted."""

    path: str
    body: object
    jobs: int
    """Of one request."""
    connections: int


ONE: Final = Kind("/v1/jobs", JOB, 1, CONNECTIONS)
BATCH: Final = Kind("/v1/jobs:batch", {"jobs": [JOB] * JOBS_OF_A_BATCH}, 100, BATCHES_AT_ONCE)


async def asked(kind: Kind, port: int, key: str, requests: int) -> float:
    """Seconds for so many requests, all of which were accepted."""
    words = {
        "port": port,
        "path": kind.path,
        "key": key,
        "body": json.dumps(kind.body),
        "requests": requests,
        "connections": kind.connections,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.load", json.dumps(words)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(WITHIN):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    answer: dict[str, Any] = json.loads(said)
    accepted = sum(
        count for status, count in answer["statuses"].items() if status in {"200", "202"}
    )
    assert accepted == requests, f"{answer['statuses']}: {answer['first_failure']}"
    return float(answer["seconds"])


async def rate(kind: Kind, port: int, key: str, jobs: int) -> float:
    """Jobs a second, warm."""
    await asked(kind, port, key, max(1, WARM_UP // kind.jobs))
    requests = max(1, jobs // kind.jobs)
    return requests * kind.jobs / await asked(kind, port, key, requests)


async def ours(ground: Ground, kind: Kind, jobs: int) -> Measured:
    async with ground.place() as place:
        key = await unlimited_key(place.database)
        async with (
            started(place, "maintenance", ground.folder),
            started(place, "api", ground.folder) as api,
        ):
            value = await rate(kind, int(api.url.rpartition(":")[2]), key, jobs)
        async with place.database.connect("owner") as owner:
            there = await owner.fetchval("SELECT count(*) FROM jobs")
        assert there >= jobs, f"{there} jobs of {jobs} are there"
        return {OURS: value}


async def bare(ground: Ground, kind: Kind, jobs: int) -> Measured:
    port = free_port()
    async with ground.database() as database:
        async with database.connect("superuser") as superuser:
            await superuser.execute(bare_api.MAKE)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "uvicorn", "tests.bench.bare_api:app"),
            *("--host", HOST, "--port", str(port), "--loop", "uvloop", "--http", "httptools"),
            *("--log-level", "warning", "--no-access-log"),
            env={"DATABASE_URL": database.url("superuser"), "PYTHONPATH": "."},
            start_new_session=True,
        )
        try:
            await eventually(partial(_listens, port), within=30)
            return {BARE: await rate(kind, port, "nobody", jobs)}
        finally:
            await ended(process)


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def sides(ground: Ground, asking: Asked, *, kind: Kind) -> AsyncIterator[Sides]:
    jobs = asking.jobs_of(ROWS[kind.path])
    yield {
        OURS: partial(ours, ground, kind, jobs),
        BARE: partial(bare, ground, kind, jobs),
    }


ROWS: Final = {
    ONE.path: Row(
        name="post",
        about=f"POST /v1/jobs, one process, {CONNECTIONS} connections",
        figures=[Figure(title="POST /v1/jobs", unit="jobs/s", ours=OURS, other=BARE, at_least=0.8)],
        open=partial(sides, kind=ONE),
        jobs=6_000,
    ),
    BATCH.path: Row(
        name="post-batch",
        about=f"POST /v1/jobs:batch, one process, {JOBS_OF_A_BATCH} jobs a request",
        figures=[
            Figure(title="POST /v1/jobs:batch", unit="jobs/s", ours=OURS, at_least=10_000),
            Figure(title="POST /v1/jobs:batch", unit="jobs/s", ours=OURS, other=BARE),
        ],
        open=partial(sides, kind=BATCH),
        jobs=20_000,
    ),
}
