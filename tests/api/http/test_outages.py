"""When the world is away: an answer within seconds, never a hang, and nothing half done."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest
from aiohttp import web

from imagefleet.embedded.machine import free_port
from imagefleet.errors import Unavailable
from imagefleet.store.database import Connection
from tests.support.api import JPEG, ROUTES, Running, Serve
from tests.support.aws import Answer, forwarding
from tests.support.database import Database
from tests.support.emulators import Emulator
from tests.support.eventually import eventually
from tests.support.http import a_jpeg, is_problem, submitted
from tests.support.wires import Gate, gate_before

WITHIN = 8  # seconds, for every single answer


@pytest.fixture
async def gate(database: Database) -> AsyncIterator[Gate]:
    """The only way from the API to Postgres."""
    parts = urlsplit(database.url("api"))
    async with gate_before(parts.hostname or "", parts.port or 0) as gate:
        yield gate


@pytest.fixture
async def running(serve: Serve, gate: Gate, database: Database) -> AsyncIterator[Running]:
    async with serve(database_url=through(gate, database), statement_seconds=1) as running:
        yield running
        gate.open()


def through(gate: Gate, database: Database) -> str:
    parts = urlsplit(database.url("api"))
    login = parts.netloc.rpartition("@")[0]
    return parts._replace(netloc=f"{login}@127.0.0.1:{gate.port}").geturl()


async def every_route_says_so(client: httpx.AsyncClient, job_id: object, image_id: object) -> None:
    async def one_says_so(number: int) -> None:
        async with asyncio.timeout(WITHIN):
            answer = await ROUTES[number].ask(client, job_id, image_id)
        is_problem(answer, 503, "unavailable")
        assert int(answer.headers["retry-after"]) > 0

    await asyncio.gather(*(one_says_so(number) for number in range(len(ROUTES))))


@pytest.mark.parametrize("how", ["closed", "silent"])
async def test_without_postgres_every_route_says_so(
    running: Running, acme: httpx.AsyncClient, gate: Gate, how: str
) -> None:
    job_id = await submitted(acme)
    image_id = (await acme.post("/v1/images", content=a_jpeg(), headers=JPEG)).json()["imageId"]

    if how == "closed":
        gate.close()
    else:
        gate.silence()

    await every_route_says_so(acme, job_id, image_id)
    async with running.client("rival") as stranger, asyncio.timeout(WITHIN):
        is_problem(await stranger.get("/v1/jobs"), 503, "unavailable")
    gate.open()

    async def is_back() -> bool:
        return (await acme.get(f"/v1/jobs/{job_id}")).status_code == 200

    await eventually(is_back, within=WITHIN)


async def test_a_database_that_is_not_there_is_told_at_the_start(serve: Serve) -> None:
    nowhere = f"postgresql://imagefleet_api:x@127.0.0.1:{free_port()}/nothing"

    with pytest.RaisesGroup(Unavailable, flatten_subgroups=True):
        async with asyncio.timeout(WITHIN), serve(database_url=nowhere):
            pass


async def test_without_s3_an_upload_is_not_recorded(serve: Serve, owner: Connection) -> None:
    async with (
        serve(aws_url=f"http://127.0.0.1:{free_port()}") as running,
        running.client() as client,
        asyncio.timeout(30),
    ):
        answer = await client.post("/v1/images", content=a_jpeg(), headers=JPEG)
        job = await client.post("/v1/jobs", json={"jobType": "noop"})

    is_problem(answer, 503, "unavailable")
    assert "s3" not in answer.text.lower()
    assert await owner.fetchval("SELECT count(*) FROM images") == 0
    # A doorbell that nobody hears costs a job nothing but time.
    assert job.status_code == 202


async def test_an_original_whose_row_could_not_be_written_leaves_no_row(
    serve: Serve, gate: Gate, database: Database, emulator: Emulator, owner: Connection
) -> None:
    stored, go_on = asyncio.Event(), asyncio.Event()

    async def hold_up(request: web.Request) -> Answer:
        if request.method == "PUT":
            stored.set()
            await go_on.wait()
        raise NotImplementedError

    async with (
        forwarding(emulator.url, instead=hold_up) as s3,
        serve(database_url=through(gate, database), aws_url=s3.url) as running,
        running.client() as client,
        asyncio.TaskGroup() as group,
    ):
        asked = group.create_task(client.post("/v1/images", content=a_jpeg(), headers=JPEG))
        await stored.wait()
        gate.close()
        go_on.set()
        answer = await asked
        gate.open()

    is_problem(answer, 503, "unavailable")
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 0
    assert await owner.fetchval("SELECT count(*) FROM images") == 0


async def test_what_runs_when_the_process_ends_is_finished(
    serve: Serve, emulator: Emulator, owner: Connection
) -> None:
    stored, go_on = asyncio.Event(), asyncio.Event()

    async def hold_up(request: web.Request) -> Answer:
        if request.method == "PUT":
            stored.set()
            await go_on.wait()
        raise NotImplementedError

    async with forwarding(emulator.url, instead=hold_up) as s3:
        async with serve(aws_url=s3.url) as running, running.client() as client:
            async with asyncio.TaskGroup() as group:
                asked = group.create_task(client.post("/v1/images", content=a_jpeg(), headers=JPEG))
                await stored.wait()
                running.drain.request("a test")
                await eventually(lambda: not running.server.is_serving)
                go_on.set()
            answer = asked.result()

        assert answer.status_code == 202
    # The last thing a process does is to ring for what it accepted.
    assert await owner.fetchval("SELECT sends FROM rings WHERE sent_at <= now()") == 1
