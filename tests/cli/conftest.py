"""The command line as it is called: `run()` in a thread, beside servers of the test."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pytest

from imagefleet.cli.main import run
from tests.support.api import Running
from tests.support.fixtures import applied, emulator, running, secrets, serve

__all__ = ["applied", "emulator", "running", "secrets", "serve"]  # an API, for those who ask


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str

    def json(self) -> object:
        return json.loads(self.out)


Cli: TypeAlias = Callable[..., Awaitable[Ended]]


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Awaitable[Ended]]:
    """Call it with arguments; its environment is what the test sets."""
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("IMAGEFLEET_URL", "IMAGEFLEET_KEY", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)

    async def call(*arguments: str) -> Ended:
        capsys.readouterr()
        code = await asyncio.to_thread(run, _list(arguments))
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    return call


@pytest.fixture
def operate(cli: Cli, running: Running, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in the hands of an operator."""
    monkeypatch.setenv("IMAGEFLEET_URL", running.url)
    monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets["operator"])
    return cli


def _list(arguments: Sequence[str]) -> list[str]:
    return list(arguments)
