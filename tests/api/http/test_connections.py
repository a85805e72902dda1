"""What a connection may cost, asked on a bare socket: heads, bodies that nobody wants, nonsense."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import httpx
import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from imagefleet import runtime
from imagefleet.api.http import connections
from imagefleet.api.http.bodies import Bodies
from imagefleet.api.http.connections import MOST_CONNECTIONS, MOST_KEYLESS, Server
from imagefleet.api.http.limiting import MOST_STREAMS
from imagefleet.runtime import Drain
from imagefleet.store.fleet.keys import ApiKey
from tests.support.api import Running, app_of
from tests.support.eventually import eventually
from tests.support.http import is_problem, submitted

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


def protocols_of(running: Running) -> list[connections.BoundedProtocol]:
    open_ones = running.server._server.server_state.connections
    return [each for each in open_ones if isinstance(each, connections.BoundedProtocol)]


@pytest.fixture(autouse=True)
def refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REFUSED_AFTER", 0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_WITHIN", "IDLE_WITHIN", "LINGER"):
        monkeypatch.setattr(connections, name, timedelta(milliseconds=300))


@pytest.mark.parametrize(
    "sent", [b"", b"GET /v1/jobs HTT", b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nA: ", b"\r\n"]
)
async def test_a_head_has_a_deadline(impatient: None, running: Running, sent: bytes) -> None:
    async with connected(running) as (reader, writer):
        writer.write(sent)

        assert await hangs_up(reader) == b""


@pytest.mark.parametrize("takes_it", [False, True])
async def test_who_takes_nothing_of_an_answer_is_gone(
    running: Running, monkeypatch: pytest.MonkeyPatch, *, takes_it: bool
) -> None:
    monkeypatch.setattr(connections, "SEND_WITHIN", timedelta(milliseconds=50))
    async with connected(running) as (reader, writer):
        await eventually(lambda: len(protocols_of(running)) == 1)
        (protocol,) = protocols_of(running)
        protocol.pause_writing()  # as the transport does when its buffer is full
        if takes_it:
            protocol.resume_writing()
            assert protocol._unsent is None
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"HTTP/1.1 404" in await reader.readuntil(b"\r\n")
        else:
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
        writer.write(head + b"x" * (connections.LARGEST_HEAD + 1 - len(head)))

        answer = await hangs_up(reader)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer


async def test_large_headers_are_refused_by_name(acme: httpx.AsyncClient) -> None:
    answer = await acme.get("/v1/jobs", headers={"X-Bomb": "x" * 40_000})

    is_problem(answer, 431, "headers_too_large")


async def test_many_headers_are_refused_by_name(acme: httpx.AsyncClient) -> None:
    bomb = {f"X-Bomb-{number}": "" for number in range(connections.MOST_HEADERS)}

    is_problem(await acme.get("/v1/jobs", headers=bomb), 431, "headers_too_large")
    few = dict(list(bomb.items())[: -len(acme.headers) - 2])
    assert (await acme.get("/v1/jobs", headers=few)).status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"0" * 5000 + b"\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 20 + b"\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        b"GET /v1/jobs HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x, y\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: http://x/\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: \xff\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: x\r\nConnection:upgrade\r\nUpgrade:x\r\nContent-Length:5\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_a_problem_and_the_end(running: Running, sent: bytes) -> None:
    async with connected(running) as (reader, writer):
        writer.write(sent)

        answer = await hangs_up(reader)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"bad_request"' in answer


@pytest.mark.parametrize(
    ("sent", "told"),
    [(b"nonsense\r\n\r\n" * 3, 1), (b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n" * 100, 0)],
)
async def test_nonsense_is_refused_without_hurry(
    running: Running, monkeypatch: pytest.MonkeyPatch, sent: bytes, told: int
) -> None:
    monkeypatch.setattr(connections, "REFUSED_AFTER", 0.3)
    async with connected(running) as (reader, writer):
        begun = time.monotonic()
        writer.write(sent)

        answer = await hangs_up(reader)

    assert answer.count(b"HTTP/1.1 ") == told
    assert time.monotonic() - begun >= 0.3


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /v1/jobs HTTP/1.0\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x \t\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 0" + b" " * 20 + b"\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: my_service.local:8080\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n",
        b"GET http://x/v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    ],
)
async def test_what_is_http_is_asked_for_a_key(running: Running, sent: bytes) -> None:
    async with connected(running) as (reader, writer):
        writer.write(sent)

        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")


CHUNKED = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n%s\r\n"
ENDLESS = {
    "trailers": (b"0\r\n", b"x-trailer: 0123456789\r\n"),
    "one trailer's name": (b"0\r\n", b"x" * 1000),
    "one trailer's value": (b"0\r\nx-trailer: ", b"x" * 1000),
    "trailers behind data": (b"2\r\n{}\r\n0\r\n", b"x-trailer: 0123456789\r\n"),
    "trailers behind much data": (b"30000\r\n%s\r\n0\r\n" % bytes(0x30000), b"x: y\r\n"),
    "a chunk's size": (b"", b"0" * 1000),
    "a chunk's extensions": (b"1", b";a=b" * 250),
    "extensions of tiny chunks": (b"", b"1;extension=0123456789\r\n{\r\n"),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_what_surrounds_a_body_has_an_end(running: Running, what: str) -> None:
    first, again = ENDLESS[what]
    sent = 0
    async with connected(running) as (reader, writer):
        writer.write(CHUNKED % b"" + first)
        over = asyncio.ensure_future(hangs_up(reader))  # noqa: TID251 - awaited below
        while not over.done() and sent < 16 * connections.LARGEST_FRAMING:
            writer.write(again * (2048 // len(again)))
            sent += 2048
            await asyncio.wait({over}, timeout=0.001)

        await over

    most = connections.LARGEST_FRAMING + 2 * connections.PIECE + 2048
    assert sent <= 4 * most  # of which much is under way between the two sockets


async def test_trailers_are_dropped(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[tuple[bytes, bytes]]] = []
    complete = connections.BoundedProtocol.on_message_complete

    def noted(protocol: connections.BoundedProtocol) -> None:
        seen.append(list(protocol.headers))
        complete(protocol)

    monkeypatch.setattr(connections.BoundedProtocol, "on_message_complete", noted)
    head = CHUNKED % (
        b"Content-Type: application/json\r\nAuthorization: Bearer %s\r\nConnection: close\r\n"
        % running.secrets["acme"].encode()
    )
    async with connected(running) as (reader, writer):
        writer.write(head + b"%x\r\n%s\r\n" % (len(NOOP), NOOP))
        writer.write(b"0\r\nx-correlation-id: sneaked-in\r\nhost: y\r\n\r\n")

        answer = await hangs_up(reader)

    assert answer.startswith(b"HTTP/1.1 202 ")
    assert b"sneaked-in" not in answer
    assert [name for name, _ in seen[0]] == [
        b"host", b"transfer-encoding", b"content-type", b"authorization", b"connection",
    ]  # fmt: skip


NOOP = b'{"jobType":"noop"}'
TRAILERS = {
    "many": lambda size: b"x-trailer: 0123456789abcdef012\r\n" * (size // 32),
    "one": lambda size: b"x: " + b"y" * (size - 5) + b"\r\n",
    "spaces": lambda size: b"x:" + b" " * (size - 5) + b"y\r\n",
}


@pytest.mark.parametrize("before", [1, 9_000, 40_000], ids="{} bytes before".format)
@pytest.mark.parametrize("what", TRAILERS)
async def test_every_byte_of_trailers_counts_wherever_the_body_begins_and_ends(
    running: Running, what: str, before: int
) -> None:
    head = CHUNKED % (
        b"Content-Type: application/json\r\nAuthorization: Bearer %s\r\nConnection: close\r\n"
        % running.secrets["acme"].encode()
    )
    body = b" " * before + NOOP
    statuses = []
    for size in (connections.LARGEST_TRAILERS - 512, connections.LARGEST_TRAILERS + 32):
        async with connected(running) as (reader, writer):
            trailers = TRAILERS[what](size)
            writer.write(head + b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(body), body, trailers))

            statuses.append((await hangs_up(reader)).split(b" ", 2)[1])

    assert statuses == [b"202", b"400"]


async def test_a_head_counts_from_where_the_body_before_it_ends(running: Running) -> None:
    async with connected(running) as (reader, writer), asyncio.timeout(5):
        first = CHUNKED % b"" + b"2\r\n{}\r\n0\r\n\r\n"
        writer.write(first + b"GET /v1/jobs HTTP/1.1\r\nx: " + b"y" * connections.LARGEST_HEAD)

        await hangs_up(reader)


async def test_what_waits_behind_a_body_is_not_taken_for_its_trailers(running: Running) -> None:
    body = CHUNKED % b"" + b"2\r\n{}\r\n0\r\n"
    ahead = b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nx: %s\r\n\r\n" % (b"y" * 4000)
    async with connected(running) as (reader, writer):
        writer.write(body + b"x: %s\r\n\r\n" % (b"y" * 4000) + ahead + ahead + body + b"\r\n")
        writer.write(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

        answers = await hangs_up(reader)

    assert [b"401"] * 5 == re.findall(rb"HTTP/1.1 (\d+)", answers)


async def test_a_body_behind_the_end_of_another_is_not_taken_for_its_trailers(
    running: Running,
) -> None:
    key = b"Content-Type: application/json\r\nAuthorization: Bearer %s\r\n" % (
        running.secrets["acme"].encode()
    )
    # The parser gets the last data with the first piece, the end of that body with the second.
    head = CHUNKED % key
    size = connections.PIECE - len(head) - len(b"4000\r\n")
    first = head + b"%04x\r\n" % size + NOOP.rjust(size) + b"\r\n0\r\n\r\n"
    last = b"Connection: close\r\nContent-Length: %d\r\n" % (2 * connections.PIECE)
    second = CHUNKED.replace(b"Transfer-Encoding: chunked\r\n", last) % key
    async with connected(running) as (reader, writer):
        writer.write(first + second + NOOP.rjust(2 * connections.PIECE))

        answers = await hangs_up(reader)

    assert [b"202"] * 2 == re.findall(rb"HTTP/1.1 (\d+)", answers)


async def test_a_body_may_come_byte_by_byte(running: Running) -> None:
    spaces = 70_000  # their framing is five times as much
    head = CHUNKED % (
        b"Content-Type: application/json\r\nAuthorization: Bearer %s\r\nConnection: close\r\n"
        % running.secrets["acme"].encode()
    )
    async with connected(running) as (reader, writer):
        writer.write(head + b"1\r\n \r\n" * spaces)
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(NOOP), NOOP))

        assert (await hangs_up(reader)).startswith(b"HTTP/1.1 202 ")


async def test_two_bodies_may_come_at_once(running: Running) -> None:
    key = running.secrets["acme"].encode()
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s\r\n"
    more = b"Content-Type: application/json\r\nContent-Length: 60018\r\n"
    async with connected(running) as (reader, writer):
        writer.write(
            head % (b"/v1/nothing", key, b"Content-Length: 200000\r\n")
            + bytes(200_000)
            + head % (b"/v1/jobs", key, more + b"Connection: close\r\n")
            + b" " * 60_000
            + NOOP
        )

        answers = await hangs_up(reader)

    assert [b"404", b"202"] == re.findall(rb"HTTP/1.1 (\d+)", answers)


async def test_a_body_that_came_with_its_head_is_not_waited_for(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[object] = []
    hold = Bodies.body

    def waiting(
        bodies: Bodies, key: ApiKey | None
    ) -> AbstractContextManager[Callable[[int], None]]:
        waited.append(key)
        return hold(bodies, key)

    monkeypatch.setattr(Bodies, "body", waiting)
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"
    more = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    asked = head % running.secrets["acme"].encode() + more % (len(NOOP), NOOP)
    async with connected(running) as (reader, writer):
        writer.write(asked)
        whole = await reader.readuntil(b"}}")
        assert waited == []

        writer.write(asked[:-1])
        await eventually(lambda: len(waited) == 1)
        writer.write(asked[-1:])
        in_two = await reader.readuntil(b"}}")

    assert [b"202", b"202"] == re.findall(rb"HTTP/1.1 (\d+)", whole + in_two)


@pytest.mark.parametrize(
    ("late", "packets"),
    [(False, [b"head body ", b"more "]), (True, [b"head ", b"body ", b"more "])],
)
async def test_the_head_of_an_answer_goes_out_with_what_follows_it(
    *, late: bool, packets: list[bytes]
) -> None:
    sent: list[bytes] = []
    transport = SimpleNamespace(write=sent.append, close=lambda: None, is_closing=lambda: False)
    answer = connections._InOne(cast("asyncio.Transport", transport), asyncio.get_running_loop())
    answer.write(b"head ")
    if late:
        await asyncio.sleep(0)
    answer.write(b"body ")
    answer.write(b"more ")
    await asyncio.sleep(0)

    assert packets == sent


async def test_a_head_that_nothing_follows_goes_out_before_the_end() -> None:
    done: list[object] = []
    transport = SimpleNamespace(
        write=done.append, close=lambda: done.append("closed"), is_closing=lambda: False
    )
    answer = connections._InOne(cast("asyncio.Transport", transport), asyncio.get_running_loop())
    answer.write(b"head")
    answer.close()
    await asyncio.sleep(0)

    assert [b"head", "closed"] == done


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, runtime.new_event_loop])
def test_a_head_for_who_has_just_gone_is_dropped(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    broke: list[object] = []

    async def goes(scope: Scope, receive: Receive, send: Send) -> None:
        protocols_of(running)[0].end()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] != "http.disconnect":
            pass

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: broke.append(what))
        drain = Drain()
        async with asyncio.TaskGroup() as group:
            group.create_task(server.run(drain))
            await eventually(lambda: server.is_serving)
            async with connected(running) as (reader, writer):
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert await hangs_up(reader) == b""
            drain.request("the test is over")

    server = Server("127.0.0.1", 0, goes, grace=timedelta(seconds=1))
    running = Running(server, Drain(), "")
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask())

    assert broke == []


async def test_few_requests_wait_behind_one(running: Running) -> None:
    waiting = b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n"
    async with connected(running) as (reader, writer):
        writer.write(waiting * connections.MOST_WAITING)
        for _ in range(connections.MOST_WAITING):
            assert b"401" in await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b'"}')

        writer.write(waiting * 100_000)
        answers = await hangs_up(reader)

    assert answers.count(b"HTTP/1.1 ") <= 2 * connections.MOST_WAITING
    assert b"400 Bad" not in answers


@pytest.mark.parametrize(
    "head", [b"x: " + b"y" * 9000, b"\r\n".join([b"a:"] * 60)], ids=["large", "many"]
)
async def test_what_waits_has_small_heads(running: Running, head: bytes) -> None:
    async with connected(running) as (reader, writer):
        writer.write((b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n" % head) * 3)

        assert b"HTTP/1.1 200" not in await hangs_up(reader)


async def test_nonsense_is_not_answered_in_anothers_place(running: Running) -> None:
    head = b"Host: x\r\nAuthorization: Bearer %s\r\n" % running.secrets["acme"].encode()
    async with running.client("acme") as acme:
        job_id = await submitted(acme, runAt="2040-01-01T00:00:00Z")
    async with connected(running) as (reader, writer):
        writer.write(b"GET /v1/jobs/%s?wait=20 HTTP/1.1\r\n%s\r\n" % (str(job_id).encode(), head))
        writer.write(b"nonsense\r\n\r\n")

        assert await hangs_up(reader) == b""


@pytest.mark.parametrize("behind", [1, connections.MOST_WAITING + 1])
async def test_who_is_gone_listens_no_longer_though_a_request_waits_behind(
    running: Running, behind: int
) -> None:
    key = running.secrets["acme"].encode()
    counts = app_of(running).state.limiting
    # Of a connection that is not read, only writing tells that it is gone.
    app_of(running).state.streams._heartbeat = timedelta(milliseconds=100)
    async with running.client("acme") as acme:
        job_id = await submitted(acme, runAt="2040-01-01T00:00:00Z")
    async with connected(running) as (reader, writer):
        writer.write(ASKS % (b"/%s/events" % str(job_id).encode(), key))
        await reader.readuntil(b"data: ")
        assert counts.streams == 1

        writer.write(ASKS % (b"", key) * behind)
        if behind > connections.MOST_WAITING:
            await hangs_up(reader)
        else:
            await eventually(lambda: any(each.pipeline for each in protocols_of(running)))
            writer.transport.abort()

        await eventually(lambda: counts.streams == 0)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, runtime.new_event_loop])
def test_of_a_body_that_nobody_reads_little_is_kept(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def never_reads(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    async def kept() -> int:
        drain = Drain()
        listening = Server("127.0.0.1", 0, never_reads, grace=timedelta(seconds=1))
        running = Running(listening, drain, "")
        async with asyncio.TaskGroup() as group:
            group.create_task(listening.run(drain))
            await eventually(lambda: listening.is_serving)
            async with connected(running) as (_, writer):
                # As much as does not pause reading, and then more than is read at once.
                writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n")
                writer.write(bytes(60_000))
                await eventually(lambda: body_of(running) == 60_000)
                writer.write(bytes(9_000_000))
                await eventually(lambda: protocols_of(running)[0].flow.read_paused)
                size = body_of(running)
            drain.request("the test is over")
        return size

    def body_of(running: Running) -> int:
        return sum(len(each.cycle.body) for each in protocols_of(running) if each.cycle is not None)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert HIGH_WATER_LIMIT < runner.run(kept()) <= HIGH_WATER_LIMIT + connections.AT_ONCE


async def test_a_body_behind_an_answer_may_take_its_time(impatient: None, running: Running) -> None:
    key = running.secrets["acme"].encode()
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s\r\n"
    more = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(NOOP)
    async with connected(running) as (reader, writer):
        writer.write(ASKS % (b"", key) + head % (key, more + b"Connection: close\r\n") + NOOP[:5])
        assert b" 200 " in await reader.readline()
        over = asyncio.ensure_future(hangs_up(reader))  # noqa: TID251 - awaited below
        await asyncio.wait({over}, timeout=3 * connections.LINGER.total_seconds())
        writer.write(NOOP[5:])

        assert b"HTTP/1.1 202 " in await over


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


ASKS = b"GET /v1/jobs%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n"


async def asks(streams: Streams, running: Running, path: str = "") -> bytes:
    """The status of an answer."""
    reader, writer = streams
    writer.write(ASKS % (path.encode(), running.secrets["acme"].encode()))
    status = await reader.readline()
    if b"application/json" in await reader.readuntil(b"\r\n\r\n"):
        await reader.readuntil(b"}")
    return status.split()[1]


async def test_who_says_nothing_makes_room_and_who_has_a_key_stays(running: Running) -> None:
    open_ones = running.server.connections
    open_ones.most_keyless = 2
    async with AsyncExitStack() as stack:
        known = await stack.enter_async_context(connected(running))
        assert await asks(known, running) == b"200"
        silent = [await stack.enter_async_context(connected(running)) for _ in range(6)]
        for reader, _ in silent[:4]:
            assert await hangs_up(reader) == b""

        newcomer = await stack.enter_async_context(connected(running))
        assert await asks(newcomer, running) == b"200"
        assert await asks(known, running) == b"200"
        assert len(open_ones) <= 2 + 2

    await eventually(lambda: len(open_ones) == 0)


async def test_who_waits_for_a_first_answer_with_a_key_stays(running: Running) -> None:
    running.server.connections.most_keyless = 1
    async with running.client("acme") as acme:
        job_id = await submitted(acme, runAt="2040-01-01T00:00:00Z")
    async with connected(running) as (reader, writer), AsyncExitStack() as stack:
        key = running.secrets["acme"].encode()
        writer.write(ASKS % (b"/%s/events" % str(job_id).encode(), key))
        assert b" 200 " in await reader.readline()

        for _ in range(3):
            await stack.enter_async_context(connected(running))
        last = await stack.enter_async_context(connected(running))
        assert await asks(last, running) == b"200"

        await reader.readuntil(b"data: ")


async def test_where_all_places_are_taken_an_idle_connection_goes(running: Running) -> None:
    open_ones = running.server.connections
    open_ones.most = 2
    async with running.client("acme") as acme:
        job_id = await submitted(acme, runAt="2040-01-01T00:00:00Z")
    await eventually(lambda: len(open_ones) == 0)
    async with AsyncExitStack() as stack:
        listening = await stack.enter_async_context(connected(running))
        idle = await stack.enter_async_context(connected(running))
        assert await asks(listening, running, f"/{job_id}/events") == b"200"
        assert await asks(idle, running) == b"200"

        newcomer = await stack.enter_async_context(connected(running))
        assert await asks(newcomer, running, f"/{job_id}/events") == b"200"
        await hangs_up(idle[0])

        reader, _ = await stack.enter_async_context(connected(running))
        assert await hangs_up(reader) == b""
        await newcomer[0].readuntil(b"data: ")


async def test_where_no_connection_is_idle_one_goes_that_says_nothing(running: Running) -> None:
    open_ones = running.server.connections
    open_ones.most, open_ones.most_keyless = 4, 10
    async with running.client("acme") as acme:
        job_id = await submitted(acme, runAt="2040-01-01T00:00:00Z")
    await eventually(lambda: len(open_ones) == 0)
    async with AsyncExitStack() as stack:
        # Its first answer is under way, so it is counted among those without a key still.
        listening = await stack.enter_async_context(connected(running))
        assert await asks(listening, running, f"/{job_id}/events") == b"200"
        silent = [await stack.enter_async_context(connected(running)) for _ in range(2)]
        await eventually(lambda: len(open_ones) == 3)
        listening_too = await stack.enter_async_context(connected(running))
        assert await asks(listening_too, running, f"/{job_id}/events") == b"200"

        newcomer = await stack.enter_async_context(connected(running))
        assert await asks(newcomer, running, f"/{job_id}/events") == b"200"
        assert await hangs_up(silent[0][0]) == b""
        another = await stack.enter_async_context(connected(running))
        assert await asks(another, running, f"/{job_id}/events") == b"200"
        assert await hangs_up(silent[1][0]) == b""

        assert len(open_ones) == 4
        for reader, _ in (listening, listening_too, newcomer, another):
            await reader.readuntil(b"data: ")


def test_every_stream_has_a_connection() -> None:
    assert MOST_STREAMS + MOST_KEYLESS < MOST_CONNECTIONS
