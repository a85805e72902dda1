"""Runs in the worker's own container: what its decoding children may do there, and what it may.

    python -m tests.containers.inside [PRELOAD]

What is preloaded weakens the children. Prints one line of JSON. Its environment has a secret, as a
worker's has. The children are the product's own, made by its renderer; what they try is what the
tests of the sandbox try (tests/worker/attacks.py). Beside them are servers that count who calls,
and a process like the worker that tries the same, to show that the attempts are good ones.
"""

import asyncio
import json
import os
import sys
import tempfile
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast

from imagefleet.jobs.model import JsonObject
from imagefleet.runtime import container_limit
from imagefleet.worker.isolation.client import Renderer
from imagefleet.worker.isolation.report import Allowance
from imagefleet.worker.isolation.sandbox import landlock_version
from tests.support.children import TASKS, children_of, sleep_for_ever, task
from tests.support.eventually import eventually
from tests.worker.attacks import (
    ATTACKS,
    SECRET,
    attack,
    besiege,
    burgle,
    call_everything,
    dump_memory,
    in_a_fork,
    met,
    open_files,
)

RIGHTS: Final = ("Uid", "Gid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Seccomp_filters")
OWN: Final = "/var/lib/imagefleet/planted"  # in a folder that belongs to this user
HOST: Final = "127.0.0.1"
# Where clouds give credentials away: to machines (by both versions of IP), to tasks, to pods.
METADATA: Final = ["169.254.169.254", "fd00:ec2::254", "169.254.170.2", "169.254.170.23"]
ALLOWANCE: Final = Allowance(deadline_seconds=60, file_bytes=1 << 30)


async def main(*preload: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        preloaded = (ATTACKS, TASKS, *preload)
        async with called(folder) as servers, Renderer(preload=preloaded) as renderer:
            told = await (weakly if preload else tried)(renderer, folder, servers)
    print(json.dumps(told))  # noqa: T201 - to the test


@asynccontextmanager
async def called(folder: Path) -> AsyncIterator[JsonObject]:
    """Servers of TCP and of a path; in `calls` is how often each was called."""
    calls = {"tcp": 0, "path": 0}

    def counting(kind: str) -> Callable[[StreamReader, StreamWriter], None]:
        def count(_reader: StreamReader, writer: StreamWriter) -> None:
            calls[kind] += 1
            writer.close()

        return count

    path = folder / "socket"
    tcp = await asyncio.start_server(counting("tcp"), HOST, 0)
    async with tcp, await asyncio.start_unix_server(counting("path"), path):
        yield {"port": tcp.sockets[0].getsockname()[1], "socket": str(path), "calls": calls}


async def weakly(renderer: Renderer, folder: Path, servers: JsonObject) -> JsonObject:
    """Of children that something was taken from, no more than is harmless to be got."""
    kept = folder / "kept"
    kept.touch()
    target: JsonObject = {**servers, "files": [str(kept)], "pids": [os.getpid()]}
    return {"besieged": await renderer.run_isolated(attack(besiege), target, {}, ALLOWANCE)}


async def tried(renderer: Renderer, folder: Path, servers: JsonObject) -> JsonObject:
    """What each met, and what there is to compare it with."""
    worker, zygote = os.getpid(), renderer.zygote_pid
    assert zygote is not None
    secret = os.environ[SECRET]  # noqa: TID251 - as a worker has it; also in its memory, like this
    kept = folder / "kept"
    kept.write_text(secret)
    target: JsonObject = {**servers, "files": [str(kept)], "pids": [worker, zygote]}
    marker = f"of {worker}, which is here"
    dump = folder / "dump"

    async def child(function: Callable[..., JsonObject], about: JsonObject, **files: int) -> object:
        return await renderer.run_isolated(attack(function), about, files, ALLOWANCE)

    told: JsonObject = {
        "besieged": await child(besiege, {**target, "hosts": METADATA}),
        "burgled": await child(burgle, {"worker": worker, "zygote": zygote, "folder": str(folder)}),
        "calls": await child(call_everything, {}),
        "belongings": await child(open_files, {}),
        "left": sorted(os.listdir(folder)),  # noqa: PTH208 - as short
        "kept": kept.read_text() == secret,
    }
    with dump.open("wb") as file:
        await child(dump_memory, {"marker": marker}, out=file.fileno())
    memory = dump.read_bytes()
    return {
        **told,
        "marker_in_memory": marker.encode() in memory,
        "secret_in_memory": secret.encode() in memory,
        "alike": in_a_fork({**target, "pids": [worker]}, lambda: None),
        "calls_of_servers": await counted(servers),
        "worker": rights(worker),
        "child": await of_a_child(renderer, zygote),
        "root": met(lambda: os.open(OWN, os.O_CREAT | os.O_WRONLY)),
        "limit": container_limit(),
        "landlock": landlock_version(),
    }


async def counted(servers: JsonObject) -> JsonObject:
    """How often each was called until now, and once more: calls are taken in their order."""
    tcp = await asyncio.open_connection(HOST, int(str(servers["port"])))
    path = await asyncio.open_unix_connection(str(servers["socket"]))
    for reader, writer in (tcp, path):
        assert await reader.read() == b""  # it hangs up when it has counted
        writer.close()
    return cast("JsonObject", servers["calls"])


def rights(pid: int) -> dict[str, list[str]]:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    return {name: fields[name].split() for name in RIGHTS}


async def of_a_child(renderer: Renderer, zygote: int) -> dict[str, list[str]]:
    """What the kernel says of one that has begun its task."""

    def confined() -> dict[str, list[str]] | None:
        told = [rights(child) for child in children_of(zygote)]
        return next((each for each in told if each != rights(zygote)), None)

    async with asyncio.TaskGroup() as group:
        sleeping = group.create_task(renderer.run_isolated(task(sleep_for_ever), {}, {}, ALLOWANCE))
        try:
            return await eventually(confined, within=20)
        finally:
            sleeping.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
