"""A stack, what it tells Prometheus, and how time goes by in its rows."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from imagefleet.store.database import Connection
from tests.runbooks import aws
from tests.runbooks.cluster import Cluster
from tests.runbooks.shell import Answer, Ended, Shell, a_shell
from tests.support.eventually import eventually
from tests.support.stack import Producer, Stack

SCRAPED_WITHIN: Final = 2.0  # seconds; who stands still does not answer
MAKE_KEY: Final = (
    "imagefleet keys create --tenant operations --name night --scope operate --scope read"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One series as it was scraped of one process."""

    process: str
    name: str
    labels: Mapping[str, str]
    value: float


class Look:
    """What all processes told at one moment."""

    def __init__(self, samples: list[Sample], silent: list[str]) -> None:
        self._samples = samples
        self.silent = silent
        """Processes that did not answer."""

    def of(self, name: str, **labels: str | tuple[str, ...]) -> list[Sample]:
        return [each for each in self._samples if each.name == name and _fits(each, labels)]

    def most(self, name: str, **labels: str | tuple[str, ...]) -> float:
        """The highest; nothing is below whatever anybody asks for."""
        return max((each.value for each in self.of(name, **labels)), default=float("-inf"))

    def sum(self, name: str, process: str = "", **labels: str | tuple[str, ...]) -> float:
        """Of everybody, or of one process."""
        found = self.of(name, **labels)
        return sum(each.value for each in found if process in {"", each.process})

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """The highest for each value of a label."""
        found: dict[str, float] = {}
        for each in self.of(name, **labels):
            key = each.process if label == "process" else each.labels[label]
            found[key] = max(found.get(key, float("-inf")), each.value)
        return found


def _fits(sample: Sample, labels: Mapping[str, str | tuple[str, ...]]) -> bool:
    return all(
        sample.labels.get(name) in (wanted if isinstance(wanted, tuple) else (wanted,))
        for name, wanted in labels.items()
    )


@dataclass(slots=True, kw_only=True)
class Fleet:
    """All that a situation needs to come about, and to be judged."""

    stack: Stack
    cluster: Cluster
    shell: Shell
    producer: Producer
    console: httpx.AsyncClient
    """Logged in, and asked as by a browser."""
    superuser: Connection
    owner: Connection
    marked: Look

    async def look(self) -> Look:
        """Scrape everybody now."""
        urls = self.cluster.metrics_urls()
        async with httpx.AsyncClient(timeout=SCRAPED_WITHIN) as http:
            told = await asyncio.gather(*(self._scraped(http, *each) for each in urls.items()))
        silent = [name for name, samples in zip(urls, told, strict=True) if samples is None]
        return Look([sample for samples in told for sample in samples or ()], silent)

    async def _scraped(self, http: httpx.AsyncClient, name: str, url: str) -> list[Sample] | None:
        try:
            answer = await http.get(url)
        except httpx.HTTPError:
            return None
        return [
            Sample(name, sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        ]

    async def mark(self) -> None:
        """From here on something is counted."""
        self.marked = await self.look()

    async def execute(self, statement: str, *values: object) -> None:
        """Write past triggers and rights: time goes by, or somebody does what nobody may."""
        async with self.superuser.transaction():
            await self.superuser.execute("SET LOCAL session_replication_role = replica")
            await self.superuser.execute(statement, *values)

    async def until(self, statement: str, *values: object, within: float = 20.0) -> Any:  # noqa: ANN401 - a column
        """Wait until a question is answered with something true."""
        return await eventually(lambda: self.owner.fetchval(statement, *values), within=within)

    async def imagefleet(self, line: str, code: int = 0) -> Ended:
        """What an operator did before all this, or puts right behind it."""
        ended = await self.shell.run(f"imagefleet {line}")
        assert ended.code == code, f"imagefleet {line}: {ended}"
        return ended


@asynccontextmanager
async def on_call(stack: Stack, folder: Path) -> AsyncIterator[Fleet]:
    """Somebody with a terminal, and with an operator's key of a tenant that has no jobs."""
    cluster = Cluster(stack)
    async with AsyncExitStack() as opened:
        enter = opened.enter_async_context

        async def ask_aws(arguments: Sequence[str]) -> Ended:
            return await aws.answer(stack.facts["aws"], arguments)

        opened.push_async_callback(cluster.end_others)
        answers: dict[str, Answer] = {"kubectl": cluster.answer, "aws": ask_aws}
        admin = {"DATABASE_URL": stack.facts["database_urls"]["admin"]}
        shell = await enter(a_shell(folder, admin, answers))
        made = await shell.run(MAKE_KEY)
        assert made.code == 0, made
        key = made.out.strip()
        variables = {"IMAGEFLEET_URL": stack.facts["api_url"], "IMAGEFLEET_KEY": key}
        shell = replace(shell, environment={**shell.environment, **variables})
        console = await enter(httpx.AsyncClient(base_url=stack.facts["console_url"], timeout=20))
        origin = {"Origin": stack.facts["console_url"]}
        login = await console.post("/login", data={"key": key}, headers=origin)
        assert login.status_code == 303, login.text
        fleet = Fleet(
            stack=stack,
            cluster=cluster,
            shell=shell,
            producer=await enter(stack.producer()),
            console=console,
            superuser=await enter(stack.database("superuser")),
            owner=await enter(stack.database()),
            marked=Look([], []),
        )
        await fleet.mark()
        yield fleet
