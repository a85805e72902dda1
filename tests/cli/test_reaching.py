"""Which API a verb asks, and with which key: what was named, or what runs in this folder."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.client import api
from tests.cli.conftest import Cli, document
from tests.support.api import Running

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def folder(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that somebody stands in, where an `up` is ready."""
    monkeypatch.chdir(tmp_path)
    tell(tmp_path / ".imagefleet", running, "operator")
    return tmp_path


def tell(state: Path, running: Running, key: str) -> Path:
    state.mkdir()
    ready = state / "ready.json"
    ready.touch(mode=0o600)
    told = {"api_url": running.url, "operator_key": running.secrets[key]}
    ready.write_text(json.dumps(told))
    return ready


@pytest.mark.usefixtures("folder")
async def test_the_stack_of_this_folder_is_asked_where_nothing_is_named(cli: Cli) -> None:
    assert [] == document(await cli("queue", "pauses", "--json"))["pauses"]


@pytest.mark.parametrize("name", ["IMAGEFLEET_URL", "IMAGEFLEET_KEY"])
@pytest.mark.usefixtures("folder")
async def test_what_the_environment_names_is_never_completed_from_a_folder(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A key would go to somebody else's address."""
    monkeypatch.setenv(name, NOBODY)
    monkeypatch.setattr(api, "FIRST_PAUSE", 0.001)

    ended = await cli("queue", "pauses")

    assert ended.code != ExitCode.DONE
    assert "ready.json" not in ended.err


@pytest.mark.usefixtures("folder")
async def test_the_environment_goes_before_the_folder(
    cli: Cli, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGEFLEET_URL", running.url)
    monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets["revoked"])

    ended = await cli("queue", "pauses")

    assert ExitCode.REFUSED == ended.code
    assert f"asked was {running.url}, with the key of IMAGEFLEET_KEY" in ended.err


async def test_a_named_folder_goes_before_the_environment(
    cli: Cli, running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGEFLEET_URL", NOBODY)
    monkeypatch.setenv("IMAGEFLEET_KEY", "if_other")
    tell(tmp_path / "state", running, "operator")

    ended = await cli("--state-dir", str(tmp_path / "state"), "queue", "pauses", "--json")

    assert [] == document(ended)["pauses"]


async def test_an_error_says_which_was_asked(cli: Cli, running: Running, tmp_path: Path) -> None:
    ready = tell(tmp_path / "state", running, "revoked")

    for verb in (("queue", "pauses"), ("images", "reprocess", "0199a5c2-0000-7000-8000-000000000")):
        ended = await cli("--state-dir", str(tmp_path / "state"), *verb)

        assert ExitCode.REFUSED == ended.code
        assert f"asked was {running.url}, with the key of {ready}" in ended.err


async def test_a_named_folder_without_a_stack_is_told(cli: Cli, tmp_path: Path) -> None:
    ended = await cli("--state-dir", str(tmp_path), "jobs", "list")

    assert ExitCode.USAGE == ended.code
    assert f"no `imagefleet up` is ready in {tmp_path}" in ended.err


@pytest.mark.parametrize("written", ["{", "[]", "{}"])
async def test_what_no_stack_has_written_is_not_used(cli: Cli, folder: Path, written: str) -> None:
    (folder / ".imagefleet" / "ready.json").write_text(written)

    ended = await cli("jobs", "list")

    assert ExitCode.USAGE == ended.code
    assert "ready.json cannot be used" in ended.err


async def test_what_others_may_have_written_is_not_used(cli: Cli, folder: Path) -> None:
    """A checkout of somebody else's must not say where images go."""
    (folder / ".imagefleet" / "ready.json").chmod(0o644)

    ended = await cli("queue", "pauses")

    assert ExitCode.USAGE == ended.code
    assert "it is not yours alone" in ended.err


async def test_a_stack_that_was_killed_is_told_to_be_gone(cli: Cli, folder: Path) -> None:
    """It could not take back what it wrote, and somebody else may listen there by now."""
    ended_long_ago = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended_long_ago.wait()
    lock = folder / ".imagefleet" / "lock"
    lock.write_text(str(os.getpid()))
    assert ExitCode.DONE == (await cli("queue", "pauses")).code

    lock.write_text(str(ended_long_ago.pid))
    ended = await cli("queue", "pauses")

    assert ExitCode.USAGE == ended.code
    assert "the `imagefleet up` that was ready in .imagefleet is gone: start it again" in ended.err


async def test_where_nothing_says_where_the_api_is_all_that_could_is_told(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    ended = await cli("jobs", "list")

    assert ExitCode.USAGE == ended.code
    for way in ("IMAGEFLEET_URL and IMAGEFLEET_KEY", "imagefleet up", ".imagefleet", "--state-dir"):
        assert way in ended.err
