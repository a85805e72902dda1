"""The API that producer verbs speak to: where it is and with which key."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from imagefleet.client.api import ApiClient, open_client
from imagefleet.settings import Client, load


@asynccontextmanager
async def open_api() -> AsyncIterator[ApiClient]:
    """Speak to the API of IMAGEFLEET_URL with the key of IMAGEFLEET_KEY."""
    settings = load(Client)
    async with open_client(settings.url, settings.key.get_secret_value()) as client:
        yield client
