"""No way to memory leads past what a child may have, as seen from outside."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from imagefleet.errors import InputRejected, Misconfigured
from imagefleet.jobs.model import JsonObject
from imagefleet.worker.isolation import report
from imagefleet.worker.isolation.child import NEEDS_MEMORY
from imagefleet.worker.isolation.client import Renderer
from imagefleet.worker.isolation.report import (
    Allowance,
    ChildCrashed,
    Ending,
    Killed,
)
from imagefleet.worker.isolation.zygote import BESIDE_DATA, Forked, _see_others
from tests.support import children as tasks
from tests.support.children import TASKS, children_of, task
from tests.worker import hoards
from tests.worker.hoards import HOARDS, MIB, hoard

BUDGET = 128 * MIB
MARGIN = 32 * MIB  # over the budget, where a call is refused
LATE = 128 * MIB  # and where it takes a look, of a zygote that waits for a processor
FAR_TOO_MUCH = 1536 * MIB
OWN = re.compile(r"^(?:RssAnon|RssShmem|VmSwap|VmPTE):\s*(\d+) kB$", re.MULTILINE)

Attack = Callable[[JsonObject, Mapping[str, int]], JsonObject]


@dataclass
class Seen:
    """What the kernel says of all children of one zygote."""

    peak: int = 0
    """Own memory and page tables, as sampled."""
    endings: list[Ending] = field(default_factory=list)

    @property
    def resident(self) -> int:
        """The most that any of them ever had in memory, by the kernel's own book."""
        return max(
            ending.usage.max_rss_bytes for ending in self.endings if ending.usage is not None
        )


@asynccontextmanager
async def watched(
    monkeypatch: pytest.MonkeyPatch, *preload: str
) -> AsyncIterator[tuple[Renderer, Seen]]:
    seen = Seen()
    judge = report.result_of

    def judged(ending: Ending, allowance: Allowance) -> JsonObject:
        seen.endings.append(ending)
        return judge(ending, allowance)

    async with Renderer(preload=(TASKS, HOARDS, *preload)) as renderer:
        monkeypatch.setattr("imagefleet.worker.isolation.client.result_of", judged)
        over = threading.Event()
        watch = threading.Thread(target=_sample, args=(renderer.zygote_pid, seen, over))
        watch.start()
        try:
            yield renderer, seen
        finally:
            over.set()
            watch.join()


def _sample(zygote: int, seen: Seen, over: threading.Event) -> None:
    while not over.wait(0.002):
        for child in children_of(zygote):
            with suppress(OSError):
                status = Path(f"/proc/{child}/status").read_text(encoding="utf-8")
                seen.peak = max(seen.peak, 1024 * sum(map(int, OWN.findall(status))))


async def attack(
    renderer: Renderer,
    function: Attack,
    argument: JsonObject | None = None,
    files: Mapping[str, int] | None = None,
    *,
    memory_bytes: int = BUDGET,
) -> JsonObject:
    allowance = Allowance(deadline_seconds=60, memory_bytes=memory_bytes, file_bytes=MIB)
    name = hoard(function) if function.__module__ == HOARDS else task(function)
    return await renderer.run_isolated(name, argument or {}, files or {}, allowance)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "source"
    path.write_bytes(bytes(MIB))
    with path.open("rb") as file:
        yield file.fileno()


@pytest.mark.parametrize(
    "function",
    [tasks.hog_memory, hoards.move_the_break, hoards.copy_the_source],
    ids=lambda function: function.__name__,
)
async def test_what_counts_as_data_ends_at_the_budget(
    function: Attack, source: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(monkeypatch) as (renderer, seen):
        with pytest.raises(InputRejected) as rejected:
            await attack(renderer, function, files={"source": source})

    assert rejected.value.code == "memory"
    assert seen.endings[-1].killed is None  # it told itself
    assert BUDGET // 2 < seen.resident < BUDGET + MARGIN


async def test_the_stack_is_no_way_around(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch) as (renderer, seen):
        larger = {"bytes": FAR_TOO_MUCH}
        assert await attack(renderer, hoards.grow_the_stack_mapping, larger) == {"refused": 1}
        assert await attack(renderer, hoards.walk_down_the_stack, larger) == {"refused": 1}
        all_of_it = await attack(renderer, hoards.grow_every_mapping_near_the_stack)
        assert all_of_it == {"answers": [1]}

    assert seen.resident < BUDGET


async def test_a_stack_that_grows_by_itself_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch) as (renderer, seen):
        with pytest.raises(ChildCrashed) as crash:
            await attack(renderer, hoards.descend)

    assert crash.value.signal == signal.SIGSEGV
    assert BUDGET // 2 < seen.resident < BUDGET + MARGIN


