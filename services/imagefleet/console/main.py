"""The console's process: its pages, its connections to the API, and how it ends.

The drain: the port closes, streams are told that they are over, requests that run may finish within
the grace, and every session is forgotten.
"""

import asyncio
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta
from typing import Final

import structlog
import uvicorn
from starlette.types import ASGIApp

from imagefleet.client.api import open_client
from imagefleet.console.app import create_app
from imagefleet.console.sessions import Sessions
from imagefleet.errors import Misconfigured
from imagefleet.runtime import Drain, every, supervise
from imagefleet.settings import ConsoleSettings
from imagefleet.telemetry.health import serve_health
from imagefleet.telemetry.metrics import ConsoleMetrics
from imagefleet.telemetry.tracing import open_tracing

TRIES: Final = 2  # somebody waits for the page
MOST_AT_ONCE: Final = 100  # requests of the API
MOST_CONNECTIONS: Final = 500
LARGEST_HEAD: Final = 32_768  # bytes of a request's line and headers
IDLE_WITHIN: Final = timedelta(seconds=75)  # so that a load balancer (60 s) is the first to close
FORGET_EVERY: Final = timedelta(seconds=15)

log = structlog.get_logger()


async def main(
    settings: ConsoleSettings,
    drain: Drain,
    *,
    listening: Callable[["Listener"], None] | None = None,
) -> None:
    """Serve until asked to end; `listening` is told once pages are served, and where."""
    metrics = ConsoleMetrics()
    console = settings.console
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(open_tracing(settings.telemetry, process="console"))
        client = await stack.enter_async_context(
            open_client(
                console.api_url,
                None,
                agent="imagefleet-console",
                tries=TRIES,
                most_at_once=MOST_AT_ONCE,
            )
        )
        sessions = Sessions(client, idle=console.idle, longest=console.session)
        metrics.watch_sessions(lambda: len(sessions))
        app = create_app(console, client, sessions, metrics)
        listener = Listener(console.host, console.port, app, sessions, grace=console.shutdown_grace)
        await stack.enter_async_context(
            serve_health(
                settings.telemetry.health_host,
                settings.telemetry.health_port,
                metrics,
                vitals={},
                readiness={
                    "http": lambda: None if listener.is_serving else "not serving",
                    "drain": lambda: "draining" if drain.requested else None,
                },
            )
        )

        async def forget() -> None:
            sessions.end_old()

        async with supervise(drain) as parts:
            parts.start("http", listener.run(drain))
            of_sessions = every(
                FORGET_EVERY, forget, stop=drain, name="sessions", timeout=IDLE_WITHIN
            )
            parts.start("sessions", of_sessions)
            if listening is not None:
                listening(listener)


class _Unsignalled(uvicorn.Server):
    """Leaves the signals to `runtime`."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """One listening address; `port` says which, where any would do."""

    def __init__(
        self, host: str, port: int, app: ASGIApp, sessions: Sessions, *, grace: timedelta
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            msg = f"LISTEN_HOST, LISTEN_PORT: cannot listen on {host}:{port}: {error}"
            raise Misconfigured(msg) from error
        self._sessions = sessions
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        self._server = _Unsignalled(
            uvicorn.Config(
                app,
                http="h11",
                h11_max_incomplete_event_size=LARGEST_HEAD,
                limit_concurrency=MOST_CONNECTIONS,
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
        log.info("http.listening", host=self.host, port=self.port, connections=MOST_CONNECTIONS)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(self._server.serve(sockets=[self._socket]))
            waiting = group.create_task(drain.wait())
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            self._server.should_exit = True
            self._sessions.end_all()
            await serving
            waiting.cancel()
