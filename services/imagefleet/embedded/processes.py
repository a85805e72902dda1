"""Which processes run, in which environment, and whether they are ready.

Each is given exactly what it reads, and nothing of ours but the settings that `up` was told to pass
on. Those are judged before anything starts, as the processes would judge them.
"""

import asyncio
import difflib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import httpx
from pydantic import BaseModel

from imagefleet.embedded.machine import HOST, PASSED_ON, base_environment, free_port
from imagefleet.embedded.supervisor import Keeper, Program
from imagefleet.errors import Misconfigured, Unavailable
from imagefleet.settings import (
    ApiSettings,
    Client,
    ConsoleSettings,
    MaintenanceSettings,
    WorkerSettings,
    load,
)
from imagefleet.settings.variables import names_of
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
SETTINGS: Final[Mapping[str, type[BaseModel]]] = {
    "console": ConsoleSettings,
    "api": ApiSettings,
    "worker": WorkerSettings,
    "maintenance": MaintenanceSettings,
}
_LISTENS: Final = "--api-port, --console-port and --edge-port choose where is listened"
_OWN_AWS: Final = "`up` makes it in an AWS emulator of its own"
_IN_ORDER: Final = "`up` ends its processes within times of its own"
# What `up` says itself, and why nobody else does.
DECIDED: Final[Mapping[str, str]] = {
    "DATABASE_URL": "`up` makes a Postgres of its own; --postgres-port chooses its port",
    "OPERATOR_DATABASE_URL": "`up` makes a Postgres of its own",
    **dict.fromkeys(
        (
            *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS"),
            *("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_CLOUDFRONT", "CLOUDFRONT_DISTRIBUTION_ID"),
            *("FAST_QUEUE_URL", "GENERAL_QUEUE_URL", "QUARANTINE_QUEUE_URL"),
            *("DEAD_LETTER_QUEUE_URL", "ORIGINALS_BUCKET", "OUTPUTS_BUCKET"),
        ),
        _OWN_AWS,
    ),
    **dict.fromkeys(("LISTEN_PORT", "PUBLIC_BASE_URL", "IMAGEFLEET_URL"), _LISTENS),
    "LISTEN_HOST": "`up` listens on this machine alone",
    "TRUSTED_PROXIES": "`up` has nobody but its own console between a browser and the API",
    "HEALTH_LISTEN_HOST": "`up` listens on this machine alone",
    "HEALTH_LISTEN_PORT": "each process has a free port of its own, which is printed",
    "LOG_FORMAT": "`up` reads the lines itself; --verbose shows them all",
    "SHUTDOWN_GRACE_PERIOD_SECONDS": _IN_ORDER,
    "RECEIVE_WAIT_SECONDS": _IN_ORDER,
}
# In the place of what is decided later and must be there, so that all else is judged before.
_PRETENDED: Final = {
    **{name: "http://localhost" for name, why in DECIDED.items() if why is _OWN_AWS},
    "PUBLIC_BASE_URL": "http://localhost",
    "DATABASE_URL": "postgresql://up@localhost/up",
}
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

    def __init__(
        self,
        *,
        workers: int,
        api_port: int,
        console_port: int,
        settings: Mapping[str, str] = {},
        log_format: str | None = None,
    ) -> None:
        """`settings` are for those that know them; without a `log_format` it is their own."""
        self._settings = settings
        self._log_format = {} if log_format is None else {"LOG_FORMAT": log_format}
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
        environment = environment_of(
            process,
            facts,
            health_port=self._health_ports[name],
            port=self._ports.get(process, 0),
            api_url=self.api_url,
        )
        known = names_of(SETTINGS[process])
        passed_on = {name: value for name, value in self._settings.items() if name in known}
        return Program(
            name=name,
            command=[sys.executable, "-m", "imagefleet", process],
            environment={**environment, **self._log_format, **passed_on},
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


def settings_of(told: Sequence[str]) -> dict[str, str]:
    """What is passed on, of `NAME=VALUE` each; Misconfigured says why something cannot be."""
    known = {name for process in SETTINGS.values() for name in names_of(process)}
    settings: dict[str, str] = {}
    for pair in told:
        name, equals, value = pair.partition("=")
        if not equals:
            detail = f"--set {name}: expected NAME=VALUE"
            raise Misconfigured(detail)
        if name.removesuffix("_FILE") in DECIDED:
            detail = f"--set {name}: {DECIDED[name.removesuffix('_FILE')]}"
            raise Misconfigured(detail)
        if name not in known:
            detail = f"--set {name}: {_unknown(name, known)}"
            raise Misconfigured(detail)
        settings[name] = value
    faults = dict.fromkeys(_faults(settings))
    if faults:
        raise Misconfigured("\n".join(f"--set {fault}" for fault in faults))
    return settings


def _unknown(name: str, known: set[str]) -> str:
    open_to_all = sorted(name for name in known - DECIDED.keys() if not name.endswith("_FILE"))
    near = difflib.get_close_matches(name.upper(), open_to_all, 1, cutoff=0.5)
    nearest = f"; the nearest is {near[0]}" if near else ""
    return f"no process has a setting of this name{nearest} (docs/settings.md has all)"


def _faults(settings: Mapping[str, str]) -> Iterator[str]:
    """What the processes would say, and only of what was told."""
    for process in SETTINGS.values():
        known = names_of(process)
        mine = {name: value for name, value in settings.items() if name in known}
        try:
            load(process, {**_PRETENDED, **mine})
        except Misconfigured as error:
            yield from (line.strip() for line in (error.detail or "").splitlines()[1:])


def not_passed_on(settings: Mapping[str, str]) -> str | None:
    """Of the settings in the environment around `up`, those that no process gets."""
    known = {name for process in SETTINGS.values() for name in names_of(process)}
    # The command line reads these itself.
    known -= {*names_of(Client), *PASSED_ON, *settings}
    given = sorted(name for name in known if os.environ.get(name))
    if not given:
        return None
    may_be = any(name not in DECIDED for name in given)
    advice = "; --set NAME=VALUE passes a setting on" if may_be else "; `up` has its own"
    return f"not passed on: {', '.join(given)}{advice}"
