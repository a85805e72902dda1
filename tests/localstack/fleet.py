"""The topology of docs/localstack.md as processes of this machine."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx
from prometheus_client.parser import text_string_to_metric_families

from imagefleet.embedded.machine import HOST, base_environment, free_port
from imagefleet.embedded.postgres import EmbeddedPostgres
from imagefleet.embedded.processes import Facts, environment_of
from imagefleet.embedded.supervisor import Watchdog
from imagefleet.jobs.model import TenantId
from imagefleet.store.database import connect
from imagefleet.store.fleet.keys import create_key
from imagefleet.store.schema.migrations import migrate
from imagefleet.store.schema.roles import ROLES, ensure_database, ensure_roles
from tests.localstack.server import running_localstack
from tests.support.emulators import REGION, running_moto
from tests.support.eventually import eventually
from tests.support.journal import Client, Journal, Place, keep_events
from tests.support.stack import Producer, stack_folder

DATABASE: Final = "imagefleet"
KEY_OF_AWS: Final = "test"  # LocalStack and moto take any
PREPARED_WITHIN: Final = 120.0  # seconds
WORKERS: Final = ("worker-1", "worker-2")
BACKOFF_BASE: Final = 2.0  # seconds; nobody has to wait for half a minute here
SETTINGS: Final = {
    "LOG_FORMAT": "json",
    "LOG_LEVEL": "warning",
    "BACKOFF_BASE_SECONDS": str(BACKOFF_BASE),
}
SPECIAL: Final[Mapping[str, Mapping[str, str]]] = {
    # Full receives, as for jobs that are small: with fewer slots a job costs more requests.
    "worker": {"WORKER_FAST_SLOTS": "10", "WORKER_GENERAL_SLOTS": "10"},
    "maintenance": {"RESCUE_AFTER": "5"},
}
ENDS_WITHIN: Final = 40.0  # seconds; a worker's own grace is half of it
# What is measured is how much is accepted, and not how much one tenant may send.
UNLIMITED: Final = """
INSERT INTO tenant_limits (tenant_id, name, value, set_by, reason)
VALUES ('demo', $1, 1000000, 'tests', 'one tenant is all there is')
"""
KEYS: Final = {"producer": ("submit", "read"), "operator": ("submit", "read", "operate")}


@dataclass(slots=True, kw_only=True)
class Fleet:
    """The processes, and what they stand on."""

    folder: Path
    facts: Facts
    api_port: int
    edge_port: int
    keys: dict[str, str]
    watchdog: Watchdog
    journal: Journal = field(default_factory=Journal)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    health_ports: dict[str, int] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start a process with its variables, and nothing else of this one's."""
        process = name.partition("-")[0]
        if process == "edge":
            listen, api = f"{HOST}:{self.edge_port}", f"http://{HOST}:{self.api_port}"
            words = ["imagefleet.embedded.edge", "--listen", listen, "--api-url", api]
            made = {**base_environment(), **self.facts.aws, **self.facts.topology}
        else:
            words = ["imagefleet", process]
            health = self.health_ports.setdefault(name, free_port())
            made = environment_of(process, self.facts, health_port=health, port=self.api_port)
        with self.log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**made, **SETTINGS, **SPECIAL.get(process, {})},
                start_new_session=True,
            )
        self.watchdog.watch(self.running[name].pid)

    async def stop(self, name: str) -> float:
        """SIGTERM; the seconds until it had ended, in order."""
        begun = time.monotonic()
        process = self.running[name]
        process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(process.wait, ENDS_WITHIN)
        del self.running[name]
        assert code == 0, f"{name} ended with {code}"
        return time.monotonic() - begun

    def kill(self, name: str) -> None:
        """SIGKILL to the one process."""
        process = self.running.pop(name)
        process.kill()
        process.wait(ENDS_WITHIN)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    async def ready(self) -> None:
        looks = {
            name: f"http://{HOST}:{self.health_ports[name]}/readyz"
            for name in self.running
            if name in self.health_ports
        }
        async with httpx.AsyncClient(timeout=3) as http:
            for name, look in looks.items():

                async def is_ready(name: str = name, look: str = look) -> bool:
                    code = self.running[name].poll()
                    if code is not None:
                        message = f"{name} ended with {code}"
                        raise RuntimeError(message)
                    try:
                        return (await http.get(look)).is_success
                    except httpx.HTTPError:
                        return False

                await eventually(is_ready, within=60)

    async def sqs_requests(self) -> Counter[str]:
        """How many HTTP requests the running processes have made to SQS, by operation."""
        requests: Counter[str] = Counter()
        async with httpx.AsyncClient(timeout=5) as http:
            for name in self.running.keys() & self.health_ports.keys():
                answer = await http.get(f"http://{HOST}:{self.health_ports[name]}/metrics")
                for family in text_string_to_metric_families(answer.text):
                    for sample in family.samples:
                        if sample.name == "sqs_requests_total":
                            requests[sample.labels["operation"]] += int(sample.value)
        return requests

    @property
    def place(self) -> Place:
        topology = self.facts.topology
        return Place(
            owner_url=self.facts.database_urls["owner"],
            aws=self.facts.aws,
            queue_urls={
                key.removesuffix("_QUEUE_URL").lower().replace("_", "-"): url
                for key, url in topology.items()
                if key.endswith("_QUEUE_URL")
            },
            originals=topology["ORIGINALS_BUCKET"],
            outputs=topology["OUTPUTS_BUCKET"],
        )

    def client(self, service: str) -> Client:
        aws = self.place.aws
        if service == "cloudfront":
            aws = {**aws, "AWS_ENDPOINT_URL": aws["AWS_ENDPOINT_URL_CLOUDFRONT"]}
        return replace(self.place, aws=aws).client(service)

    @asynccontextmanager
    async def producer(self, key: str = "producer") -> AsyncIterator[Producer]:
        headers = {"Authorization": f"Bearer {self.keys[key]}"}
        url = f"http://{HOST}:{self.api_port}"
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
            yield Producer(client, self.journal)

    @asynccontextmanager
    async def viewer(self) -> AsyncIterator[httpx.AsyncClient]:
        """Anybody with a browser; the published host is the edge of this machine, as by DNS."""
        edge = f"http://{HOST}:{self.edge_port}"

        class Resolved(httpx.AsyncHTTPTransport):
            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                request.url = httpx.URL(edge).join(request.url.raw_path.decode())
                return await super().handle_async_request(request)

        published = {self.facts.public_base_url: Resolved()}
        async with httpx.AsyncClient(timeout=20, mounts=published) as client:
            yield client

    async def ask(self, statement: str, *arguments: object) -> Any:  # noqa: ANN401 - any column
        """One value of the database."""
        connection = await asyncpg.connect(self.facts.database_urls["owner"])
        try:
            return await connection.fetchval(statement, *arguments)
        finally:
            await connection.close()

    async def nothing_open(self, *, within: float) -> None:
        async def is_settled() -> bool:
            left = await self.ask("SELECT count(*) FROM jobs WHERE finished_at IS NULL")
            assert left == 0, f"{left} jobs are open"
            return True

        await eventually(is_settled, within=within)


