"""Who asks for things while they break; the stack is each module's own."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.stack import Producer, Stack


@pytest_asyncio.fixture(loop_scope="module")
async def producer(stack: Stack) -> AsyncIterator[Producer]:
    async with stack.producer() as producer:
        yield producer
