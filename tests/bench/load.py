"""A process that asks an API as fast as it answers: one request at a time on each connection.

It knows as much of HTTP as a request and its answer need, so that it takes little of the two cores.

    python -m tests.bench.load '{"port": 8080, "path": "/v1/jobs", ...}'
"""

import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, cast

import uvloop

HEAD_ENDS: Final = b"\r\n\r\n"
LENGTH: Final = b"content-length:"


@dataclass(slots=True, kw_only=True)
class Load:
    """So many times the same request."""

    request: bytes
    left: int
    statuses: Counter[int] = field(default_factory=Counter)
    first_failure: str = ""
    open_lines: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Line(asyncio.Protocol):
    """One connection, kept alive."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._heard = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the start."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's own is no such class
        self._load.open_lines += 1

    def ask(self) -> None:
        """Send the next request, if there is one."""
        assert self._transport is not None
        if self._load.left == 0:
            self._transport.close()
            return
        self._load.left -= 1
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer."""
        self._heard += data
        head = self._heard.find(HEAD_ENDS)
        if head < 0:
            return
        lowered = bytes(self._heard[:head]).lower()
        _, _, rest = lowered.partition(LENGTH)
        ends = head + len(HEAD_ENDS) + int(rest.split(b"\r\n", 1)[0])
        if len(self._heard) < ends:
            return
        status = int(self._heard[9:12])
        self._load.statuses[status] += 1
        if status >= 300 and not self._load.first_failure:
            self._load.first_failure = self._heard[:ends].decode(errors="replace")
        del self._heard[:ends]
        self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        """Whoever closed it: nothing more comes."""
        self._load.open_lines -= 1
        if self._load.open_lines == 0:
            self._load.over.set()


async def asked(
    *, port: int, path: str, key: str, body: str, requests: int, connections: int
) -> dict[str, object]:
    """Seconds from the first request to the last answer, and what was answered."""
    content = body.encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    load = Load(request=head.encode() + content, left=requests)
    loop = asyncio.get_running_loop()
    lines = [
        (await loop.create_connection(lambda: Line(load), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    begun = time.perf_counter()
    for line in lines:
        line.ask()
    await load.over.wait()
    return {
        "seconds": time.perf_counter() - begun,
        "statuses": load.statuses,
        "first_failure": load.first_failure,
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(asked(**json.loads(sys.argv[1])))))
