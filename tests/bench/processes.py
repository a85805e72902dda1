"""The product's own processes, as they are deployed: what they write goes to a file, as to a log.

Whoever reads their lines in this process takes a part of the two cores from what is measured.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from uuid import uuid4

import aiohttp

from imagefleet.embedded.machine import HOST, free_port
from imagefleet.jobs.model import TenantId
from imagefleet.store.fleet.keys import create_key
from tests.support.children import children_of
from tests.support.database import Database
from tests.support.fleet import Place, Process

READY_WITHIN: Final = 60.0  # seconds
LOOK_EVERY: Final = 0.002  # seconds, until one is ready
ASKED_AGAIN_AFTER: Final = 1.0
ENDS_WITHIN: Final = 40.0
TENANT: Final = TenantId("bench")
# What is measured is how much is taken, and not how much one tenant may send.
UNLIMITED: Final = """
INSERT INTO tenant_limits (tenant_id, name, value, set_by, reason)
VALUES ($1, $2, $3, 'bench', 'one tenant is all there is')
    ON CONFLICT DO NOTHING
"""
LIMITS: Final = {
    "requests": 1_000_000,
    "key_requests": 1_000_000,
    "bytes": 10 * 2**30,
    "key_bytes": 10 * 2**30,
    "uploads": 64,
    "key_uploads": 64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A process that is ready, and everything that it started."""

    child: asyncio.subprocess.Process
    log: Path
    url: str
    """Of the API and the console; of others nobody listens there."""
    ready_after: float
    """Seconds from its start."""

    def tree(self) -> list[int]:
        """It and its descendants."""
        return tree_of(self.child.pid)

    def pss_bytes(self) -> int:
        """Memory of them all, what they share counted once."""
        return sum(_kilobytes(f"/proc/{pid}/smaps_rollup", "Pss:") for pid in self.tree()) * 1024

    def peak_bytes(self) -> int:
        """The most that the process itself ever had."""
        return _kilobytes(f"/proc/{self.child.pid}/status", "VmHWM:") * 1024


def tree_of(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for each in found:
        found += children_of(each)
    return found


@asynccontextmanager
async def started(
    place: Place,
    process: Process | Literal["console"],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    under: Sequence[str] = (),
) -> AsyncIterator[Started]:
    """Run it until the end of the context, with the settings that ship.

    `under` is a command that is told to run it.
    """
    port, health = free_port(), free_port()
    own = {
        "LISTEN_HOST": HOST,
        "LISTEN_PORT": str(port),
        "PUBLIC_BASE_URL": f"http://{HOST}:{port}",
    }
    log = folder / f"{process}-{uuid4()}.log"
    begun = time.monotonic()
    with log.open("wb") as output:
        child = await asyncio.create_subprocess_exec(
            *(*under, sys.executable, "-m", "imagefleet", process),
            env={
                **place.environment(process),
                **(own if process in {"api", "console"} else {}),
                "HEALTH_LISTEN_PORT": str(health),
                "RECEIVE_WAIT_SECONDS": "20",
                **(environment or {}),
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        await _ready(child, f"http://{HOST}:{health}/readyz", log)
        seconds = time.monotonic() - begun
        url = f"http://{HOST}:{port}"
        yield Started(child=child, log=log, url=url, ready_after=seconds)
    finally:
        await ended(child)


async def _ready(child: asyncio.subprocess.Process, url: str, log: Path) -> None:
    async with asyncio.timeout(READY_WITHIN), aiohttp.ClientSession() as http:
        while True:
            assert child.returncode is None, _end_of(log)
            with suppress(aiohttp.ClientError):
                async with http.get(url) as answer:
                    if answer.ok:
                        return
            await asyncio.sleep(LOOK_EVERY)


async def ended(child: asyncio.subprocess.Process) -> None:
    """Ask once, and then again: a long poll on its way is not waited for."""
    for patience in (ASKED_AGAIN_AFTER, ENDS_WITHIN):
        if child.returncode is not None:
            return
        child.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await child.wait()
    if child.returncode is None:
        os.killpg(child.pid, signal.SIGKILL)
        await child.wait()


async def unlimited_key(database: Database, scopes: Sequence[str] = ("submit", "read")) -> str:
    """A key of a tenant that may send as much as it can."""
    async with database.connect("admin") as admin:
        key = await create_key(admin, TENANT, name="bench", scopes=scopes)
    async with database.connect("operator") as operator:
        for name, value in LIMITS.items():
            await operator.execute(UNLIMITED, TENANT, name, value)
    return key


def _kilobytes(path: str, name: str) -> int:
    with suppress(OSError):  # it ended meanwhile
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-3000:]
