"""Pictures that need much memory are made one at a time; the others beside them."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from PIL import Image

from imagefleet.jobs.model import Claim, Lane
from imagefleet.runtime import Drain
from imagefleet.store.jobs.leases import Renewal
from imagefleet.worker import handling
from imagefleet.worker.handlers.process_image import MUCH_MEMORY_BYTES, needs_much, room_for
from imagefleet.worker.handling import (
    LONGEST_AWAY,
    TURN,
    Equipment,
    JobContext,
    OneByOne,
    Postponed,
    ReportProgress,
)
from imagefleet.worker.isolation.report import GENERAL_MEMORY_BYTES
from tests.support.eventually import eventually
from tests.support.images import claimed, png_claiming, quadrants, saved


@dataclass
class Shared:
    """What `room_for` asks of a worker with two children."""

    decoding: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    much_memory: OneByOne = field(default_factory=lambda: OneByOne("much_memory"))
    drain: Drain = field(default_factory=Drain)


def an_attempt(shared: Shared, lane: Lane = Lane.GENERAL) -> JobContext:
    """One that is given nothing else."""
    claim = cast("Claim", SimpleNamespace(lane=lane))
    equipment = cast("Equipment", shared)
    return replace(NOTHING, claim=claim, _equipment=equipment, _computes=asyncio.Event())


NOTHING = JobContext(
    claim=cast("Claim", None),
    renewal=cast("Renewal", None),
    payload=None,
    deadline=0,
    progress=cast("ReportProgress", None),
    stopping=asyncio.Event(),
    _equipment=cast("Equipment", None),
)


def webp(side: int) -> bytes:
    """Of one colour, whose size is then said to be another."""
    head = bytearray(saved(quadrants(40, 40), "WEBP", lossless=True))
    size = (side - 1) | (side - 1) << 14
    kept = int.from_bytes(head[21:25], "little") & ~0xFFFFFFF
    head[21:25] = (kept | size).to_bytes(4, "little")
    return bytes(head)


def planted(folder: Path, content: bytes) -> Path:
    path = folder / f"{hash(content)}"
    path.write_bytes(content)
    return path


def deep(side: int) -> bytes:
    png = bytearray(png_claiming(side, side))
    png[24] = 16
    return bytes(png)


@pytest.mark.parametrize(
    ("content", "much"),
    [
        (webp(7_000), True),
        (webp(4_000), False),
        (claimed(saved(quadrants()), 7_000, 7_000), False),
        (claimed(saved(quadrants(), progressive=True), 6_900, 6_900), False),
        (png_claiming(6_900, 6_900), False),
        (deep(7_000), True),
        (saved(Image.new("RGB", (64, 48)), "AVIF", max_threads=1), False),
        # What does not say its size may have any; what is no image needs nothing.
        (b"\xff\xd8" + (b"\xff\xfe\xff\xff" + bytes(65_533)) * 5 + saved(quadrants())[2:], False),
        (b"\0\0\0\x18ftypavif\0\0\0\0avifmif1\0\3\xff\xffmdat" + bytes(300_000), True),
        (b"no image", False),
    ],
)
def test_what_needs_much_is_told_by_its_head(tmp_path: Path, content: bytes, *, much: bool) -> None:
    assert needs_much(planted(tmp_path, content)) is much


async def test_of_those_that_need_much_one_is_made_at_a_time(tmp_path: Path) -> None:
    attempt = an_attempt(Shared())
    large, small = planted(tmp_path, webp(7_000)), planted(tmp_path, webp(400))
    async with AsyncExitStack() as first:
        assert await first.enter_async_context(room_for(attempt, large)) == MUCH_MEMORY_BYTES
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), room_for(attempt, large):
                pass
        async with room_for(attempt, small) as beside:
            assert beside == GENERAL_MEMORY_BYTES
    async with room_for(attempt, large), room_for(attempt, small):
        pass


async def test_beside_one_that_waits_others_come_back_one_after_the_other(tmp_path: Path) -> None:
    attempt = an_attempt(Shared())
    large = planted(tmp_path, webp(7_000))
    away = []

    async def made() -> None:
        async with room_for(attempt, large):
            pass

    async def postponed() -> None:
        with pytest.raises(Postponed, match="much_memory") as caught:
            await made()
        away.append(caught.value.after)

    async with asyncio.TaskGroup() as group, room_for(attempt, large):
        waiting = group.create_task(made())
        await eventually(lambda: attempt._equipment.much_memory._here > 1)
        for _ in range(40):
            await postponed()
        assert not waiting.done()
    await made()

    assert away == sorted(away)
    assert TURN / 2 < away[0] <= TURN
    assert TURN / 2 < away[1] - away[0] <= TURN
    assert away[-1] == LONGEST_AWAY


@pytest.mark.parametrize("holds", [None, 700, 7_000])
async def test_what_has_not_come_to_a_child_when_the_worker_ends_is_given_back(
    tmp_path: Path, holds: int | None
) -> None:
    """Whether it waits for one, or finds one free that it does not begin any more."""
    shared = Shared()
    large = planted(tmp_path, webp(7_000))

    async def postponed() -> None:
        with pytest.raises(Postponed, match="drain") as caught:
            async with room_for(an_attempt(shared), large):
                pass
        assert timedelta() == caught.value.after

    async with AsyncExitStack() as others, asyncio.TaskGroup() as group:
        for _ in range({None: 0, 700: 2, 7_000: 1}[holds]):
            other = planted(tmp_path, webp(holds or 0))
            await others.enter_async_context(room_for(an_attempt(shared), other))
        if holds:
            group.create_task(postponed())
            await asyncio.sleep(0.01)
        shared.drain.request("the test says so")
        await postponed()

    assert not shared.decoding.locked()


async def test_what_has_had_a_child_has_another_though_the_worker_ends() -> None:
    shared = Shared()
    attempt = an_attempt(shared)
    async with attempt.room_for_a_child():
        shared.drain.request("the test says so")

    async with attempt.room_for_a_child():
        pass


async def test_a_suspect_that_needs_much_has_no_less_than_any_suspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handling, "QUARANTINE_MEMORY_BYTES", 2 * MUCH_MEMORY_BYTES)
    suspect = an_attempt(Shared(), Lane.QUARANTINE)

    async with room_for(suspect, planted(tmp_path, webp(7_000))) as memory_bytes:
        assert memory_bytes == 2 * MUCH_MEMORY_BYTES
