"""When the world is away: an answer within seconds, never a hang, and nothing half done."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import httpx
import pytest

from imagefleet.errors import Unavailable
from tests.api.test_auth import ROUTES
from tests.support.api import Running, Serve, app_of
from tests.support.database import Database
from tests.support.emulators import Emulator, free_port
from tests.support.eventually import eventually
from tests.support.http import a_jpeg, in_pieces, is_problem, submitted

JPEG = {"Content-Type": "image/jpeg"}
WITHIN = 8  # seconds, for every single answer


@asynccontextmanager
async def away(database: Database) -> AsyncIterator[None]:
    """Postgres takes nobody in any more, and nobody is left inside."""
    async with database.server.admin() as admin:
        await admin.execute(f"ALTER DATABASE {database.name} ALLOW_CONNECTIONS false")
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1",
            database.name,
        )
        try:
            yield
        finally:
            await admin.execute(f"ALTER DATABASE {database.name} ALLOW_CONNECTIONS true")


async def test_without_postgres_every_route_says_so(
    running: Running, acme: httpx.AsyncClient, database: Database
) -> None:
    job_id = await submitted(acme)
    image_id = (await acme.post("/v1/images", content=a_jpeg(), headers=JPEG)).json()["imageId"]

    async with away(database):
        for route in ROUTES:
            async with asyncio.timeout(WITHIN):
                answer = await route.ask(acme, job_id, image_id)
            is_problem(answer, 503, "unavailable")
            assert int(answer.headers["retry-after"]) > 0
        async with running.client("rival") as stranger, asyncio.timeout(WITHIN):
            is_problem(await stranger.get("/v1/jobs"), 503, "unavailable")

    assert (await acme.get(f"/v1/jobs/{job_id}")).status_code == 200


async def test_a_database_that_is_not_there_is_told_at_the_start(serve: Serve) -> None:
    nowhere = f"postgresql://imagefleet_api:x@127.0.0.1:{free_port()}/nothing"

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(WITHIN), serve(database_url=nowhere):
            pass

    assert raised.group_contains(Unavailable)


async def test_without_s3_an_upload_is_not_recorded(
    serve: Serve, owner: asyncpg.Connection, emulator: Emulator
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    async with serve(aws_url=nowhere) as running, running.client() as client:
        async with asyncio.timeout(30):
            answer = await client.post("/v1/images", content=a_jpeg(), headers=JPEG)
            job = await client.post("/v1/jobs", json={"jobType": "noop"})

    is_problem(answer, 503, "unavailable")
    assert "s3" not in answer.text.lower()
    assert await owner.fetchval("SELECT count(*) FROM images") == 0
    # A doorbell that nobody hears costs a job nothing but time.
    assert job.status_code == 202


async def test_death_between_the_original_and_the_row_leaves_no_row(
    acme: httpx.AsyncClient, running: Running, owner: asyncpg.Connection, database: Database
) -> None:
    stored = asyncio.Event()
    originals = app_of(running).state.tools.originals
    upload = originals.upload

    async with away_once(stored, database):

        async def and_then_die(*arguments: object) -> object:
            done = await upload(*arguments)
            stored.set()
            await eventually(lambda: originals.gone)
            return done

        originals.upload, originals.gone = and_then_die, False
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(
                acme.post("/v1/images", content=in_pieces(a_jpeg()), headers=JPEG)
            )
            await stored.wait()
            async with away(database):
                originals.gone = True
                answer = await asked

    is_problem(answer, 503, "unavailable")
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 0
