"""Many large pictures at once into a worker in a small container: all of it real.

They come over HTTP, through an API, Postgres, SQS and S3. The worker is a process of its own in a
control group of its own, whose limit it finds by itself as it would in a container; its zygote and
all their children are in it, and so are the files that they wrote and that the kernel keeps. All
pictures have to be made, each by its first attempt, and the limit must never have been met: what
the kernel counted is told.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

import aiohttp

from tests.bench.ground import Ground, until_over
from tests.bench.processes import started, unlimited_key
from tests.support.eventually import eventually

MIB: Final = 2**20
CHILDREN: Final = 4
WITHIN: Final = 900.0  # seconds for all of them
V1: Final = Path("/sys/fs/cgroup/memory")
V2: Final = Path("/sys/fs/cgroup")
EMPTY_WITHIN: Final = 10.0  # seconds, once its last process was killed
ENDS: Final = """
SELECT jobs.state, count(*) AS jobs, sum(jobs.attempts)::int AS attempts,
       array_agg(DISTINCT jobs.failure_code) AS codes,
       (SELECT max(attempts.peak_bytes) FROM attempts) AS largest
  FROM jobs
 GROUP BY jobs.state
"""


class NoGroupError(Exception):
    """This machine lets nobody make a control group for memory; the message says why."""


@dataclass(frozen=True, slots=True)
class Group:
    """A control group, and the names of what is asked of it."""

    folder: Path
    limit: str
    peak: str
    met: str
    """How often somebody was at its limit."""

    @classmethod
    def named(cls, name: str) -> Self:
        """Below the one of this process; in the second version beside it, where it may have one."""
        told = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own = {line.split(":", 2)[1]: line.split(":", 2)[2].lstrip("/") for line in told}
        for controllers, path in own.items():
            if "memory" in controllers.split(","):
                files = ("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt")
                return cls(V1 / path / name, *files)
        beside = (V2 / own.get("", "")).parent if own.get("") else V2
        return cls(beside / name, "memory.max", "memory.peak", "memory.events")

    def told(self, file: str) -> int:
        """A number, or the one of `max` in a list of them."""
        words = (self.folder / file).read_text(encoding="utf-8").split()
        return int(words[0] if len(words) == 1 else words[words.index("max") + 1])

    def entering(self) -> list[str]:
        """A command that is begun in it, in front of its words."""
        procs = self.folder / "cgroup.procs"
        return ["sh", "-c", f'echo $$ > "{procs}" && exec "$@"', "sh"]


@asynccontextmanager
async def memory_group(limit_bytes: int) -> AsyncIterator[Group]:
    """One with this limit, until the end of the context; NoGroupError: there can be none."""
    group = Group.named(f"imagefleet-{uuid4()}")
    try:
        group.folder.mkdir()
    except OSError as error:
        raise NoGroupError(str(error)) from error
    try:
        try:
            (group.folder / group.limit).write_text(str(limit_bytes))
            assert group.told(group.limit) == limit_bytes
            group.told(group.peak)
        except OSError as error:
            raise NoGroupError(str(error)) from error
        yield group
    finally:
        await eventually(partial(_removed, group.folder), within=EMPTY_WITHIN)


def _removed(folder: Path) -> bool:
    """Not as long as anybody is in it: whoever was killed may be on his way out."""
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """How it went."""

    pictures: int
    states: Mapping[str, int]
    codes: Sequence[str]
    attempts: int
    budget_bytes: int
    """What the worker gave to its children, as it found by itself."""
    largest_bytes: int
    """Of one child."""
    limit_bytes: int
    peak_bytes: int
    met: int

    @property
    def well(self) -> bool:
        """Whether all were made at their first attempt, and the limit was never met."""
        made = (self.states, self.attempts) == ({"completed": self.pictures}, self.pictures)
        return made and self.met == 0 and self.peak_bytes <= self.limit_bytes

    def __str__(self) -> str:
        failed = f" ({', '.join(self.codes)})" if self.codes else ""
        return (
            f"{self.pictures} over HTTP into a worker in a control group of "
            f"{self.limit_bytes // MIB} MiB, {self.budget_bytes // MIB} of them for children: "
            f"{dict(self.states)}{failed} by {self.attempts} attempts; largest child "
            f"{self.largest_bytes // MIB} MiB, all together {self.peak_bytes // MIB} at most, "
            f"at the limit {self.met} times"
        )


async def crowd_of(ground: Ground, pictures: Sequence[Path], times: int, limit_bytes: int) -> Crowd:
    """Each of these pictures so often, all at once."""
    async with memory_group(limit_bytes) as group, AsyncExitStack() as stack:
        place = await stack.enter_async_context(ground.place())
        key = await unlimited_key(place.database)
        await stack.enter_async_context(started(place, "maintenance", ground.folder))
        api = await stack.enter_async_context(started(place, "api", ground.folder))
        await _sent(f"{api.url}/v1/images", key, [*pictures] * times)
        settings = {"RENDER_CHILDREN": str(CHILDREN)}
        worker = await stack.enter_async_context(
            started(place, "worker", ground.folder, settings, under=group.entering())
        )
        await until_over(place.database, within=WITHIN)
        lines = worker.log.read_text(encoding="utf-8").splitlines()
        async with place.database.connect("owner") as owner:
            rows = await owner.fetch(ENDS)
        return Crowd(
            pictures=len(pictures) * times,
            states=Counter({row["state"]: row["jobs"] for row in rows}),
            codes=[code for row in rows for code in row["codes"] if code],
            attempts=sum(row["attempts"] for row in rows),
            budget_bytes=next(_budgets(lines)),
            largest_bytes=max(row["largest"] or 0 for row in rows),
            limit_bytes=limit_bytes,
            peak_bytes=group.told(group.peak),
            met=group.told(group.met),
        )


def _budgets(lines: Sequence[str]) -> Iterator[int]:
    told = (json.loads(line) for line in lines)
    return (line["memory_bytes"] for line in told if line["event"] == "worker.started")


async def _sent(url: str, key: str, pictures: Sequence[Path]) -> None:
    """All of them, side by side."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http:

        async def upload(picture: Path) -> None:
            body = await asyncio.to_thread(picture.read_bytes)
            headers = {"Content-Type": "application/octet-stream"}
            async with http.post(url, data=body, headers=headers) as answer:
                assert answer.status == 202, await answer.text()

        async with asyncio.TaskGroup() as group:
            for picture in pictures:
                group.create_task(upload(picture))
