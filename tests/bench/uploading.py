"""Many large uploads at once: the most memory that the API ever had, beside a few of them.

Each is 20 MB, sent as fast as it is taken. They go through to S3 of an emulator of their own, which
ends with the round and takes with it what it holds.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final
from uuid import uuid4

import aiohttp

from tests.bench.ground import Ground
from tests.bench.processes import started, unlimited_key
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides
from tests.support.emulators import running_ministack
from tests.support.images import quadrants, saved

BYTES: Final = 20_000_000
PIECE: Final = 65_536
FEW: Final = 5
MANY: Final = 50
MB: Final = 1_000_000
WITHIN: Final = 600.0  # seconds


async def peak(ground: Ground, uploads: int, size: int) -> Measured:
    """Megabytes, once so many were taken at once."""
    with running_ministack() as url:
        async with ground.place(emulator_url=url) as place:
            key = await unlimited_key(place.database)
            async with (
                started(place, "api", ground.folder) as api,
                aiohttp.ClientSession(
                    headers={"Authorization": f"Bearer {key}", "Content-Type": "image/jpeg"},
                    connector=aiohttp.TCPConnector(limit=uploads),
                    timeout=aiohttp.ClientTimeout(total=WITHIN),
                ) as http,
            ):

                async def upload() -> None:
                    body = _a_large_file(size)
                    async with http.post(f"{api.url}/v1/images", data=body) as answer:
                        assert answer.status == 202, await answer.text()

                async with asyncio.TaskGroup() as group:
                    for _ in range(uploads):
                        group.create_task(upload())
                return {f"{uploads} at once": api.peak_bytes() / MB}


async def _a_large_file(size: int) -> AsyncIterator[bytes]:
    """A picture, and behind its end what nobody looks at; no two are alike."""
    head = saved(quadrants(), "JPEG") + uuid4().bytes
    yield head
    for _ in range((size - len(head)) // PIECE):
        yield bytes(PIECE)


@asynccontextmanager
async def sides(ground: Ground, asked: Asked) -> AsyncIterator[Sides]:
    size = BYTES // 20 if asked.quick else BYTES
    yield {f"{uploads} at once": partial(peak, ground, uploads, size) for uploads in (MANY, FEW)}


ROW: Final = Row(
    name="uploads",
    about=f"peak memory of the API while {MANY} uploads of 20 MB come at once",
    figures=[
        Figure(
            title=f"API, peak RSS, {MANY} uploads of 20 MB at once",
            unit="MB",
            ours=f"{MANY} at once",
            other=f"{FEW} at once",
            at_most=1.4,
        ),
    ],
    open=sides,
)
