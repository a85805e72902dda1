"""Server-sent events: in order, with heartbeats, resumed where they broke off, closed at last."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
from structlog.testing import capture_logs

from imagefleet.api.producers.events import Streams
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import revoke_key
from tests.support.api import Running, app_of
from tests.support.eventually import eventually
from tests.support.factories import UNAVAILABLE, make_due, settle_job
from tests.support.http import claimed, is_problem, submitted

BEAT = timedelta(milliseconds=50)


class Listener:
    """One client, line by line."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def event(self) -> tuple[str, dict[str, Any]]:
        """The id and the data of the next event."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(10):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                if name in {"id", "event", "data"}:
                    fields[name] = value
                elif line == "" and "data" in fields:
                    assert fields["event"] == "job"
                    return fields["id"], json.loads(fields["data"])
        raise AssertionError

    async def comment(self) -> str:
        async with asyncio.timeout(10):
            async for line in self._lines:
                if line.startswith(":"):
                    return line
        raise AssertionError

    async def rest(self) -> list[str]:
        """What comes until the end of the stream, which must come."""
        async with asyncio.timeout(10):
            return [line async for line in self._lines if line]


@asynccontextmanager
async def listening(
    client: httpx.AsyncClient, job_id: JobId, last: str | None = None
) -> AsyncIterator[Listener]:
    headers = {} if last is None else {"Last-Event-ID": last}
    async with client.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        yield Listener(answer.aiter_lines())


async def test_events_tell_what_becomes_of_a_job_until_it_is_over(
    acme: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    job_id = await submitted(acme)
    seen: list[str] = []
    async with listening(acme, job_id) as listener:
        seen.append((await listener.event())[1]["status"])
        job = await claimed(worker, job_id)
        seen.append((await listener.event())[1]["status"])
        await settle_job(worker, job, UNAVAILABLE)
        retryable = (await listener.event())[1]
        seen.append(retryable["status"])
        await make_due(superuser, job_id)
        job = await claimed(worker, job_id)
        seen.append((await listener.event())[1]["status"])
        await settle_job(worker, job, Completed())
        last = (await listener.event())[1]
        seen.append(last["status"])

        assert await listener.rest() == []

    assert ["queued", "processing", "failed_retryable", "processing", "completed"] == seen
    assert retryable["failure"]["code"] == UNAVAILABLE.code
    assert last == (await acme.get(f"/v1/jobs/{job_id}")).json()


async def test_ids_rise(acme: httpx.AsyncClient, worker: Connection) -> None:
    job_id = await submitted(acme)
    async with listening(acme, job_id) as listener:
        first, _ = await listener.event()
        job = await claimed(worker, job_id)
        second, _ = await listener.event()
        await settle_job(worker, job, Completed())
        third, _ = await listener.event()

    assert int(first) < int(second) < int(third)


async def test_a_client_that_comes_back_is_told_what_is_new(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    job_id = await submitted(acme)
    async with listening(acme, job_id) as listener:
        queued, _ = await listener.event()
    job = await claimed(worker, job_id)

    async with listening(acme, job_id, last=queued) as listener:
        processing, shown = await listener.event()
    async with listening(acme, job_id, last=processing) as listener:
        await settle_job(worker, job, Completed())
        completed, over = await listener.event()

    assert (shown["status"], over["status"]) == ("processing", "completed")
    finished = await acme.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": completed})
    assert finished.status_code == 204


async def test_whoever_comes_late_hears_the_end(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    job_id = await submitted(acme)
    await settle_job(worker, await claimed(worker, job_id), Completed())

    async with listening(acme, job_id, last="nonsense") as listener:
        assert (await listener.event())[1]["status"] == "completed"
        assert await listener.rest() == []


async def test_silence_is_filled_with_heartbeats_and_ends_with_the_key(
    running: Running, acme: httpx.AsyncClient, admin: Connection
) -> None:
    app = app_of(running)
    app.state.keys._trust = 0
    app.state.streams = Streams(
        app.state.tools, app.state.keys, app.state.watcher, app.state.limiting, heartbeat=BEAT
    )
    job_id = await submitted(acme)
    async with listening(acme, job_id) as listener:
        await listener.event()
        assert await listener.comment() == ": heartbeat"

        key = await app.state.keys.find(f"Bearer {running.secrets['acme']}")
        await revoke_key(admin, key.id)

        with capture_logs() as logs:
            assert {": heartbeat"} >= set(await listener.rest())

    (line,) = [line for line in logs if line["event"] == "key.refused"]
    assert ("revoked", str(key.id), "127.0.0.1") == tuple(
        line[name] for name in ("reason", "key_id", "address")
    )


async def test_the_end_of_the_process_ends_the_stream_and_the_wait(
    running: Running, acme: httpx.AsyncClient
) -> None:
    job_id = await submitted(acme)
    async with listening(acme, job_id) as listener, asyncio.TaskGroup() as group:
        await listener.event()
        waiting = group.create_task(acme.get(f"/v1/jobs/{job_id}?wait=20"))
        watcher = app_of(running).state.watcher
        await eventually(lambda: len(watcher._waiting.get(job_id, ())) == 2)

        running.drain.request("a test")

        assert await listener.rest() == []
    assert waiting.result().json()["status"] == "queued"


async def test_a_client_that_leaves_is_not_remembered(
    running: Running, acme: httpx.AsyncClient
) -> None:
    job_id = await submitted(acme)
    limiting = app_of(running).state.limiting
    async with running.client() as other, listening(other, job_id) as listener:
        await listener.event()
        assert limiting.streams == 1

    await eventually(lambda: limiting.streams == 0)
    assert app_of(running).state.watcher._waiting == {}


async def test_there_are_no_events_of_nothing(
    acme: httpx.AsyncClient, rival: httpx.AsyncClient
) -> None:
    job_id = await submitted(rival)

    is_problem(await acme.get(f"/v1/jobs/{job_id}/events"), 404, "not_found")
