"""A gate before a server: TCP passes while it is open; closed or silent, the server is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal


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
