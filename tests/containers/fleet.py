"""A fleet of containers on servers of this machine."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import asyncpg
import httpx

from imagefleet.embedded.machine import HOST, chosen
from imagefleet.embedded.processes import Facts, environment_of
from imagefleet.store.database import Connection
from tests.containers.engine import PREFIX, Container, Engine
from tests.containers.ground import Ground
from tests.support.eventually import eventually
from tests.support.journal import Journal, Place, keep_events
from tests.support.stack import Producer

WORKER_GRACE: Final = 20  # seconds; `stop` gives some more than that
RESCUE_AFTER: Final = 5
# What the embedded stack passes on of this machine, and a container brings itself.
OWN: Final = ("PATH", "TMPDIR", "PYTHONUNBUFFERED", "LANG", "LC_ALL", "TZ")
SILENT: Final = {"LOG_FORMAT": "json", "AWS_CONFIG_FILE": os.devnull}


@dataclass(slots=True, kw_only=True)
class Fleet:
    """The containers, and what they stand on."""

    engine: Engine
    ground: Ground
    api_url: str
    console_url: str
    containers: dict[str, Container] = field(default_factory=dict)
    health_ports: dict[str, int] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)

    @property
    def facts(self) -> Facts:
        return self.ground.facts

    def start(self, name: str, port: int = 0) -> Container:
        """Start a process's container and give it its variables, nothing else."""
        process = name.partition("-")[0]
        self.health_ports[name] = chosen(0, what=name, option="")
        environment = self.environment(process, self.health_ports[name], port)
        container = self.engine.run(
            process, environment, name=f"{PREFIX}-test-{name}", reading=self.ground.authority
        )
        self.containers[name] = container
        return container

    def environment(self, process: str, health_port: int, port: int = 0) -> Mapping[str, str]:
        made = environment_of(
            process, self.facts, health_port=health_port, port=port, api_url=self.api_url
        )
        special = {"RESCUE_AFTER": str(RESCUE_AFTER)} if process == "maintenance" else {}
        given = self.ground.given.get(process, {})
        passed = {key: made[key] for key in made if key not in OWN}
        return {**passed, **SILENT, **special, **given}

    async def ready(self) -> None:
        async with httpx.AsyncClient(timeout=3) as http:
            for name, port in self.health_ports.items():

                async def is_ready(name: str = name, port: int = port) -> bool:
                    state = self.containers[name].state
                    assert state["Running"], self.containers[name].logs[-3000:]
                    try:
                        answer = await http.get(f"http://{HOST}:{port}/readyz")
                    except httpx.HTTPError:
                        return False
                    return answer.is_success

                await eventually(is_ready, within=60)

    @property
    def place(self) -> Place:
        topology = self.facts.topology
        return Place(
            owner_url=self.facts.database_urls["owner"],
            aws=self.facts.aws,
            queue_urls={key: url for key, url in topology.items() if key.endswith("_QUEUE_URL")},
            originals=topology["ORIGINALS_BUCKET"],
            outputs=topology["OUTPUTS_BUCKET"],
        )

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        headers = {"Authorization": f"Bearer {self.ground.key}"}
        async with httpx.AsyncClient(base_url=self.api_url, headers=headers, timeout=20) as client:
            yield Producer(client, self.journal)

    @asynccontextmanager
    async def database(self) -> AsyncIterator[Connection]:
        connection = await asyncpg.connect(self.facts.database_urls["owner"])
        try:
            yield Connection(connection)
        finally:
            await connection.close()


@asynccontextmanager
async def running_fleet(engine: Engine, ground: Ground) -> AsyncIterator[Fleet]:
    """One api, two workers, maintenance and the console, all from images."""
    api_port, console_port = (chosen(0, what=name, option="") for name in ("api", "console"))
    fleet = Fleet(
        engine=engine,
        ground=ground,
        api_url=f"http://{HOST}:{api_port}",
        console_url=f"http://{HOST}:{console_port}",
    )
    await keep_events(fleet.place)
    try:
        fleet.start("api", api_port)
        fleet.start("console", console_port)
        for name in ("worker-1", "worker-2", "maintenance"):
            fleet.start(name)
        await fleet.ready()
        yield fleet
    finally:
        await asyncio.to_thread(engine.remove_all)
