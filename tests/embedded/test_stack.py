"""What the processes stand on: made once, kept, and made again where it is lost."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from imagefleet.aws.objects import Headers
from imagefleet.aws.session import open_session
from imagefleet.embedded.machine import HOST, Ports, StateFolder, chosen, free_port, write_private
from imagefleet.embedded.processes import environment_of
from imagefleet.embedded.stack import Stack
from imagefleet.errors import Misconfigured
from imagefleet.runtime import Drain, supervise
from imagefleet.settings import (
    ApiSettings,
    ConsoleSettings,
    MaintenanceSettings,
    WorkerSettings,
    load,
)
from imagefleet.store.database import connect
from imagefleet.store.fleet.keys import find_key
from imagefleet.store.schema.roles import ROLES
from tests.support.aws import settings_for
from tests.support.database import roomy_memory
from tests.support.emulators import CREDENTIALS
from tests.support.eventually import eventually

PATIENCE = 20  # seconds


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every account reaches, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="imagefleet-up-", dir=roomy_memory()) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@asynccontextmanager
async def started(state: StateFolder) -> AsyncIterator[Stack]:
    stack = Stack(state, Ports(edge=chosen(0, what="", option="")), lambda _: None)
    try:
        await stack.start()
        yield stack
    finally:
        await stack.stop()


async def scopes_of(stack: Stack, key: str) -> tuple[str, ...] | None:
    async with connect(stack.facts.database_urls["operator"], process="test") as connection:
        holder = await find_key(connection, stack.keys[key])
    return holder.scopes if holder else None


async def made_by(stack: Stack) -> list[tuple[str, str]]:
    async with connect(stack.facts.database_urls["operator"], process="test") as connection:
        rows = await connection.fetch("SELECT kind, actor FROM audit ORDER BY id")
    return [(row["kind"], row["actor"]) for row in rows]


async def put(stack: Stack, bucket: str, key: str, content: bytes) -> None:
    settings = settings_for(stack.facts.aws["AWS_ENDPOINT_URL"])
    async with open_session(settings, credentials=CREDENTIALS) as session:
        await (await session.objects(bucket)).put(key, content, Headers(content_type="image/webp"))


# The folder.


def test_a_folder_belongs_to_one_at_a_time(place: Path) -> None:
    state = StateFolder(place / "state")

    with state.held(), pytest.raises(Misconfigured) as refused, StateFolder(state.path).held():
        pass

    assert f"process {os.getpid()}" in str(refused.value)
    assert "--state-dir" in str(refused.value)


def test_secrets_are_read_by_their_owner_alone(place: Path) -> None:
    state = StateFolder(place / "state")

    with state.held():
        passwords = state.role_passwords(ROLES)
        state.keep_key("api-key", "if_secret")

    assert set(ROLES) == set(passwords)
    assert len(set(passwords.values())) == len(ROLES)
    for name in ("passwords.json", "api-key", "lock"):
        assert 0o600 == stat.S_IMODE((state.path / name).stat().st_mode)


def test_passwords_stay_the_same_and_new_roles_get_one(place: Path) -> None:
    state = StateFolder(place / "state")

    with state.held():
        before = state.role_passwords(["a"])
        after = state.role_passwords(["a", "b"])

    assert after["a"] == before["a"]
    assert json.loads((state.path / "passwords.json").read_text()) == after


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(place: Path) -> None:
    write_private(place / "file", "one")
    write_private(place / "file", "two")

    assert (place / "file").read_text() == "two"
    assert [entry.name for entry in place.iterdir()] == ["file"]


# Ports.


def test_a_port_that_is_taken_is_refused_with_the_way_out() -> None:
    port = chosen(0, what="", option="")
    with held(port), pytest.raises(Misconfigured) as refused:
        chosen(port, what="the API", option="--api-port")

    assert f"port {port}" in str(refused.value)
    assert "--api-port 0" in str(refused.value)


@contextmanager
def held(port: int) -> Iterator[None]:
    with socket.create_server((HOST, port)):
        yield


# Both servers, for real.


async def test_a_stack_is_complete_and_goes_on_where_it_was(place: Path) -> None:
    state = StateFolder(place)
    with state.held():
        async with started(state) as stack:
            first = (dict(stack.keys), stack.facts.topology, stack.facts.aws)
            assert await scopes_of(stack, "api-key") == ("submit", "read")
            scopes = ("submit", "read", "operate", "originals")
            assert await scopes_of(stack, "operator-key") == scopes
            assert [("tenant", "up"), ("key", "up"), ("key", "up")] == await made_by(stack)

        async with started(state) as stack:
            assert 3 == len(await made_by(stack))
            assert first == (dict(stack.keys), stack.facts.topology, stack.facts.aws)
            assert await scopes_of(stack, "api-key") == ("submit", "read")


async def test_every_process_finds_what_it_needs_and_nothing_else(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateFolder(place)
    with state.held():
        async with started(state) as stack:
            facts = stack.facts
    monkeypatch.setenv("AWS_PROFILE", "somebody's")
    monkeypatch.setenv("RECIPES_FILE", "ours.toml")
    monkeypatch.setenv("DATABASE_URL", "postgresql://somebody@elsewhere/else")

    read: dict[str, Callable[[Mapping[str, str]], object]] = {
        "api": partial(load, ApiSettings),
        "worker": partial(load, WorkerSettings),
        "maintenance": partial(load, MaintenanceSettings),
    }
    for name, settings in read.items():
        given = environment_of(name, facts, health_port=1234, port=4321)
        settings(given)  # complains about whatever is missing
        assert facts.database_urls[name] == given["DATABASE_URL"]
        assert "AWS_PROFILE" not in given
        assert "ours.toml" == given["RECIPES_FILE"]
        others = [url for role, url in facts.database_urls.items() if role != name]
        shared = [value for value in given.values() if value in others]
        assert shared == ([facts.database_urls["operator"]] if name == "api" else [])

    api = "http://127.0.0.1:4321"
    given = environment_of("console", facts, health_port=1234, port=4322, api_url=api)
    assert api == load(ConsoleSettings, given).console.api_url
    assert {*given.values()}.isdisjoint({*facts.database_urls.values(), *facts.topology.values()})
    assert not [name for name in given if name.startswith("AWS_ENDPOINT")]


async def test_a_wiped_emulator_and_a_wiped_database_are_made_again(place: Path) -> None:
    state = StateFolder(place)
    with state.held():
        async with started(state) as stack:
            keys = dict(stack.keys)
        shutil.rmtree(place / "aws")
        async with started(state) as stack:
            assert keys == stack.keys
        shutil.rmtree(place / "postgres")
        async with started(state) as stack:
            assert keys != stack.keys
            assert await scopes_of(stack, "api-key") == ("submit", "read")


async def test_a_server_that_dies_is_started_again_where_it_was(place: Path) -> None:
    state, told = StateFolder(place), list[int]()
    drain = Drain()
    with state.held():
        async with started(state) as stack:
            before, facts = stack.pids, stack.facts
            async with supervise(drain) as parts:
                parts.start("watch", stack.watch(drain, lambda: told.append(1)))
                for pid in before.values():
                    os.kill(pid, signal.SIGKILL)
                await eventually(lambda: len(told) == 2, within=PATIENCE)
                drain.request("test")
            after = stack.pids

            assert set(before) == set(after)
            assert not set(before.values()) & set(after.values())
            assert facts.database_urls == stack.facts.database_urls
            assert facts.aws == stack.facts.aws
            assert stack.restarts == 2


def test_a_free_port_is_none_that_whoever_connects_may_get_before_it_is_used() -> None:
    lowest, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())

    assert all(1024 <= free_port() < lowest for _ in range(20))


def test_a_port_that_one_process_was_given_is_given_to_no_other() -> None:
    """Between the choice and whoever listens at last there are seconds, and other stacks start."""
    given = free_port()
    asked = (
        "from imagefleet.embedded import machine; "
        f"machine.NOT_GIVEN = ({given}, {given + 1}, {given + 2}); print(machine.free_port())"
    )

    others = {int(subprocess.check_output([sys.executable, "-c", asked])) for _ in range(8)}

    assert others <= {given + 1, given + 2}
