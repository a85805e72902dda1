"""To whom verbs speak, and as whom: the API with a key, Postgres as a person."""

import os
import pwd
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from imagefleet.client.api import ApiClient, open_client
from imagefleet.settings import Client, Person, load
from imagefleet.store.fleet.audit import Actor

LONGEST_NAME: Final = 200  # characters, as the audit keeps it


@asynccontextmanager
async def open_api() -> AsyncIterator[ApiClient]:
    """Speak to the API of IMAGEFLEET_URL with the key of IMAGEFLEET_KEY."""
    settings = load(Client)
    async with open_client(settings.url, settings.key.get_secret_value()) as client:
        yield client


def whoami() -> Actor:
    """Who is at Postgres himself has no key to be known by."""
    name = load(Person).name
    if name is None:
        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # as in containers
            user = f"uid {os.getuid()}"
        name = f"{user}@{socket.gethostname()}"
    return Actor(name=name[:LONGEST_NAME])
