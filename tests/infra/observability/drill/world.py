"""A stack, a Prometheus that scrapes it by rules in a hurry, and what is done to both."""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from imagefleet.embedded.machine import free_port
from tests.infra.observability.asking import RULES
from tests.infra.observability.drill.cluster import Cluster, NotOrderedError
from tests.infra.observability.drill.dividing import divide_files
from tests.support.eventually import eventually
from tests.support.prometheus import Prometheus, scraping
from tests.support.stack import Producer, Settings, Stack, running_stack
from tests.support.wires import Gate, gate_before

SCRAPED_EVERY: Final = 0.5  # seconds: the shortest range of a rule holds several
COMMAND_WITHIN: Final = 120.0
READY_WITHIN: Final = 30.0
BREAKERS: Final = {"s3": {"open_seconds": 600}}
"""For longer than a drill: what closes one that is open is its reset, and no probe."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command came to."""

    code: int
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything by which a fault is brought in, seen and mended."""

    stack: Stack
    prometheus: Prometheus
    producer: Producer
    cluster: Cluster
    s3: Gate
    gates: Path
    divisor: float

    async def gives(self, words: Sequence[str]) -> Answer:
        """Give a command, as an operator would, and wait for its end."""
        if words[0] == "kubectl":
            try:
                return Answer(0, self.cluster.kubectl(words[1:]))
            except NotOrderedError as refused:
                return Answer(1, str(refused))
        program = Path(sys.executable).parent / words[0]
        if not program.exists():
            return Answer(127, f"no program {words[0]}")
        facts = self.stack.facts
        process = await asyncio.create_subprocess_exec(
            program,
            *words[1:],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={
                "PATH": os.defpath,
                "HOME": str(self.gates),
                "IMAGEFLEET_URL": facts["api_url"],
                "IMAGEFLEET_KEY": facts["operator_key"],
            },
        )
        try:
            async with asyncio.timeout(COMMAND_WITHIN):
                said, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            return Answer(-1, f"no end within {COMMAND_WITHIN:g} s")
        return Answer(process.returncode or 0, said.decode(errors="replace").strip())

    async def orders(self, line: str) -> None:
        """The same of what is part of a fault, and has to succeed."""
        answer = await self.gives(shlex.split(line))
        assert answer.code == 0, f"{line}: {answer.said}"

    async def undoes(self, *lines: str) -> None:
        """The same of what may have been undone already."""
        for line in lines:
            await self.gives(shlex.split(line))

    async def asks(self, query: str, *values: object) -> Any:  # noqa: ANN401 - whatever Postgres has
        async with self.stack.database("superuser") as superuser:
            return await superuser.fetchval(query, *values)

    async def comes_to(self, query: str, value: object, *, within: float) -> None:
        """Wait until Postgres answers so."""

        async def is_so() -> bool:
            answer = await self.asks(query)
            assert answer == value, f"{query}: {answer!r}, not {value!r}"
            return True

        await eventually(is_so, within=within)

    async def is_ready(self, process: str) -> None:
        """Wait until this process says so."""
        url = self.stack.facts["metrics_urls"][process].removesuffix("metrics") + "readyz"
        async with httpx.AsyncClient(timeout=2) as http:

            async def says_so() -> bool:
                try:
                    return (await http.get(url)).is_success
                except httpx.HTTPError:
                    return False

            await eventually(says_so, within=READY_WITHIN)


@asynccontextmanager
async def a_world(
    folder: Path, divisor: float, *, without: str | None = None
) -> AsyncIterator[World]:
    """All of it, in a folder that is there and empty; `without` one alert, to see it missed."""
    rules = divide_files(RULES, divisor, folder / "rules", without=without)
    gates = folder / "gates"
    gates.mkdir()
    aws_port = free_port()
    async with (
        gate_before("127.0.0.1", aws_port) as s3,
        running_stack(
            settings=_settings(s3), points=(), poison=True, gates=gates, aws_port=aws_port
        ) as stack,
        scraping(
            folder, stack.facts["metrics_urls"], rules=rules, every=f"{SCRAPED_EVERY * 1000:.0f}ms"
        ) as prometheus,
        stack.producer() as producer,
    ):
        yield World(
            stack=stack,
            prometheus=prometheus,
            producer=producer,
            cluster=Cluster(stack, gates),
            s3=s3,
            gates=gates,
            divisor=divisor,
        )


def _settings(s3: Gate) -> Settings:
    """A fleet as it is shipped, but that it looks a little more often and repeats sooner."""
    return {
        "all": {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{s3.port}",
            "BACKOFF_BASE_SECONDS": "1",
        },
        "worker": {"BREAKERS": json.dumps(BREAKERS)},
        "maintenance": {"SAMPLE_INTERVAL_SECONDS": "1"},
    }
