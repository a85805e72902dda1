"""One address that is listened on: how quick answers are, how many at once, how it ends."""

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from imagefleet.errors import Misconfigured
from imagefleet.listening import Listener, room
from imagefleet.runtime import Drain

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
ACKNOWLEDGED_AFTER = 0.04  # seconds: how long the kernel waits with nothing else to send


async def hello(_scope: Scope, _receive: Receive, send: Send) -> None:
    head = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": b"hello"})


@asynccontextmanager
async def listening(
    app: ASGIApp = hello, *, most: int = 10, at_the_end: Callable[[], object] = lambda: None
) -> AsyncIterator[tuple[Listener, Drain]]:
    listener = Listener(
        "127.0.0.1", 0, app, grace=timedelta(seconds=5), most=most, at_the_end=at_the_end
    )
    drain = Drain()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(listener.run(drain))
        yield listener, drain
        drain.request("the test is over")


async def test_no_answer_waits_for_its_head_to_be_acknowledged() -> None:
    """By asyncio's own loop, as tests run it; uvloop would see to it by itself."""
    took = []
    async with listening() as (listener, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        for _ in range(20):  # the first of a connection are acknowledged at once
            began = time.monotonic()
            writer.write(REQUEST)
            await reader.readuntil(b"hello")
            took.append(time.monotonic() - began)
        writer.close()

    assert min(took[10:]) < ACKNOWLEDGED_AFTER / 2


async def test_who_comes_when_there_are_too_many_is_told_so() -> None:
    async with listening(most=2) as (listener, _):
        others = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(REQUEST)

        assert b"HTTP/1.1 503" in await reader.readuntil(b"\r\n")

        for _, each in (*others, (reader, writer)):
            each.close()


async def test_what_follows_for_ever_is_told_of_the_end_before_it_is_waited_for() -> None:
    over = asyncio.Event()

    async def follow(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await over.wait()
        await send({"type": "http.response.body", "body": b"over"})

    async with listening(follow, at_the_end=over.set) as (listener, drain):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(REQUEST)
        await reader.readuntil(b"begun")
        drain.request("enough")

        assert b"over" in await reader.readuntil(b"over")
        assert not listener.is_serving
        writer.close()


async def test_an_address_that_is_taken_is_a_setting_that_cannot_be_used() -> None:
    async with listening() as (listener, _):
        with pytest.raises(Misconfigured) as why:
            Listener("127.0.0.1", listener.port, hello, grace=timedelta(), most=1)

    assert "LISTEN_HOST, LISTEN_PORT: cannot listen on 127.0.0.1:" in (why.value.detail or "")


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "most"),
    [
        (1024, 1_048_576, 4768, 4000),
        (1024, 2048, 2048, 1280),
        (512, 512, 512, 128),
        (20_000, 20_000, None, 4000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, 4000),
        (1024, resource.RLIM_INFINITY, 4768, 4000),
    ],
)
def test_connections_leave_files_for_the_rest(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None, most: int
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))

    assert room(4000) == most
    assert given == ([] if raised is None else [(raised, hard)])


def test_no_more_connections_are_taken_than_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (700, 700))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)

    assert room(10) == 10
