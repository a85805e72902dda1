"""A server that whoever attacks may have instead of ours, as a program of its own.

It keeps the attacking programs as busy as ours did, and does nothing for it: what it is sent is
read, each request gets the same answer, and what never becomes a request is hung up on, so many a
second in all as it was started with. Without a rate it answers nobody.
"""

import asyncio
import sys
from contextlib import suppress

from imagefleet.runtime import new_event_loop

REFUSAL = b'{"code":"decoy"}'
ANSWER = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%s" % (len(REFUSAL), REFUSAL)
LONGEST_HEAD = 65_536


class Pace:
    """Lets one through after the other."""

    def __init__(self, rate: float) -> None:
        self._gap = 1 / rate if rate else float("inf")
        self._next = 0.0

    async def turn(self) -> None:
        if self._gap == float("inf"):
            await asyncio.Event().wait()
        now = asyncio.get_running_loop().time()
        self._next = max(now, self._next + self._gap)
        await asyncio.sleep(self._next - now)


async def serve(rate: float) -> None:
    pace = Pace(rate)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError):
            while True:
                try:
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                except asyncio.LimitOverrunError:
                    head = b"transfer-encoding"
                length = head.partition(b"\ncontent-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                await pace.turn()
                if b"transfer-encoding" in head:
                    break
                writer.write(ANSWER)
                await writer.drain()
        writer.transport.abort()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=LONGEST_HEAD, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - to the test
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(float(sys.argv[1])))
