"""The console's process: its pages, its connections to the API, and how it ends.

The drain: the port closes, streams are told that they are over, requests that run may finish within
the grace, and every session is forgotten.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final

from imagefleet.client.api import open_client
from imagefleet.console.app import create_app
from imagefleet.console.sessions import Sessions
from imagefleet.listening import Listener, room
from imagefleet.runtime import Drain, every, supervise
from imagefleet.settings import ConsoleSettings
from imagefleet.telemetry.health import serve_health
from imagefleet.telemetry.metrics import ConsoleMetrics
from imagefleet.telemetry.tracing import open_tracing

TRIES: Final = 2  # somebody waits for the page
MOST_AT_ONCE: Final = 100  # requests of the API
MOST_CONNECTIONS: Final = 500
FORGET_EVERY: Final = timedelta(seconds=15)
FORGOTTEN_WITHIN: Final = timedelta(seconds=5)  # in memory alone


async def main(
    settings: ConsoleSettings,
    drain: Drain,
    *,
    listening: Callable[[Listener, Sessions], None] | None = None,
) -> None:
    """Serve until asked to end; `listening` is told once pages are served, where, and to whom."""
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
        listener = Listener(
            console.host,
            console.port,
            app,
            grace=console.shutdown_grace,
            most=room(MOST_CONNECTIONS),
            at_the_end=sessions.end_all,
        )
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
                FORGET_EVERY, forget, stop=drain, name="sessions", timeout=FORGOTTEN_WITHIN
            )
            parts.start("sessions", of_sessions)
            if listening is not None:
                listening(listener, sessions)
