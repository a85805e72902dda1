"""What a connection may cost, asked on a bare socket: heads, bodies that nobody wants, nonsense."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
import pytest

from imagefleet.api import server
from tests.support.api import Running
from tests.support.http import is_problem

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(running: Running) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    try:
        async with asyncio.timeout(10):
            yield reader, writer
    finally:
        writer.transport.abort()


async def hangs_up(reader: asyncio.StreamReader) -> bytes:
    """What still comes until the other side ends the connection."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_WITHIN", "IDLE_WITHIN", "LINGER"):
        monkeypatch.setattr(server, name, timedelta(milliseconds=300))


@pytest.mark.parametrize(
    "sent", [b"", b"GET /v1/jobs HTT", b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nA: ", b"\r\n"]
)
async def test_a_head_has_a_deadline(impatient: None, running: Running, sent: bytes) -> None:
    async with connected(running) as (reader, writer):
        writer.write(sent)

        assert await hangs_up(reader) == b""


async def test_dripping_does_not_extend_the_deadline(impatient: None, running: Running) -> None:
    async with connected(running) as (reader, writer):
        writer.write(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n")
        over = asyncio.ensure_future(hangs_up(reader))  # noqa: TID251 - awaited below
        while not over.done():
            writer.write(b"A: b\r\n")
            await asyncio.wait({over}, timeout=0.05)

        await over


async def test_a_head_without_end_is_refused(running: Running) -> None:
    async with connected(running) as (reader, writer):
        # Not a byte more: of an answer to somebody who is still sending, nothing may arrive.
        head = b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nA: "
        writer.write(head + b"x" * (server.LARGEST_HEAD + 1 - len(head)))

        answer = await hangs_up(reader)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer


async def test_large_headers_are_refused_by_name(acme: httpx.AsyncClient) -> None:
    answer = await acme.get("/v1/jobs", headers={"X-Bomb": "x" * 40_000})

    is_problem(answer, 431, "headers_too_large")


async def test_many_headers_are_refused_by_name(acme: httpx.AsyncClient) -> None:
    bomb = {f"X-Bomb-{number}": "x" * 30 for number in range(1000)}

    is_problem(await acme.get("/v1/jobs", headers=bomb), 431, "headers_too_large")


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_a_problem_and_the_end(running: Running, sent: bytes) -> None:
    async with connected(running) as (reader, writer):
        writer.write(sent)

        answer = await hangs_up(reader)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"bad_request"' in answer


async def test_a_refused_body_is_heard_out_for_a_moment_only(
    impatient: None, running: Running
) -> None:
    key = running.secrets["acme"].encode()
    async with connected(running) as (reader, writer):
        writer.write(
            b"POST /v1/images HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\n"
            b"Authorization: Bearer %s\r\nContent-Length: 5000000\r\n\r\n" % key
        )

        assert b"413" in await reader.readline()
        await hangs_up(reader)


async def test_a_connection_outlives_a_refusal_whose_body_ends(running: Running) -> None:
    key = running.secrets["acme"].encode()
    head = b"Host: x\r\nAuthorization: Bearer %s\r\n" % key
    async with connected(running) as (reader, writer):
        writer.write(
            b"POST /v1/nothing HTTP/1.1\r\n%sContent-Length: 100000\r\n\r\n" % head + bytes(100_000)
        )
        assert b"404" in await reader.readline()
        writer.write(b"GET /v1/jobs HTTP/1.1\r\n%s\r\n" % head)

        seen = b""
        while b"HTTP/1.1 200 OK" not in seen:
            seen += await reader.read(1000)


async def test_nobody_is_told_what_we_are_made_of(acme: httpx.AsyncClient) -> None:
    answer = await acme.get("/v1/jobs")

    assert "server" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
