"""JSON that is all work, or that never ends: others hardly notice, and it takes little memory."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
from collections import Counter
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.faults.crowding import another_tenant
from tests.hostile.flooding import attacking, compared, resident, times
from tests.support.stack import Producer, Stack

MIB: Final = 2**20
STALLED: Final = 250  # bodies of 1 MiB, which once took 598 MiB
MOST_MORE: Final = 192 * MIB  # resident: a socket has its own buffers, and a heap never shrinks

BODIES: Final = {
    "zeros in one job": (1, '{"a":[' + "0," * 515_000 + "0]}"),
    "fields of one job": (1, "{" + ",".join(f'"{n:x}":0' for n in range(105_000)) + "}"),
    "fields of a hundred jobs": (100, "{" + ",".join(f'"{n:x}":0' for n in range(1100)) + "}"),
}


def sending(url: str, who: Producer, what: str) -> AbstractAsyncContextManager[Counter[str]]:
    """One such body after the other, over one connection of a program of its own."""
    key = who.http.headers["authorization"]
    return attacking("tests.hostile.test_bodies", url, key, what)


@pytest.mark.parametrize("what", BODIES)
@pytest.mark.usefixtures("alone")
async def test_nobody_waits_for_the_json_of_others(stack: Stack, what: str) -> None:
    async with (
        another_tenant(stack, "bystander") as bystander,
        another_tenant(stack, "greedy") as greedy,
    ):
        told = {"200", "429", "lost"}
        comparison = await compared(
            bystander, what, lambda url: sending(url, greedy, what), told=told
        )

    assert comparison.is_fair, str(comparison)


async def test_bodies_that_never_end_take_little_memory(stack: Stack) -> None:
    async with (
        another_tenant(stack, "bystander") as bystander,
        another_tenant(stack, "stalling") as stalling,
    ):
        await times(bystander)
        before = resident(stack)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            sent = asyncio.Semaphore(0)
            all_ = [group.create_task(_stalled(stalling, sent)) for _ in range(STALLED)]
            for _ in all_:
                await sent.acquire()
            assert (await bystander.submit()).status_code == 202
            more = resident(stack) - before
        told = Counter(task.result() for task in all_)

    print(f"{more / MIB:.0f} MiB for {STALLED} bodies, {dict(told)}")  # noqa: T201 - figures
    assert more < MOST_MORE
    assert set(told) <= {"408", "429", "lost"}
    assert told["408"]


async def _stalled(who: Producer, sent: asyncio.Semaphore) -> str:
    """Send a body but for its last byte; then, how it was answered."""
    address = urlsplit(str(who.http.base_url))
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(
        b"POST /v1/jobs:batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Authorization: %s\r\nContent-Length: %d\r\n\r\n"
        % (who.http.headers["authorization"].encode(), MIB)
    )
    status = asyncio.ensure_future(reader.readline())  # noqa: TID251 - awaited below
    with suppress(ConnectionError, TimeoutError):  # the answer may come amid the body
        async with asyncio.timeout(6):
            writer.write(b" " * (MIB - 1))
            await writer.drain()
    sent.release()
    try:
        return (await status).split(b" ")[1].decode()
    except (ConnectionError, IndexError):
        return "lost"
    finally:
        writer.transport.abort()


def attack(url: str, key: str, what: str) -> None:
    """Until the standard input ends."""
    import select  # noqa: PLC0415 - of this program alone

    address = urlsplit(url)
    count, payload = BODIES[what]
    job = f'{{"jobType":"noop","payload":{payload}}}'
    body = f'{{"jobs":[{",".join([job] * count)}]}}'.encode()
    assert len(body) <= MIB, len(body)
    headers = {"Authorization": key, "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=20)
    met: Counter[str] = Counter()
    print("attacking", flush=True)  # noqa: T201 - to the test
    while not select.select([sys.stdin], [], [], 0)[0]:
        try:
            connection.request("POST", "/v1/jobs:batch", body, headers)
            answer = connection.getresponse()
            answer.read()
            met[str(answer.status)] += 1
        except (OSError, http.client.HTTPException):
            met["lost"] += 1
            connection.close()
    print(json.dumps(met))  # noqa: T201 - to the test


if __name__ == "__main__":
    attack(*sys.argv[1:])
