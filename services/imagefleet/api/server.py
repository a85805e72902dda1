"""Serving HTTP: uvicorn, with the limits that it does not have and without its signals.

uvicorn bounds neither the headers of a request nor the time they take, and a body that nobody reads
after its answer was sent may go on for ever. The process's signals belong to `runtime`.
"""

import asyncio
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from imagefleet.api.errors import refused
from imagefleet.errors import Misconfigured
from imagefleet.runtime import Drain

LARGEST_HEAD: Final = 65_536  # bytes; `observing` refuses less than this, but politely
HEAD_WITHIN: Final = timedelta(seconds=10)
IDLE_WITHIN: Final = timedelta(seconds=30)
LINGER: Final = timedelta(seconds=5)  # for a refused body to stop, so that its answer arrives
BACKLOG: Final = 2048
_UNREADABLE: Final = "This is not a request that can be read."

log = structlog.get_logger()


class BoundedProtocol(HttpToolsProtocol):
    """One connection. The head of a request has a size and a deadline; so has what is refused."""

    _in_head = True
    _in_body = False
    _head_bytes = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._expect(HEAD_WITHIN)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._expect(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came in, unless it is a head without end."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._deadline is None:  # after an idle time, which uvicorn has stopped to measure
                self._expect(HEAD_WITHIN)
        super().data_received(data)
        if self._in_head and self._head_bytes > LARGEST_HEAD and not self.transport.is_closing():
            self.send_400_response(_UNREADABLE)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._expect(HEAD_WITHIN)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole: the application has its own deadlines."""
        self._expect(None)
        self._in_head, self._in_body, self._head_bytes = False, True, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next thing to come is another head."""
        self._in_head, self._in_body = True, False
        if self.cycle.response_complete:
            self._expect(IDLE_WITHIN)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Give a body that is still coming, and that nobody wants, a moment to end."""
        super().on_response_complete()
        if self._in_body:
            self._expect(LINGER)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """What is no HTTP gets a problem too, and the end of the connection."""
        problem = refused("bad_request", _UNREADABLE)
        head = b"".join(b"%s: %s\r\n" % header for header in problem.raw_headers)
        body = bytes(problem.body)
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\n%sconnection: close\r\n\r\n" % head + body
        )
        self.transport.close()

    def _expect(self, within: timedelta | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = (
            None
            if within is None
            else self.loop.call_later(within.total_seconds(), self.transport.close)
        )


class _Quiet(uvicorn.Server):
    """Leaves the signals alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """One listening address; `port` says which, where any would do."""

    def __init__(self, host: str, port: int, app: ASGIApp, *, grace: timedelta) -> None:
        """Listen at once, so that nobody is refused while the rest of the process opens."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            msg = f"LISTEN_HOST, LISTEN_PORT: cannot listen on {host}:{port}: {error}"
            raise Misconfigured(msg) from error
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        self._server = _Quiet(
            uvicorn.Config(
                app,
                http=BoundedProtocol,
                ws="none",
                lifespan="off",
                loop="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=int(IDLE_WITHIN.total_seconds()),
                timeout_graceful_shutdown=max(1, math.ceil(grace.total_seconds())),
            )
        )

    @property
    def is_serving(self) -> bool:
        """Whether requests are taken."""
        return self._server.started and not self._server.should_exit

    async def run(self, drain: Drain) -> None:
        """Serve until the drain; then take nothing new, and finish what runs within the grace."""
        log.info("http.listening", host=self.host, port=self.port)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(self._server.serve(sockets=[self._socket]))
            waiting = group.create_task(drain.wait())
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            self._server.should_exit = True
            await serving
            waiting.cancel()
