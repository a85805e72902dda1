"""Many requests without end, by a program of its own, so that whoever measures is not held up."""

import asyncio
import json
import secrets
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.stack import Producer, Stack

ASKED: Final = 100  # times, in a round
PACE: Final = 0.006  # seconds between them: who measures keeps below the limit of requests
ROUNDS: Final = 5  # at most; where it is clear after one, that is all
CLEARLY: Final = 1.5
DECOY: Final = "tests.hostile.decoy"

# What is asked for, and with which authorization.
FLOODS: Final[dict[str, Callable[[str], tuple[str, str]]]] = {
    "unknown keys": lambda _: ("/v1/jobs", f"Bearer if_{secrets.token_urlsafe(32)}"),
    "unknown addresses": lambda _: (f"/i/{uuid4()}/current/thumb.webp", ""),
    "unknown routes": lambda _: ("/v1/nothing", ""),
    "descriptions": lambda _: ("/v1/openapi.json", ""),
    "many parameters": lambda _: ("/v1/jobs?" + "a&" * 4000, ""),
    "long queries": lambda _: ("/v1/jobs?" + "a&" * 15_000, ""),
    "requests": lambda key: ("/v1/jobs/nonsense", f"Bearer {key}"),  # as cheap as they can be
}

CHUNKED: Final = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
# What comes first over each connection, and what comes after it until somebody ends that.
POURED: Final = {
    "trailers": (CHUNKED + b"0\r\n", b"x: y\r\n"),
    "one trailer": (CHUNKED + b"0\r\nx: ", b"y"),
    "trailers behind data": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"x-trailer: 0123456789\r\n"),
    "chunk extensions": (CHUNKED, b"1;extension=0123456789\r\n{\r\n"),
    "one chunk extension": (CHUNKED + b"1;a=", b"b"),
    "a chunk's size": (CHUNKED, b"0"),
    "headers": (b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n", b"x: y\r\n"),
    "one header": (b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nx: ", b"y"),
    "an address": (b"GET /", b"y"),
    "requests ahead": (b"", b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n"),
}
SILENCE: Final = "silence"
REST: Final = 0.2  # seconds: coming back at once costs the machine more than the API


@asynccontextmanager
async def attacking(module: str, *arguments: str, programs: int = 1) -> AsyncIterator[Counter[str]]:
    """Programs that say a line when they begin, and what they met when their input ends."""
    running = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(programs)
    ]
    met: Counter[str] = Counter()
    try:
        for program in running:
            assert program.stdout is not None
            async with asyncio.timeout(30):
                assert await program.stdout.readline() == b"attacking\n"
        yield met
    finally:
        try:
            for program in running:
                async with asyncio.timeout(30):
                    told, _ = await program.communicate(b"")
                met.update(json.loads(told))
        finally:
            for program in running:
                with suppress(ProcessLookupError):
                    program.kill()
                await program.wait()


def flooding(
    url: str, what: str, *, key: str = "", connections: int = 128
) -> AbstractAsyncContextManager[Counter[str]]:
    """A flood while this is open; then, how it was answered."""
    return attacking(__name__, url, what, key, str(connections))


def resident(stack: Stack) -> int:
    """Bytes of memory that the API's process has in use."""
    (pid,) = stack.pids("api").values()
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(pid)


async def times(asking: Producer, count: int = ASKED) -> list[float]:
    """What so many questions of somebody else took, in seconds."""
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        answer = await asking.http.get("/v1/jobs", params={"limit": 1})
        took.append(time.perf_counter() - begun)
        await asyncio.sleep(PACE)
        assert answer.status_code == 200, answer.text
    return took


@asynccontextmanager
async def decoy(rate: float) -> AsyncIterator[str]:
    """Where something else is to be attacked, which has so many answers a second."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", DECOY, str(rate)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert program.stdout is not None
        async with asyncio.timeout(30):
            port = int(await program.stdout.readline())
        yield f"http://127.0.0.1:{port}"
    finally:
        program.kill()
        await program.wait()


@asynccontextmanager
async def on_a_decoy(
    attack: Callable[[str], AbstractAsyncContextManager[Counter[str]]], rate: float
) -> AsyncIterator[Counter[str]]:
    async with decoy(rate) as url, attack(url) as met:
        yield met


@dataclass(slots=True)
class Compared:
    """What somebody else's questions took, in seconds."""

    beside: list[float] = field(default_factory=list)
    """While the same programs attacked something else, as fast."""
    attacked: list[float] = field(default_factory=list)

    @property
    def times(self) -> float:
        """How much longer their median was."""
        return statistics.median(self.attacked) / statistics.median(self.beside)

    @property
    def is_fair(self) -> bool:
        """Whether others hardly notice: their median is at most doubled."""
        return self.times <= 2

    def __str__(self) -> str:
        beside, attacked = (statistics.median(each) for each in (self.beside, self.attacked))
        return f"{beside * 1e3:.1f} ms, {attacked * 1e3:.1f} attacked: {self.times:.2f}"


async def compared(
    asking: Producer,
    what: str,
    attack: Callable[[str], AbstractAsyncContextManager[Counter[str]]],
    *,
    told: set[str],
) -> Compared:
    """What somebody else's questions take with this attack, and without it.

    Programs that attack burn a processor, and where they share a machine of two with all that is
    attacked, everybody is slower for that alone. So they go on attacking when it is quiet: a decoy,
    which answers as often as ours did. What is left is our own doing, and no floor is needed. The
    rounds alternate, and the medians are of all that was asked in all of them: whatever else the
    machine does meets both. The nearer it is to double, the more is asked.
    """
    url = str(asking.http.base_url)
    await times(asking)  # both are warm
    compared = Compared()
    for _ in range(ROUNDS):
        async with attack(url) as met:
            begun = time.perf_counter()
            compared.attacked += await times(asking)
            took = time.perf_counter() - begun
        assert set(met) <= told, met
        async with on_a_decoy(attack, met.total() / took) as instead:
            compared.beside += await times(asking)
        print(f"{what}: {compared}, {dict(met)}, beside {instead.total()}")  # noqa: T201 - figures
        if compared.times <= CLEARLY:
            break
    return compared


async def counted(stack: Stack, name: str, *, of: str = "api", **labels: str) -> float:
    """A series of a process, or of all that have these labels the sum."""
    async with httpx.AsyncClient(timeout=20) as http:
        page = (await http.get(stack.facts["metrics_urls"][of])).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def flood(url: str, what: str, key: str, connections: str) -> None:
    """One request after the other on each connection, until the standard input ends."""
    address = urlsplit(url)
    met: Counter[str] = Counter()

    async def pour(first: bytes, again: bytes) -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        over = asyncio.ensure_future(reader.read())  # noqa: TID251 - it ends with the connection
        over.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            writer.write(first)
            piece = again * (65_536 // len(again))
            while not over.done():
                writer.write(piece)
                await writer.drain()
        finally:
            writer.transport.abort()

    async def be_silent() -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            await reader.read()
        finally:
            writer.transport.abort()

    async def pour_for_ever() -> None:
        while True:
            with suppress(OSError):
                await (be_silent() if what == SILENCE else pour(*POURED[what]))
            met["lost"] += 1
            if what == SILENCE:
                await asyncio.sleep(REST)

    async def ask_for_ever() -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(address.hostname, address.port)
                while True:
                    path, authorization = FLOODS[what](key)
                    writer.write(
                        f"GET {path} HTTP/1.1\r\nHost: x\r\n"
                        f"Authorization: {authorization}\r\n\r\n".encode()
                    )
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                    await reader.readexactly(int(length))
                    met[head.split(b" ", 2)[1].decode()] += 1
            except (OSError, EOFError, ValueError):
                met["lost"] += 1

    async with asyncio.TaskGroup() as group:
        begin = ask_for_ever if what in FLOODS else pour_for_ever
        asking = [group.create_task(begin()) for _ in range(int(connections))]
        print("attacking", flush=True)  # noqa: T201 - to the test
        await asyncio.to_thread(sys.stdin.read)
        for one in asking:
            one.cancel()
    print(json.dumps(met))  # noqa: T201 - to the test


if __name__ == "__main__":
    asyncio.run(flood(*sys.argv[1:]))
