"""Children begin in the order in which they came, and never have more memory than there is."""

import asyncio
import base64
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from PIL import Image

from imagefleet.imaging.foretelling import foretold_bytes, least_bytes
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Recipe, VariantSpec, Watermark
from imagefleet.imaging.sniff import sniff
from imagefleet.jobs.images import ImageFormat
from imagefleet.jobs.model import Claim, Lane
from imagefleet.runtime import Drain, container_limit
from imagefleet.settings import Worker
from imagefleet.store.jobs.leases import Renewal
from imagefleet.worker.handling import (
    BESIDE_CHILDREN,
    SMALLEST_BYTES,
    Equipment,
    JobContext,
    Postponed,
    ReportProgress,
    Room,
    room_of,
)
from imagefleet.worker.isolation.report import GENERAL_MEMORY_BYTES, QUARANTINE_MEMORY_BYTES
from tests.support.heads import HEADS
from tests.support.images import claimed, png_claiming, quadrants, saved
from tests.support.recipes import RECIPES

MIB = 2**20


@dataclass
class Shared:
    """What a context asks of a worker with two children."""

    room: Room = field(default_factory=lambda: Room(2, 1024 * MIB))
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


def foretold(folder: Path, content: bytes) -> int:
    return foretold_bytes(planted(folder, content), RECIPES["default"], Limits()) // MIB


def test_what_a_picture_needs_is_told_by_its_head(tmp_path: Path) -> None:
    jpeg, progressive = saved(quadrants()), saved(quadrants(), progressive=True)
    full = saved(quadrants(), progressive=True, subsampling=0)
    needs = {
        name: foretold(tmp_path, content)
        for name, content in {
            "jpeg": claimed(jpeg, 8_000, 8_000),
            "progressive": claimed(progressive, 8_000, 8_000),
            "full": claimed(full, 8_000, 8_000),
            "png": png_claiming(8_000, 8_000),
            "webp": webp(8_000),
            "small": webp(400),
        }.items()
    }

    assert needs["small"] < needs["jpeg"] < needs["progressive"] < needs["full"]
    assert needs["jpeg"] < needs["png"] < needs["webp"]
    assert needs["small"] < SMALLEST_BYTES // MIB


def test_what_does_not_say_its_size_in_its_head_is_read_on(tmp_path: Path) -> None:
    far = b"\xff\xd8" + (b"\xff\xfe\xff\xff" + bytes(65_533)) * 5 + saved(quadrants())[2:]

    assert foretold(tmp_path, far) < SMALLEST_BYTES // MIB
    assert foretold(tmp_path, b"no image") == 0
    assert foretold(tmp_path, HEADS["jpeg exif"]) == 0  # all of it is a head


def test_a_picture_of_many_rows_needs_their_addresses(tmp_path: Path) -> None:
    assert foretold(tmp_path, png_claiming(1, 2**26)) > foretold(tmp_path, png_claiming(2**26, 1))


def test_what_is_known_of_a_picture_without_its_head_foretells_no_more_than_that(
    tmp_path: Path,
) -> None:
    pictures = {
        "image/jpeg": claimed(saved(quadrants()), 8_000, 8_000),
        "image/png": deep(8_000),
        "image/webp": webp(8_000),
        "image/gif": saved(quadrants(), "GIF"),
        "image/avif": saved(quadrants(), "AVIF"),
    }
    for mime_type, content in pictures.items():
        facts = sniff(content)
        size = facts.width, facts.height, len(content)
        least = least_bytes(mime_type, *size, RECIPES["default"])
        assert 0 < least <= foretold_bytes(planted(tmp_path, content), RECIPES["default"], Limits())

    assert least_bytes("image/heic", 8, 8, 1, RECIPES["default"]) == 0
    assert least_bytes("image/png", 8, None, 1, RECIPES["default"]) == 0


def bearing(mark: Image.Image) -> Recipe:
    image = base64.b64encode(saved(mark, "WEBP", lossless=True)).decode()
    spec = VariantSpec("marked", 64, 64, ImageFormat.WEBP, 80, watermark=Watermark(image))
    return Recipe("marked", (spec, replace(spec, name="again")))


def test_a_watermark_is_foretold_by_its_own_pixels(tmp_path: Path) -> None:
    picture = planted(tmp_path, saved(quadrants()))
    small, large = (
        foretold_bytes(picture, bearing(Image.new("RGB", (side, side))), Limits())
        for side in (10, 1000)
    )

    assert large - small == 36 * (1000**2 - 10**2)


def test_what_may_have_whole_colours_in_avif_needs_more_than_a_photo(tmp_path: Path) -> None:
    """A JPEG never has them, and whether another is drawn only its pixels tell."""
    spec = VariantSpec("whole", 2_000, 2_000, ImageFormat.AVIF, 63)
    photo, drawn, lossy = (
        foretold_bytes(planted(tmp_path, content), Recipe("avif", (each,)), Limits())
        for content, each in (
            (claimed(saved(quadrants()), 2_000, 2_000), spec),
            (png_claiming(2_000, 2_000), spec),
            (png_claiming(2_000, 2_000), replace(spec, format=ImageFormat.WEBP)),
        )
    )

    assert drawn > photo
    assert drawn > lossy


