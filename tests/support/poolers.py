"""PgBouncer in transaction mode before a test's server: Debian's, which is started as nobody.

TEST_PGBOUNCER names another one. Where there is none and none can be had, a test that asks for one
is skipped, which needs its row in tests/SKIPS.md.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, get_args
from urllib.parse import unquote, urlsplit, urlunsplit

import pytest

from imagefleet.embedded.machine import free_port
from tests.support.database import Database, Role
from tests.support.emulators import is_listening
from tests.support.eventually import eventually
from tests.support.packages import unpacked
from tests.support.wheels import ROOT

CACHE: Final = ROOT / ".bench" / "pgbouncer"
IN_PACKAGE: Final = Path("usr/sbin/pgbouncer")
LIBRARIES: Final = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
NONE_THERE: Final = "no PgBouncer is here and none could be fetched"
TOO_OLD: Final = "this PgBouncer is older than 1.21, which is the first to keep what is prepared"
PREPARES: Final = (1, 21)


@dataclass(frozen=True, slots=True)
class Pooler:
    """A running one."""

    port: int

    def url(self, database: Database, role: Role) -> str:
        return self.through(database.url(role))

    def through(self, url: str) -> str:
        """The same place by way of it."""
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{self.port}"))


@cache
def _program() -> tuple[Path, dict[str, str]] | None:
    named = os.environ.get("TEST_PGBOUNCER")  # noqa: TID251 - as from a terminal
    there = named or shutil.which("pgbouncer", path=f"{os.defpath}:/usr/sbin")
    if there:
        return Path(there), {}
    found = unpacked("pgbouncer", CACHE, IN_PACKAGE)
    libraries = ":".join(str(CACHE / each) for each in LIBRARIES)
    return (found, {"LD_LIBRARY_PATH": libraries}) if found else None


def version() -> tuple[int, int]:
    """Of the one that would be started; a test that needs a newer one is skipped."""
    program = _program()
    if program is None:
        pytest.skip(NONE_THERE)
    said = subprocess.check_output([program[0], "--version"], env=program[1], text=True)
    found = re.search(r"PgBouncer (\d+)\.(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


def pgbouncer(
    database: Database,
    *,
    pool_size: int,
    prepares: bool = False,
    more: Mapping[str, str] = MappingProxyType({}),
) -> AbstractAsyncContextManager[Pooler]:
    """Before a test's database, for every role."""
    urls = [database.url(role) for role in get_args(Role)]
    return pooling(urls, pool_size=pool_size, prepares=prepares, more=more)


@asynccontextmanager
async def pooling(
    urls: Collection[str],
    *,
    pool_size: int,
    prepares: bool = False,
    more: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Pooler]:
    """So many sessions for each login of one server; with `prepares` it keeps statements."""
    is_new = version() >= PREPARES
    if prepares and not is_new:
        pytest.skip(TOO_OLD)
    port = free_port()
    settings = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "scram-sha-256",
        "pool_mode": "transaction",
        "default_pool_size": str(pool_size),
        "max_client_conn": "200",
        **({"max_prepared_statements": "100" if prepares else "0"} if is_new else {}),
        **more,
    }
    with tempfile.TemporaryDirectory(prefix="imagefleet-pgbouncer-") as made:
        log = Path(made) / "log"
        process = _started(urls, settings, Path(made), log)
        try:
            await eventually(
                lambda: process.poll() is not None or is_listening(f"tcp://127.0.0.1:{port}"),
                within=10,
            )
            assert process.poll() is None, log.read_text()
            yield Pooler(port)
        finally:
            process.terminate()
            process.wait(10)


def _started(
    urls: Collection[str], settings: Mapping[str, str], folder: Path, log: Path
) -> subprocess.Popen[bytes]:
    logins = [urlsplit(url) for url in urls]
    server = logins[0]
    users, config = folder / "users", folder / "pgbouncer.ini"
    known = {each.username: unquote(each.password or "") for each in logins}
    users.write_text("".join(f'"{role}" "{word}"\n' for role, word in known.items()))
    lines = [f"{name} = {value}" for name, value in {**settings, "auth_file": users}.items()]
    where = f"* = host={server.hostname} port={server.port}"
    config.write_text("\n".join(["[databases]", where, "[pgbouncer]", *lines, ""]))
    is_root = os.geteuid() == 0  # which it refuses to be
    if is_root:
        folder.chmod(0o755)
    program, environment = _program() or (Path(), {})
    with log.open("wb") as said:
        return subprocess.Popen(
            [program, config],
            env=environment,
            stdout=said,
            stderr=said,
            user="nobody" if is_root else None,
        )
