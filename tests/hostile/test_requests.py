"""Requests that are none, or far too much: refused early, by name, and for little memory."""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from imagefleet.api.http.connections import MOST_KEYLESS
from tests.faults.crowding import another_tenant
from tests.faults.facts import Post
from tests.hostile.flooding import POURED, SILENCE, compared, flooding, resident
from tests.support.http import told
from tests.support.stack import Producer, Stack

MIB: Final = 2**20
TRAILERS: Final = 24 * MIB
MOST_MORE: Final = 24 * MIB  # resident, after attacks that once cost 510 MiB; a heap never shrinks

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(stack: Stack) -> AsyncIterator[Streams]:
    address = urlsplit(str(stack.facts["api_url"]))
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        async with asyncio.timeout(30):
            yield reader, writer
    finally:
        writer.transport.abort()


async def poured(stack: Stack, first: bytes, again: bytes, size: int) -> int:
    """Send it until the other side hangs up; how much it took."""
    taken = 0
    async with connected(stack) as (reader, writer):
        over = asyncio.ensure_future(reader.read())  # noqa: TID251 - awaited below
        try:
            writer.write(first)
            piece = again * max(1, 65_536 // len(again))
            while taken < size and not over.done():
                writer.write(piece)
                await writer.drain()
                taken += len(piece)
        except ConnectionError:
            pass
        if taken >= size:
            over.cancel()
        await asyncio.gather(over, return_exceptions=True)
    return taken


def open_files(stack: Stack) -> int:
    (pid,) = stack.pids("api").values()
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


# Below each limit of a request's own: what waits for the answer to the one before is kept.
LADEN: Final = b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 16_000 + b"\r\n"


@pytest.mark.parametrize("flood", POURED)
async def test_a_flood_without_a_key_costs_no_memory(
    stack: Stack, producer: Producer, flood: str
) -> None:
    first, again = POURED[flood]
    assert (await producer.submit()).status_code == 202
    before = resident(stack)

    taken = await asyncio.gather(*(poured(stack, first, again, TRAILERS) for _ in range(4)))

    assert max(taken) < TRAILERS, "nobody stopped it"
    assert resident(stack) - before < MOST_MORE
    assert (await producer.submit()).status_code == 202


@pytest.mark.parametrize("flood", ["trailers", "headers", "one header", "requests ahead", SILENCE])
async def test_nobody_waits_for_what_never_ends(stack: Stack, alone: None, flood: str) -> None:
    """Nor for connections over which nothing comes, more than there may be, one after the other."""
    many = MOST_KEYLESS + 50 if flood == SILENCE else 16
    async with another_tenant(stack, "bystander") as bystander:
        comparison = await compared(
            bystander, flood, lambda url: flooding(url, flood, connections=many), told={"lost"}
        )

    assert comparison.is_fair, str(comparison)


async def test_requests_ahead_of_their_answers_cost_no_memory(
    stack: Stack, producer: Producer
) -> None:
    """Much sooner told than they are answered: the memory is looked at while they are kept."""
    assert (await producer.submit()).status_code == 202
    before, most = resident(stack), 0

    async def pours() -> None:
        async with connected(stack) as (reader, writer):
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(8):
                    writer.write(LADEN * 15)
                    await reader.read()

    async def looks() -> None:
        nonlocal most
        while True:
            most = max(most, resident(stack))
            await asyncio.sleep(0.02)  # a sample, not a wait

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(looks())
        await asyncio.gather(*(pours() for _ in range(24)))
        looking.cancel()

    print(f"laden: {(most - before) / MIB:.0f} MiB more")  # noqa: T201 - a figure
    assert most - before < MOST_MORE
    assert (await producer.submit()).status_code == 202


async def test_connections_that_say_nothing_are_few(stack: Stack, producer: Producer) -> None:
    assert (await producer.submit()).status_code == 202
    before = open_files(stack)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async with AsyncExitStack() as silent:
        for _ in range(MOST_KEYLESS // 10 + 20):
            await asyncio.gather(*(silent.enter_async_context(connected(stack)) for _ in range(10)))
        assert (await producer.submit()).status_code == 202
        async with stack.producer() as newcomer:
            assert (await newcomer.submit()).status_code == 202

        assert MOST_KEYLESS // 2 < open_files(stack) - before <= MOST_KEYLESS + 5


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/jobs HTTP/1.1\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nHost: x\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x y\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"0" * 5000 + b"\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n",
    ],
)
async def test_a_head_that_may_be_read_in_two_ways_is_refused(stack: Stack, head: bytes) -> None:
    key = str(stack.facts["api_key"]).encode()
    async with connected(stack) as (reader, writer):
        writer.write(head + b"Authorization: Bearer %s\r\n\r\n" % key)

        answer = await reader.read()

    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b'"code":"bad_request"' in answer


DEEP: Final = '{"jobType":"noop","payload":{"note":' + "[" * 1000 + "]" * 1000 + "}}"
FAR: Final = '{"jobType":"noop","runAt":"2030-01-01T00:00:00+23:59"}'
GOOD: Final = '{"jobType":"noop"}'


@pytest.mark.parametrize("absurd", [DEEP, FAR])
async def test_an_absurd_job_is_refused_and_costs_no_other_its_answer(
    producer: Producer, absurd: str
) -> None:
    json = {"Content-Type": "application/json"}

    alone = await producer.http.post("/v1/jobs", content=absurd, headers=json)
    batch = await producer.http.post(
        "/v1/jobs:batch", content=f'{{"jobs":[{GOOD},{absurd},{GOOD}]}}', headers=json
    )

    assert told(alone) == (422, "invalid_request")
    answers = batch.json()["answers"]
    assert [each["status"] for each in answers] == [202, 422, 202]
    for job_id in (answers[place]["job"]["jobId"] for place in (0, 2)):
        producer._posts.append(
            Post(tenant="demo", key=None, asked=GOOD, outcome="ok", status=202, job_id=job_id)
        )
        assert (await producer.ended(job_id))["status"] == "completed"
