"""Listening for HTTP: uvicorn on a socket of ours, without its signals, until the drain.

The process's signals belong to `runtime`; what is served, to whom and how much of it at once, to
the process.
"""

import asyncio
import math
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import structlog
import uvicorn
from starlette.types import ASGIApp

from imagefleet.errors import Misconfigured
from imagefleet.runtime import Drain

ACCEPTED_AT_ONCE: Final = 512  # before any of them is counted; what waits in the kernel, too
IDLE_WITHIN: Final = timedelta(seconds=75)  # so that a load balancer (60 s) is the first to close
RESERVED: Final = 256  # files: pools, S3, uploads under way, the program itself
LARGEST_HEAD: Final = 32_768  # bytes of a request's line and headers, where uvicorn bounds them

log = structlog.get_logger()


class _Quiet(uvicorn.Server):
    """Leaves the signals alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """One listening address; `port` says which, where any would do."""

    def __init__(
        self,
        host: str,
        port: int,
        app: ASGIApp,
        *,
        grace: timedelta,
        most: int,
        protocol: Callable[..., asyncio.BaseProtocol] | None = None,
        at_the_end: Callable[[], object] = lambda: None,
    ) -> None:
        """Listen at once, so that nobody is refused while the rest of the process opens.

        A protocol bounds its connections itself; without one uvicorn answers 503 beyond `most`.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server(
                (host, port), family=family, backlog=ACCEPTED_AT_ONCE
            )
        except OSError as error:
            msg = f"LISTEN_HOST, LISTEN_PORT: cannot listen on {host}:{port}: {error}"
            raise Misconfigured(msg) from error
        # Inherited by what is accepted: asyncio's own loop overlooks it on such a socket, and each
        # answer would wait 40 ms for the client's acknowledgement of its head.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        self._most = most
        self._at_the_end = at_the_end
        self._server = _Quiet(
            uvicorn.Config(
                app,
                http=protocol or "h11",  # type: ignore[arg-type] # only called
                h11_max_incomplete_event_size=LARGEST_HEAD,
                limit_concurrency=None if protocol else most,
                backlog=ACCEPTED_AT_ONCE,
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
        log.info("http.listening", host=self.host, port=self.port, connections=self._most)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(self._server.serve(sockets=[self._socket]))
            waiting = group.create_task(drain.wait())
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            self._server.should_exit = True
            self._at_the_end()
            await serving
            waiting.cancel()


def room(wanted: int) -> int:
    """How many connections this process has files for; it takes all it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted + ACCEPTED_AT_ONCE + RESERVED
    if soft != resource.RLIM_INFINITY and soft < files:
        raised = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted
    most = min(wanted, max(soft // 4, soft - ACCEPTED_AT_ONCE - RESERVED))
    log.warning("http.few_files", files=soft, connections=most)
    return most
