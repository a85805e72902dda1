"""The command line as it is called: `run()` in a thread, beside servers of the test."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pytest
from structlog.testing import capture_logs

from imagefleet.cli import queue, verbs
from imagefleet.cli.main import run
from imagefleet.cli.output import ExitCode
from imagefleet.jobs.lifecycle import Failed
from imagefleet.jobs.model import JobState
from imagefleet.store.database import Connection
from tests.cli.scripted import script
from tests.support.api import Running
from tests.support.emulators import CREDENTIALS
from tests.support.factories import MadeJob, a_job, settle_job
from tests.support.fixtures import applied, emulator, running, secrets, serve

__all__ = ["applied", "emulator", "running", "script", "secrets", "serve"]  # for those who ask


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str

    def json(self) -> Any:  # noqa: ANN401 - JSON
        return json.loads(self.out)


BUG: Final = Failed(code="internal_error", message="Something went wrong.", detail="KeyError")

Cli: TypeAlias = Callable[..., Awaitable[Ended]]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An API has what it starts with, and logs elsewhere: the standard output is the verb's."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS.secret)
    for name in ("IMAGEFLEET_URL", "IMAGEFLEET_KEY", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for module in (verbs, queue):
        monkeypatch.setattr(module, "POLL", 0.05)
    with capture_logs():
        yield


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Awaitable[Ended]]:
    """Call it with arguments; its environment is what the test sets."""
    monkeypatch.setenv("COLUMNS", "120")

    async def call(*arguments: str) -> Ended:
        capsys.readouterr()
        code = await asyncio.to_thread(run, list(arguments))
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    return call


@pytest.fixture
def terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], None]:
    """What is printed is seen at a terminal of so many columns, without colours."""
    del capsys  # its files are patched

    def of(columns: int) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("LINES", "50")  # without, a dumb terminal has 80 columns
        monkeypatch.setenv("TERM", "dumb")
        for file in (sys.stdout, sys.stderr):
            monkeypatch.setattr(file, "isatty", lambda: True)

    return of


@pytest.fixture
def operate(cli: Cli, running: Running, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in the hands of an operator."""
    monkeypatch.setenv("IMAGEFLEET_URL", running.url)
    monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets["operator"])
    return cli


@pytest.fixture
def produce(cli: Cli, running: Running, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in the hands of a producer."""
    monkeypatch.setenv("IMAGEFLEET_URL", running.url)
    monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets["acme"])
    return cli


def document(ended: Ended) -> Any:  # noqa: ANN401 - JSON
    assert ended.code in {ExitCode.DONE, ExitCode.FAILED}, ended.err
    return ended.json()


async def failed(worker: Connection, superuser: Connection, count: int) -> list[MadeJob]:
    made = []
    for _ in range(count):
        job = await a_job(worker, superuser, state=JobState.PROCESSING)
        await settle_job(worker, job, BUG)
        made.append(job)
    return made
