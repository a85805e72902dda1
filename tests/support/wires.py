"""Wires to a server that can be cut: for all at once, or after a commit and before its reply."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

CHUNK = 65536
READY = b"Z\x00\x00\x00\x05"  # Postgres has answered everything, and waits to be asked


class Wire:
    """Passes bytes both ways, until the client has sent `cut_after`: the answer to that is lost.

    With `once_after` only on a connection that was sent that before, or in the same moment.
    """

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self.cut_after: bytes | None = None
        self.once_after: bytes | None = None
        self.cut = asyncio.Event()
        self.lost = 0
        """How many answers."""
        self.round_trips = 0
        """How often Postgres was asked and had answered."""

    def mend(self) -> None:
        """Pass everything again."""
        self.cut_after = None
        self.cut.clear()

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
        armed = False
        while chunk := await client.read(CHUNK):
            armed = armed or (self.once_after is not None and self.once_after in chunk)
            may_be_cut = armed or self.once_after is None
            if may_be_cut and self.cut_after is not None and self.cut_after in chunk:
                self.cut.set()
            server.write(chunk)
            await server.drain()
        server.close()

    async def _back(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while chunk := await server.read(CHUNK):
            if self.cut.is_set():
                self.lost += 1
                break  # it has said yes, and nobody hears it
            self.round_trips += chunk.count(READY)
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


class Gate:
    """What passes, and who is on the way."""

    def __init__(self) -> None:
        self.port = 0
        self._is: Literal["open", "closed", "silent"] = "open"
        self._connections: set[asyncio.StreamWriter] = set()

    def open(self) -> None:
        """Let everything pass that comes from now on."""
        self._cut()
        self._is = "open"

    def close(self) -> None:
        """Cut every connection, and hang up on whoever comes."""
        self._is = "closed"
        self._cut()

    def silence(self) -> None:
        """Swallow every byte, of old connections and of new ones, without a word."""
        self._is = "silent"

    def _cut(self) -> None:
        for writer in self._connections:
            writer.transport.abort()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes one way until the end."""
        self._connections.add(writer)
        try:
            while chunk := await reader.read(65_536):
                if self._is == "open":
                    writer.write(chunk)
                    await writer.drain()
        except OSError:
            pass
        finally:
            self._connections.discard(writer)
            writer.transport.abort()


@asynccontextmanager
async def gate_before(host: str, port: int) -> AsyncIterator[Gate]:
    gate = Gate()

    async def arrived(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if gate._is == "closed":
            writer.transport.abort()
            return
        with suppress(OSError, asyncio.CancelledError):
            there, back = await asyncio.open_connection(host, port)
            async with asyncio.TaskGroup() as group:
                group.create_task(gate.pass_on(reader, back))
                group.create_task(gate.pass_on(there, writer))

    server = await asyncio.start_server(arrived, "127.0.0.1", 0)
    gate.port = server.sockets[0].getsockname()[1]
    try:
        yield gate
    finally:
        gate.close()
        server.close()