async def entered(room: Room, memory_bytes: int, stack: AsyncExitStack) -> bool:
    """Whether it begins at once."""
    try:
        async with asyncio.timeout(0.02):
            await stack.enter_async_context(room.place(memory_bytes))
    except TimeoutError:
        return False
    return True


async def test_together_they_have_no_more_than_there_is() -> None:
    room = Room(3, 100)
    async with AsyncExitStack() as others, AsyncExitStack() as stack:
        assert await entered(room, 60, others)
        assert not await entered(room, 60, stack)
        assert await entered(room, 40, stack)
        assert not await entered(room, 1, stack)
        await others.aclose()
        assert await entered(room, 60, stack)


async def test_no_more_of_them_work_at_once_than_may() -> None:
    room = Room(2, 100)
    async with AsyncExitStack() as others, AsyncExitStack() as stack:
        assert await entered(room, 1, others)
        assert await entered(room, 1, stack)
        assert not await entered(room, 1, stack)
        await others.aclose()
        assert await entered(room, 1, stack)


async def test_nobody_passes_the_first_in_the_line() -> None:
    room, begun = Room(3, 100), list[str]()

    async def child(name: str, memory_bytes: int, over: asyncio.Event) -> None:
        async with room.place(memory_bytes):
            begun.append(name)
            await over.wait()

    now, later = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for name, memory_bytes, over in (
            ("first", 60, now),
            ("large", 90, later),
            ("small", 10, later),
        ):
            group.create_task(child(name, memory_bytes, over))
            await asyncio.sleep(0)
        before = list(begun)
        now.set()
        await asyncio.sleep(0.01)
        later.set()

    assert before == ["first"]
    assert begun == ["first", "large", "small"]


async def test_who_waits_no_longer_holds_nobody_up() -> None:
    room = Room(3, 100)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        assert await entered(room, 60, stack)
        large = group.create_task(room.place(90).__aenter__())
        small = group.create_task(room.place(10).__aenter__())
        await asyncio.sleep(0.01)
        assert not small.done()
        large.cancel()
        await small


async def test_a_child_has_what_was_foretold_and_a_margin() -> None:
    room = Room(2, 1024 * MIB)

    assert room.allowance(400 * MIB) == 450 * MIB
    assert room.allowance(0) == SMALLEST_BYTES
    assert room.allowance(1000 * MIB) == 1024 * MIB
    assert room.allowance(None) == GENERAL_MEMORY_BYTES
    assert room.allowance(0, in_quarantine=True) == QUARANTINE_MEMORY_BYTES


@pytest.mark.parametrize("holds", [None, 400, 900])
async def test_what_has_not_come_to_a_child_when_the_worker_ends_is_given_back(
    holds: int | None,
) -> None:
    """Whether it waits for one, or finds one free that it does not begin any more."""
    shared = Shared()

    async def postponed() -> None:
        with pytest.raises(Postponed, match="drain") as caught:
            async with an_attempt(shared).room_for_a_child(500 * MIB):
                pass
        assert timedelta() == caught.value.after

    async with AsyncExitStack() as others, asyncio.TaskGroup() as group:
        for _ in range({None: 0, 400: 2, 900: 1}[holds]):
            other = an_attempt(shared).room_for_a_child((holds or 0) * MIB)
            await others.enter_async_context(other)
        if holds:
            group.create_task(postponed())
            await asyncio.sleep(0.01)
        shared.drain.request("the test says so")
        await postponed()

    async with AsyncExitStack() as stack:
        assert await entered(shared.room, 1024 * MIB, stack)


async def test_what_has_had_a_child_has_another_though_the_worker_ends() -> None:
    shared = Shared()
    attempt = an_attempt(shared)
    async with attempt.room_for_a_child():
        shared.drain.request("the test says so")

    async with attempt.room_for_a_child():
        pass


async def test_a_suspect_has_no_less_than_any_suspect() -> None:
    suspect = an_attempt(Shared(), Lane.QUARANTINE)

    async with suspect.room_for_a_child(100 * MIB) as memory_bytes:
        assert memory_bytes == QUARANTINE_MEMORY_BYTES


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "1073741824"}, 2**30),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/memory.max": "1000",
                "sys/fs/cgroup/a/b/memory.max": "2000",
            },
            1000,
        ),
        (
            {
                "proc/self/cgroup": "9:name=systemd:/x\n4:cpu,memory:/elsewhere",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000",
            },
            2000,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            None,
        ),
    ],
)
def test_the_containers_limit_is_found(
    tmp_path: Path, files: Mapping[str, str], limit: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")

    assert container_limit(tmp_path) == limit


def test_what_there_is_for_children_is_said_or_what_the_container_leaves_or_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(limit: int | None, settings: Worker) -> int:
        monkeypatch.setattr("imagefleet.worker.handling.container_limit", lambda: limit)
        return room_of(settings).memory_bytes

    assert told(2**30, Worker(render_memory=300 * MIB)) == 300 * MIB
    assert told(2**30, Worker()) == 2**30 - BESIDE_CHILDREN
    assert told(2**28, Worker()) == SMALLEST_BYTES
    assert told(None, Worker(render_children=3)) == 4 * GENERAL_MEMORY_BYTES
