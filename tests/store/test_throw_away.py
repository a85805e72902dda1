"""Databases of tests come and go whatever a test has left behind."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest

from tests.support.database import Server, copied_database, login

VERSION = 3 << 16  # of the protocol

Knock = Callable[[str], Awaitable[asyncio.StreamReader]]


@pytest.fixture
async def knock(postgres: Server) -> AsyncIterator[Knock]:
    """Begin a session in a database, up to the question for the password."""
    place = urlsplit(postgres.superuser_url)
    opened: list[asyncio.StreamWriter] = []

    async def knocked(database: str) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        opened.append(writer)
        named = f"user\0{login('worker')}\0database\0{database}\0\0".encode()
        writer.write(struct.pack("!II", len(named) + 8, VERSION) + named)
        assert await reader.readexactly(1) == b"R", "it is asked for one"
        return reader

    yield knocked
    for writer in opened:
        writer.close()


async def test_a_database_is_dropped_though_somebody_never_says_his_password(
    postgres: Server, template: str, knock: Knock
) -> None:
    async with asyncio.timeout(5), copied_database(postgres, template) as database:
        await knock(database.name)


async def test_who_is_about_to_say_his_password_is_given_time_though_a_database_is_dropped(
    postgres: Server, template: str, knock: Knock
) -> None:
    async with asyncio.timeout(10), copied_database(postgres, template) as other:
        reader = await knock(other.name)
        await reader.read(1000)  # the rest of the question
        async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
            await stack.enter_async_context(copied_database(postgres, template))
            dropped = group.create_task(stack.pop_all().aclose())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await reader.read(1)
            assert not dropped.done(), "every backend has to agree"
