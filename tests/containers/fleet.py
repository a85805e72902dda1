"""A fleet of containers on an embedded Postgres and emulator of this machine."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncpg
import httpx

from imagefleet.embedded.machine import HOST, Ports, StateFolder, chosen
from imagefleet.embedded.processes import Facts, environment_of
from imagefleet.embedded.stack import Stack
from imagefleet.store.database import Connection
from tests.containers.engine import PREFIX, Container, Engine
from tests.support.eventually import eventually
from tests.support.journal import Journal, Place, keep_events
from tests.support.stack import Producer, stack_folder

WORKER_GRACE: Final = 20  # seconds; `stop` gives some more than that
RESCUE_AFTER: Final = 5
# What the embedded stack passes on of this machine, and a container brings itself.
OWN: Final = ("PATH", "TMPDIR", "PYTHONUNBUFFERED", "LANG", "LC_ALL", "TZ")
SILENT: Final = {"LOG_FORMAT": "json", "AWS_CONFIG_FILE": os.devnull}


@dataclass(slots=True, kw_only=True)
class Fleet:
    """The containers, and what they stand on."""

    engine: Engine
    facts: Facts
    api_url: str
    key: str
    containers: dict[str, Container] = field(default_factory=dict)
    health_ports: dict[str, int] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)

    def start(self, name: str, port: int = 0) -> Container:
        """Start a process's container and give it its variables, nothing else."""
        process = name.partition("-")[0]
        self.health_ports[name] = chosen(0, what=name, option="")
        environment = self.environment(process, self.health_ports[name], port)
        container = self.engine.run(process, environment, name=f"{PREFIX}-test-{name}")
        self.containers[name] = container
        return container

    def environment(self, process: str, health_port: int, port: int = 0) -> Mapping[str, str]:
        made = environment_of(process, self.facts, health_port=health_port, port=port)
        special = {"RESCUE_AFTER": str(RESCUE_AFTER)} if process == "maintenance" else {}
        return {key: made[key] for key in made if key not in OWN} | SILENT | special

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
        headers = {"Authorization": f"Bearer {self.key}"}
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
async def running_fleet(engine: Engine) -> AsyncIterator[Fleet]:
    """One api, two workers and maintenance, all from images."""
    with stack_folder() as folder:
        state = StateFolder(Path(folder) / "state")
        with state.held():
            stack = Stack(state, Ports(api=0, edge=0), _say)
            await stack.start()
            try:
                api_port = chosen(0, what="the API", option="")
                fleet = Fleet(
                    engine=engine,
                    facts=stack.facts,
                    api_url=f"http://{HOST}:{api_port}",
                    key=stack.keys["api-key"],
                )
                await keep_events(fleet.place)
                try:
                    fleet.start("api", api_port)
                    for name in ("worker-1", "worker-2", "maintenance"):
                        fleet.start(name)
                    await fleet.ready()
                    yield fleet
                finally:
                    await asyncio.to_thread(engine.remove_all)
            finally:
                await stack.stop()


def _say(_line: str) -> None:
    """What the servers say is of no interest here."""