async def test_what_was_written_stays_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch) as (renderer, seen):
        assert await attack(renderer, hoards.ratchet) == {"refused": 1}

    assert seen.resident < BUDGET


async def test_what_would_not_be_counted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch) as (renderer, seen):
        assert await attack(renderer, hoards.try_every_flag) == {"got": []}
        honest = await attack(renderer, hoards.remap_honestly)

    assert honest["kept"] is True
    assert seen.resident < BUDGET


async def test_address_space_ends_where_the_budget_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch) as (renderer, _):
        reserved = await attack(renderer, hoards.reserve_read_only)

    assert isinstance(reserved["bytes"], int)
    assert 0 < reserved["bytes"] < BUDGET + MARGIN


async def test_tables_of_pages_count_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch) as (renderer, seen):
        with pytest.raises(InputRejected) as rejected:
            await attack(renderer, hoards.scatter)

    assert (rejected.value.code, rejected.value.public_message) == ("memory", NEEDS_MEMORY)
    assert str(BUDGET) in (rejected.value.detail or "")
    assert BUDGET // 2 < seen.peak < BUDGET + BESIDE_DATA + MARGIN


@pytest.mark.parametrize(
    ("preload", "killed", "most"),
    [
        (("tests.worker.unfiltered",), None, BUDGET + MARGIN),
        (
            ("tests.worker.unfiltered", "tests.worker.unlimited"),
            Killed.MEMORY,
            BUDGET + BESIDE_DATA + LATE,
        ),
    ],
    ids=["limits alone", "watching alone"],
)
async def test_behind_each_barrier_there_is_another(
    preload: tuple[str, ...], killed: Killed | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(monkeypatch, *preload) as (renderer, seen):
        with pytest.raises(InputRejected) as rejected:
            await attack(renderer, hoards.grow_the_stack_mapping, {"bytes": FAR_TOO_MUCH})

    assert rejected.value.code == "memory"
    assert seen.endings[-1].killed is killed
    assert seen.resident < most


async def test_a_child_that_has_too_much_from_the_start_is_killed_and_its_neighbour_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    preload = ("tests.worker.unlimited",)
    async with watched(monkeypatch, *preload) as (renderer, seen), asyncio.TaskGroup() as group:
        neighbour = group.create_task(attack(renderer, tasks.echo, {"still": "here"}))
        with pytest.raises(InputRejected, match="memory"):
            await attack(renderer, tasks.hog_memory, memory_bytes=MIB)

    assert neighbour.result() == {"still": "here"}
    killed = [ending.killed for ending in seen.endings]
    assert sorted(map(str, killed)) == ["None", "memory"]


@pytest.mark.parametrize("groups", [0, 400, 65_536])
def test_however_many_groups_a_user_has_memory_is_seen(tmp_path: Path, groups: int) -> None:
    """They stand before it."""
    path = tmp_path / "status"
    listed = " ".join(str(4_294_900_000 + number) for number in range(groups))
    own = Path("/proc/self/status").read_text(encoding="utf-8")
    path.write_text(re.sub(r"^Groups:.*$", f"Groups:\t{listed} ", own, flags=re.MULTILINE))

    with path.open("rb") as status:
        child = Forked(number=1, pid=os.getpid(), status=status.fileno(), most_bytes=0)
        taken = -child.room()

    assert taken == 1024 * sum(map(int, OWN.findall(own)))
    assert taken > MIB


def test_where_no_memory_is_told_no_child_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    _see_others()
    monkeypatch.setattr("imagefleet.worker.isolation.zygote.LONGEST_STATUS", 40)  # all but the name

    with pytest.raises(Misconfigured, match="cannot watch the memory"):
        _see_others()


async def test_what_the_kernel_keeps_for_a_child_is_bounded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = [str(number) for number in range(8)]
    files = {name: os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY, 0o600) for name in names}
    async with watched(monkeypatch) as (renderer, _):
        queued = await attack(renderer, hoards.queue_signals)
        await attack(renderer, hoards.lengthen_the_files, files=files)
        lengthened = [os.fstat(file).st_size for file in files.values()]
        await attack(renderer, hoards.fill_the_files, files=files)

    assert isinstance(queued["queued"], int)
    assert 0 < queued["queued"] <= 64
    assert lengthened == [0] * 8
    assert [os.fstat(file).st_size for file in files.values()] == [MIB] * 8
    assert all(os.fstat(file).st_blocks * 512 <= 2 * MIB for file in files.values())
    for file in files.values():
        os.close(file)
