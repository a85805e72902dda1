"""Uploads that stall: one key cannot keep others from uploading, nor can several."""

import asyncio
import statistics
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

from imagefleet.api.http.turns import PLACES
from imagefleet.jobs.limits import LIMITS
from tests.faults.crowding import another_tenant
from tests.hostile.flooding import counted, times
from tests.support.images import quadrants, saved
from tests.support.stack import Producer, Stack

BODIES = PLACES + 16


@asynccontextmanager
async def stalled(who: Producer, bodies: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """So many uploads of three bytes each, of which no more ever comes."""
    address = urlsplit(str(who.http.base_url))
    key = who.http.headers["authorization"]
    head = (
        f"POST /v1/images HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n"
        "Content-Type: image/jpeg\r\nContent-Length: 1000\r\n\r\n"
    )
    async with AsyncExitStack() as closing:
        readers = []
        for _ in range(bodies):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            closing.callback(writer.close)
            writer.write(head.encode() + b"\xff\xd8\xff")
            readers.append(reader)
        yield readers


async def status_of(reader: asyncio.StreamReader) -> int:
    line = await reader.readline()
    return int(line.split(b" ")[1])


async def uploads(who: Producer) -> None:
    answer = await who.upload(saved(quadrants()))
    assert answer.status_code == 202, answer.text
    assert (await who.ended(answer.json()["jobId"]))["status"] == "completed"


async def test_stalled_bodies_of_one_key_keep_nobody_out(stack: Stack) -> None:
    async with (
        another_tenant(stack, "bystander") as bystander,
        another_tenant(stack, "stalling") as stalling,
    ):
        await times(bystander)
        quiet = await times(bystander, 200)
        before = await counted(stack, "limit_refusals_total", limit="least_rate")
        async with stalled(stalling, BODIES) as readers:
            attacked = statistics.median(await times(bystander, 400))
            async with asyncio.timeout(8):  # those who stall are not waited for
                await uploads(bystander)
            async with asyncio.timeout(45):
                told = Counter(await asyncio.gather(*(status_of(reader) for reader in readers)))
        alone = statistics.median(quiet + await times(bystander, 200))

    print(f"stalled: {alone * 1e3:.1f} ms, {attacked * 1e3:.1f} attacked, {dict(told)}")  # noqa: T201 - figures
    assert set(told) <= {408, 429}
    ended = await counted(stack, "limit_refusals_total", limit="least_rate") - before
    assert ended == told[408]
    assert told[408] >= LIMITS["key_uploads"].default
    assert attacked <= 2 * alone


async def test_what_stalls_makes_room_when_all_places_are_taken(stack: Stack) -> None:
    each = LIMITS["key_uploads"].default
    async with AsyncExitStack() as attack:
        bystander = await attack.enter_async_context(another_tenant(stack, "bystander"))
        for number in range(PLACES // each + 1):
            one = await attack.enter_async_context(another_tenant(stack, f"stalling-{number}"))
            await attack.enter_async_context(stalled(one, each))

        async with asyncio.timeout(8):
            await uploads(bystander)
