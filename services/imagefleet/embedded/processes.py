"""Which processes run, in which environment, and whether they are ready.

Each is given exactly what it reads, and nothing of ours.
"""

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import httpx

from imagefleet.embedded.machine import HOST, base_environment, free_port
from imagefleet.embedded.supervisor import Keeper, Program
from imagefleet.errors import Misconfigured, Unavailable
from imagefleet.telemetry.health import LONGEST_STAY

CONSOLE_GRACE: Final = 2  # seconds; a page is there sooner, and streams end at once
API_GRACE: Final = 10  # seconds; the longest poll of a job's state ends at once
WORKER_GRACE: Final = 20  # an image takes less; what is left is given back and goes on next time
RECEIVE_WAIT: Final = 1  # seconds that a drain waits for the receive on its way

GRACES: Final = {
    "console": CONSOLE_GRACE,
    "api": API_GRACE,
    "worker": WORKER_GRACE,
    "maintenance": WORKER_GRACE,
}
# Seconds a process has beyond its own grace: to close what it opened, and for its last scrape.
MARGIN: Final = 5 + LONGEST_STAY.total_seconds()
READY_WITHIN: Final = 60.0  # seconds
LOOK_EVERY: Final = 0.05  # seconds
HOPELESS_AFTER: Final = 3  # deaths before it was ever ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the stack is, once it is there."""

    database_urls: Mapping[str, str]
    """By role, without its prefix."""
    aws: Mapping[str, str]
    """How to reach the emulator."""
    topology: Mapping[str, str]
    """Queues, buckets and the distribution, as the processes read them."""
    public_base_url: str


class Processes:
    """The console, the api, workers and maintenance; each keeps its ports as long as this lives."""

    def __init__(self, *, workers: int, api_port: int, console_port: int) -> None:
        self._stages = [
            ["console"],
            ["api"],
            [f"worker-{number}" for number in range(1, workers + 1)],
            ["maintenance"],
        ]
        self._ports = {"api": api_port, "console": console_port}
        names = [name for stage in self._stages for name in stage]
        self._health_ports = {name: free_port() for name in names}

    @property
    def api_url(self) -> str:
        """Where the API is."""
        return f"http://{HOST}:{self._ports['api']}"

    @property
    def console_url(self) -> str:
        """Where the operators' pages are."""
        return f"http://{HOST}:{self._ports['console']}"

    @property
    def health_urls(self) -> dict[str, str]:
        """Where /healthz, /readyz and /metrics of each process are."""
        return {name: f"http://{HOST}:{port}" for name, port in self._health_ports.items()}

    def programs(self, facts: Facts) -> list[list[Program]]:
        """In stages, in the order of their end: who asks, takes in, does, looks after."""
        return [[self._program(name, facts) for name in stage] for stage in self._stages]

    def _program(self, name: str, facts: Facts) -> Program:
        process = name.partition("-")[0]
        return Program(
            name=name,
            command=[sys.executable, "-m", "imagefleet", process],
            environment=environment_of(
                process,
                facts,
                health_port=self._health_ports[name],
                port=self._ports.get(process, 0),
                api_url=self.api_url,
            ),
            grace=timedelta(seconds=GRACES[process] + MARGIN),
        )

    async def ready(self, keepers: Sequence[Keeper]) -> None:
        """Return when each says that it is ready; raise when one never will."""
        deadline = time.monotonic() + READY_WITHIN
        waiting = {name: f"{url}/readyz" for name, url in self.health_urls.items()}
        async with httpx.AsyncClient(timeout=3) as http:
            while waiting:
                _refuse_hopeless(keepers)
                for name, url in list(waiting.items()):
                    reason = await _unready(http, url)
                    if reason is None:
                        del waiting[name]
                    elif time.monotonic() > deadline:
                        sentence = f"{name} is not ready after {READY_WITHIN:.0f} s: {reason}"
                        raise Unavailable("not_ready", sentence)
                await asyncio.sleep(LOOK_EVERY)


def _refuse_hopeless(keepers: Sequence[Keeper]) -> None:
    for keeper in keepers:
        if keeper.refused or keeper.restarts >= HOPELESS_AFTER:
            detail = f"{keeper.program.name} does not start; its own words are above"
            raise Misconfigured(detail)


async def _unready(http: httpx.AsyncClient, url: str) -> str | None:
    """Why a process is not ready; None when it is."""
    try:
        answer = await http.get(url)
    except httpx.HTTPError as error:
        return f"no answer at {url} ({type(error).__name__})"
    return None if answer.is_success else answer.text


def environment_of(
    process: str, facts: Facts, *, health_port: int, port: int = 0, api_url: str = ""
) -> dict[str, str]:
    """The variables of a process; the console is told nothing of Postgres and AWS."""
    listens = {"LISTEN_HOST": HOST, "LISTEN_PORT": str(port)}
    reaches = {**facts.aws, **facts.topology}
    own: dict[str, str]
    match process:
        case "console":
            reaches = {"IMAGEFLEET_URL": api_url}
            own = {
                **listens,
                "PUBLIC_BASE_URL": facts.public_base_url,
                "SHUTDOWN_GRACE_PERIOD_SECONDS": str(CONSOLE_GRACE),
            }
        case "api":
            own = {
                **listens,
                "OPERATOR_DATABASE_URL": facts.database_urls["operator"],
                "PUBLIC_BASE_URL": facts.public_base_url,
                "SHUTDOWN_GRACE_PERIOD_SECONDS": str(API_GRACE),
                # The console says whose browser asks; of this machine anybody may say so.
                "TRUSTED_PROXIES": HOST,
            }
        case "worker":
            own = {
                "SHUTDOWN_GRACE_PERIOD_SECONDS": str(WORKER_GRACE),
                "RECEIVE_WAIT_SECONDS": str(RECEIVE_WAIT),
            }
        case _:
            own = {}
    if process in facts.database_urls:
        own["DATABASE_URL"] = facts.database_urls[process]
    return {
        **base_environment(),
        **reaches,
        "HEALTH_LISTEN_HOST": HOST,
        "HEALTH_LISTEN_PORT": str(health_port),
        **own,
    }