@asynccontextmanager
async def running_fleet() -> AsyncIterator[Fleet]:
    """What compose.localstack.yml starts: LocalStack, moto, Postgres, and all our processes."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(stack_folder())
        postgres = EmbeddedPostgres(folder / "state")
        await asyncio.to_thread(postgres.start)
        stack.callback(postgres.stop)
        localstack = stack.enter_context(running_localstack(folder / "localstack"))
        cloudfront = stack.enter_context(running_moto())
        aws = {
            "AWS_ENDPOINT_URL": localstack,
            "AWS_ENDPOINT_URL_CLOUDFRONT": cloudfront,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": KEY_OF_AWS,
            "AWS_SECRET_ACCESS_KEY": KEY_OF_AWS,
        }
        topology = await asyncio.to_thread(_bootstrapped, aws)
        urls, keys = await prepared(postgres)
        edge_port = free_port()
        facts = Facts(
            database_urls=urls,
            aws=aws,
            topology=topology,
            public_base_url=f"http://{HOST}:{edge_port}",
        )
        yield await stack.enter_async_context(processes_on(folder, facts, keys, edge_port))


@asynccontextmanager
async def processes_on(
    folder: Path, facts: Facts, keys: dict[str, str], edge_port: int
) -> AsyncIterator[Fleet]:
    """All our processes, ready, on servers that are there."""
    fleet = Fleet(
        folder=folder,
        facts=facts,
        api_port=free_port(),
        edge_port=edge_port,
        keys=keys,
        watchdog=Watchdog(),
    )
    try:
        await keep_events(fleet.place)
        for name in ("api", *WORKERS, "maintenance", "edge"):
            fleet.start(name)
        await fleet.ready()
        yield fleet
    finally:
        _end(fleet)
        fleet.watchdog.close()


def _bootstrapped(aws: Mapping[str, str]) -> dict[str, str]:
    """Queues, buckets and the distribution, by the program that compose runs."""
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "imagefleet.embedded.localstack"),
            *("--cloudfront-endpoint", aws["AWS_ENDPOINT_URL_CLOUDFRONT"], "--region", REGION),
        ],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PREPARED_WITHIN,
        env={
            **base_environment(),
            "LOCALSTACK_HOST": aws["AWS_ENDPOINT_URL"].removeprefix("http://"),
        },
    )
    assert ran.returncode == 0, ran.stdout
    return dict(line.split("=", 1) for line in ran.stdout.splitlines())


async def prepared(postgres: EmbeddedPostgres) -> tuple[dict[str, str], dict[str, str]]:
    """A schema, its roles and API keys; the addresses by role, and the keys."""
    passwords = {role: f"of-{role}" for role in ROLES}
    async with connect(postgres.url(), process="up") as admin:
        await ensure_roles(admin, passwords)
        await ensure_database(admin, DATABASE)
    urls = {
        role.removeprefix("imagefleet_"): postgres.url(role, password, DATABASE)
        for role, password in passwords.items()
    }
    await migrate(urls["owner"])
    async with connect(urls["admin"], process="up") as admin:
        keys = {
            name: await create_key(admin, TenantId("demo"), name=name, scopes=scopes)
            for name, scopes in KEYS.items()
        }
    async with connect(urls["operator"], process="up") as operator:
        for name in ("requests", "key_requests"):
            await operator.execute(UNLIMITED, name)
    return urls, keys


def _end(fleet: Fleet) -> None:
    """In order where they can; nothing is left running."""
    for process in fleet.running.values():
        process.terminate()
    for process in fleet.running.values():
        try:
            process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with what it started
            process.wait(ENDS_WITHIN)


def logs_of(fleet: Fleet) -> str:
    """The last words of all, for who looks at a failure."""
    logs = sorted([*fleet.folder.glob("*.log"), fleet.folder / "localstack" / "log"])
    return "\n".join(f"--- {log.stem}\n{log.read_text(errors='replace')[-2000:]}" for log in logs)
