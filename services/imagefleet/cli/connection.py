"""Speaking to the API of IMAGEFLEET_URL, with the key of IMAGEFLEET_KEY."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeVar
from urllib.parse import quote

from imagefleet.cli.output import run_async
from imagefleet.client.api import ApiClient, Document, open_client
from imagefleet.settings import Client, load

POLL: Final = 1.0  # seconds

Answer = TypeVar("Answer")


@asynccontextmanager
async def open_api() -> AsyncIterator[ApiClient]:
    """Speak to it for as long as a verb takes."""
    settings = load(Client)
    async with open_client(settings.url, settings.key.get_secret_value()) as client:
        yield client


def call(work: Callable[[ApiClient], Awaitable[Answer]]) -> Answer:
    """What a verb wants of it."""

    async def calling() -> Answer:
        async with open_api() as client:
            return await work(client)

    return run_async(calling())


def ask(
    method: str,
    path: str,
    parameters: Mapping[str, str | None] = {},
    document: object = None,
) -> Document:
    """One request to a route of operators, and its answer."""
    return call(lambda client: client.ask(method, path, parameters, document))


def below(path: str, *parts: str) -> str:
    """The path of something, whatever its name."""
    return "/".join([path, *(quote(part, safe="") for part in parts)])


def ends_in(seconds: float) -> float:
    """A moment of the running loop."""
    return asyncio.get_running_loop().time() + seconds


async def looks(ends_at: float) -> AsyncIterator[None]:
    """Look at once, and again every second until then."""
    clock = asyncio.get_running_loop().time
    yield
    while clock() < ends_at:
        await asyncio.sleep(POLL)
        yield
