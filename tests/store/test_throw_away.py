"""Databases of tests come and go whatever a test has left behind."""

import asyncio
import struct
from urllib.parse import urlsplit

from tests.support.database import Server, copied_database, login

VERSION = 3 << 16  # of the protocol


async def test_a_database_is_dropped_though_somebody_never_says_his_password(
    postgres: Server, template: str
) -> None:
    place = urlsplit(postgres.superuser_url)
    async with asyncio.timeout(5):
        async with copied_database(postgres, template) as database:
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            named = f"user\0{login('worker')}\0database\0{database.name}\0\0".encode()
            writer.write(struct.pack("!II", len(named) + 8, VERSION) + named)
            assert await reader.readexactly(1) == b"R", "it is asked for one"
        writer.close()
