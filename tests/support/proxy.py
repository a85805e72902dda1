"""A wire to Postgres that can be cut where it hurts most: after the commit, before its reply."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

CHUNK = 65536


class Wire:
    """Passes bytes both ways, until the client has sent `cut_after`: the answer to that is lost."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self.cut_after: bytes | None = None
        self.cut = asyncio.Event()

    @property
    def url(self) -> str:
        """The same database, by this wire."""
        place = self._parts.netloc.rpartition("@")[0]
        return urlunsplit(self._parts._replace(netloc=f"{place}@127.0.0.1:{self._port}"))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._parts.hostname, self._parts.port
        there, back = await asyncio.open_connection(host, port)
        self._writers += [writer, back]
        with suppress(ConnectionError):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forth(reader, back))
                group.create_task(self._back(there, writer))

    async def _forth(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while chunk := await client.read(CHUNK):
            if self.cut_after is not None and self.cut_after in chunk:
                self.cut.set()
            server.write(chunk)
            await server.drain()
        server.close()

    async def _back(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while chunk := await server.read(CHUNK):
            if self.cut.is_set():
                break  # it has said yes, and nobody hears it
            client.write(chunk)
            await client.drain()
        client.close()


@asynccontextmanager
async def a_wire(url: str) -> AsyncIterator[Wire]:
    wire = Wire(url)
    server = await asyncio.start_server(wire._accept, "127.0.0.1", 0)
    wire._port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        server.close()
        for writer in wire._writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        await server.wait_closed()
