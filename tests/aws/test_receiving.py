"""A receive that nobody waits for any more: its messages must not be lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from aiohttp import web

from imagefleet.aws.queue import Message, Queue
from imagefleet.aws.session import open_session
from imagefleet.errors import Unavailable
from tests.support.aws import (
    Answer,
    forwarding,
    hang,
    operation_of,
    serving,
    settings_for,
    sqs_error,
)
from tests.support.emulators import CREDENTIALS, Emulator
from tests.support.eventually import eventually

LONG = timedelta(seconds=20)


@asynccontextmanager
async def queue_at(url: str, path: str) -> AsyncIterator[Queue]:
    settings = settings_for(url, read_timeout=1)
    async with open_session(settings, credentials=CREDENTIALS) as session:
        yield await session.queue(f"{url}/{path}")


async def cancelled_receive(queue: Queue, begun: asyncio.Event) -> None:
    """Receive until the request is on its way, then give up."""
    async with asyncio.TaskGroup() as group:
        receive = group.create_task(queue.receive(most=10, wait=LONG))
        await begun.wait()
        receive.cancel()
    assert receive.cancelled()


async def test_a_cancelled_receive_hands_its_messages_to_the_drain(
    emulator: Emulator, queue: Queue
) -> None:
    begun = asyncio.Event()

    async def see(request: web.Request) -> Answer:
        if operation_of(request) == "ReceiveMessage":
            begun.set()
        raise NotImplementedError

    async with (
        forwarding(emulator.url, instead=see) as proxy,
        queue_at(proxy.url, queue.url.partition("://")[2].partition("/")[2]) as watched,
    ):
        await cancelled_receive(watched, begun)
        await queue.send([Message(body="late", group="tenant-a")])

        messages = await watched.drain()

        assert ["late"] == [message.body for message in messages]
        assert proxy.requests["ReceiveMessage"] == 1
        assert await watched.drain() == []


async def test_a_receive_that_somebody_waits_for_is_not_the_drains(queue: Queue) -> None:
    async with asyncio.TaskGroup() as group:
        receive = group.create_task(queue.receive(most=10, wait=LONG))
        await asyncio.sleep(0)
        assert await queue.drain() == []
        await queue.send([Message(body="ours", group="tenant-a")])

    assert ["ours"] == [message.body for message in receive.result()]


async def test_a_drain_ends_although_sqs_does_not_answer() -> None:
    async with serving(hang) as server, queue_at(server.url, "0/queue") as queue:
        async with asyncio.TaskGroup() as group:
            receive = group.create_task(queue.receive(most=1, wait=timedelta()))
            await eventually(lambda: server.requests["ReceiveMessage"] == 1)
            receive.cancel()

        assert await queue.drain() == []


async def test_a_receive_is_never_repeated_by_the_sdk() -> None:
    """A reply that got lost took its messages with it; a second poll would take others."""
    async with (
        serving(sqs_error("InternalError", status=500)) as server,
        queue_at(server.url, "0/queue") as queue,
    ):
        with pytest.raises(Unavailable):
            await queue.receive(most=1, wait=LONG)

        assert await queue.drain() == []
        assert server.requests["ReceiveMessage"] == 1
