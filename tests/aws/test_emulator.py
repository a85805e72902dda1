"""The embedded emulator as a process: it keeps its state, and it does not outlive its parent."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from imagefleet.aws.objects import Headers
from imagefleet.aws.queue import Message
from imagefleet.aws.session import open_session
from imagefleet.embedded.bootstrap import Endpoints, InPlace, apply
from imagefleet.embedded.emulator import EmbeddedAws, emulator_python, usable_cache
from imagefleet.errors import Misconfigured
from tests.support.aws import settings_for
from tests.support.emulators import CREDENTIALS, REGION
from tests.support.eventually import eventually

PARENT = """
import sys
from pathlib import Path
from imagefleet.embedded.emulator import EmbeddedAws
emulator = EmbeddedAws(Path(sys.argv[1]))
emulator.start()
print(emulator.pid, emulator.port, flush=True)
sys.stdin.read()
"""


async def applied_to(emulator: EmbeddedAws) -> InPlace:
    endpoints = Endpoints.all_at(emulator.url)
    return await apply(endpoints, region=REGION, credentials=CREDENTIALS)


async def use(emulator: EmbeddedAws, applied: InPlace) -> None:
    async with open_session(settings_for(emulator.url), credentials=CREDENTIALS) as session:
        queue = await session.queue(applied.queue_urls["fast"])
        await queue.send([Message(body="kept", group="a")])
        objects = await session.objects(applied.buckets["originals"])
        await objects.put("kept", b"pixels", Headers(content_type="image/png"))


async def kept(emulator: EmbeddedAws, applied: InPlace) -> tuple[list[str], list[str]]:
    async with open_session(settings_for(emulator.url), credentials=CREDENTIALS) as session:
        queue = await session.queue(applied.queue_urls["fast"])
        objects = await session.objects(applied.buckets["originals"])
        messages = await queue.receive(most=10, wait=timedelta())
        keys = [entry.key for entry in (await objects.page("")).objects]
    return [message.body for message in messages], keys


async def test_a_restart_goes_on_with_what_there_was(tmp_path: Path) -> None:
    with EmbeddedAws(tmp_path) as emulator:
        before, port = await applied_to(emulator), emulator.port
        await use(emulator, before)

    with EmbeddedAws(tmp_path) as emulator:
        after = await applied_to(emulator)

        assert (before, port) == (after, emulator.port)
        assert await kept(emulator, after) == (["kept"], ["kept"])


async def test_a_kill_costs_messages_but_no_objects(tmp_path: Path) -> None:
    """Messages are rung again from Postgres; originals could not be."""
    with EmbeddedAws(tmp_path) as emulator:
        await use(emulator, await applied_to(emulator))
        assert emulator.pid is not None
        os.kill(emulator.pid, signal.SIGKILL)

    with EmbeddedAws(tmp_path) as emulator:
        assert await kept(emulator, await applied_to(emulator)) == ([], ["kept"])


async def test_a_wiped_folder_is_an_empty_start(tmp_path: Path) -> None:
    with EmbeddedAws(tmp_path) as emulator:
        await use(emulator, await applied_to(emulator))
    shutil.rmtree(tmp_path / "aws")

    with EmbeddedAws(tmp_path) as emulator:
        assert await kept(emulator, await applied_to(emulator)) == ([], [])


def test_a_state_folder_has_one_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefleet.embedded.emulator.TAKE_WITHIN", 0.0)
    with EmbeddedAws(tmp_path):
        other = EmbeddedAws(tmp_path)

        with pytest.raises(Misconfigured, match="in use"):
            other.start()


async def test_it_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    pid, port = (await parent.stdout.readline()).split()
    parent.kill()
    await parent.wait()

    await eventually(lambda: not Path(f"/proc/{int(pid)}").exists(), within=15)

    with EmbeddedAws(tmp_path) as emulator:
        assert emulator.port == int(port)


def test_its_environment_is_made_once(tmp_path: Path) -> None:
    said: list[str] = []

    first = emulator_python(tmp_path / "cache", say=said.append)
    second = emulator_python(tmp_path / "cache", say=said.append)

    assert first == second
    assert len(said) == 1


def test_an_unfinished_environment_is_made_again(tmp_path: Path) -> None:
    said: list[str] = []
    python = emulator_python(tmp_path, say=said.append)
    (python.parents[1] / ".complete").unlink()

    assert emulator_python(tmp_path, say=said.append) == python
    assert len(said) == 2


def test_a_cache_that_cannot_be_used_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    assert usable_cache(tmp_path / "state") == tmp_path / "state"
