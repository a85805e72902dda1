"""Pictures rendered in children: the same bytes as anywhere, and nothing left over."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from imagefleet.errors import InputRejected
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import (
    LONGEST_MARKS,
    MOST_VARIANTS,
    Recipe,
    VariantSpec,
    Watermark,
)
from imagefleet.imaging.render import render as render_here
from imagefleet.jobs.images import ImageFormat
from imagefleet.runtime import new_event_loop
from imagefleet.worker.isolation import client
from imagefleet.worker.isolation.client import Renderer
from imagefleet.worker.isolation.report import (
    ChildCancelled,
    ChildCrashed,
    ChildFailed,
)
from tests.support.children import children_of, claim_anothers_picture, task
from tests.support.eventually import eventually
from tests.support.images import (
    animated,
    as_a_camera_stores,
    png_claiming,
    quadrants,
    saved,
    translucent,
    without_pixels,
)
from tests.support.recipes import RECIPES

PICTURES = {
    "jpeg": saved(quadrants(900, 700)),
    "progressive": saved(quadrants(300, 300), progressive=True),
    "turned": as_a_camera_stores(6, quadrants(), "JPEG"),
    "cmyk": saved(quadrants().convert("CMYK")),
    "png": saved(translucent(), "PNG"),
    "palette": saved(quadrants().convert("P"), "PNG"),
    "webp": saved(translucent(), "WEBP"),
    "gif": animated("GIF", [(255, 0, 0), (0, 255, 0)]),
    "avif": saved(quadrants(), "AVIF", max_threads=1),
}


@pytest.fixture
async def renderer() -> AsyncIterator[Renderer]:
    async with Renderer() as renderer:
        yield renderer


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def planted(folder: Path, content: bytes) -> Path:
    path = folder / "source"
    path.write_bytes(content)
    return path


def left_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def open_descriptors() -> set[int]:
    """Without /proc, which a process that is not dumpable may not read about itself."""
    numbers = set()
    for number in range(4096):
        try:
            os.fstat(number)
        except OSError:
            continue
        numbers.add(number)
    return numbers


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("picture", PICTURES)
async def test_a_child_makes_the_bytes_that_this_process_would(
    renderer: Renderer, picture: str, recipe: str, tmp_path: Path, scratch: Path
) -> None:
    expected: dict[tuple[str, ImageFormat], bytes] = {}

    def sink(name: str, image_format: ImageFormat, encoded: bytes) -> None:
        expected[name, image_format] = encoded

    facts = render_here(PICTURES[picture], RECIPES[recipe], Limits(), sink)
    source = planted(tmp_path, PICTURES[picture])

    with await renderer.render(
        source, RECIPES[recipe], Limits(), deadline_seconds=30, scratch=scratch
    ) as rendered:
        actual = {(v.path.stem, v.facts.format): v.path.read_bytes() for v in rendered.variants}

    assert expected == actual
    assert hashlib.sha256(PICTURES[picture]).hexdigest() == rendered.source.sha256
    assert (facts.source.width, facts.source.height, facts.source.frames) == (
        rendered.source.width,
        rendered.source.height,
        rendered.source.frames,
    )
    assert facts.placeholder.thumbhash == rendered.placeholder.thumbhash
    assert facts.variants == tuple(replace(v.facts, sha256="") for v in rendered.variants)
    assert left_in(scratch) == []


async def test_a_watermark_that_cannot_be_read_is_a_fault_of_ours_and_not_the_pictures(
    renderer: Renderer, tmp_path: Path, scratch: Path
) -> None:
    source = planted(tmp_path, PICTURES["jpeg"])
    mark = Watermark(base64.b64encode(PICTURES["png"][:60]).decode())
    variant = VariantSpec("only", 100, 100, ImageFormat.JPEG, 80, watermark=mark)

    with pytest.raises(ChildFailed, match="watermark"):
        await renderer.render(
            source, Recipe("marked", (variant,)), Limits(), deadline_seconds=30, scratch=scratch
        )

    assert left_in(scratch) == []


async def test_a_watermark_as_long_as_may_be_goes_to_a_child(
    renderer: Renderer, tmp_path: Path, scratch: Path
) -> None:
    source = planted(tmp_path, PICTURES["jpeg"])
    image = saved(Image.effect_noise((60, 60), 90), "PNG")
    image += b"\0" * (LONGEST_MARKS * 3 // 4 - len(image))  # behind its end, where nobody reads
    mark = Watermark(base64.b64encode(image).decode())
    variants = (
        VariantSpec(f"{'v' * 50}{n}", 100, 100, ImageFormat.JPEG, 80, watermark=mark)
        for n in range(MOST_VARIANTS)
    )

    with await renderer.render(
        source, Recipe("marked", tuple(variants)), Limits(), deadline_seconds=30, scratch=scratch
    ) as rendered:
        assert MOST_VARIANTS == len(rendered.variants)


async def test_what_is_known_of_a_source_is_told_of_it_and_its_length_has_to_be_reported(
    renderer: Renderer, tmp_path: Path, scratch: Path
) -> None:
    source, picture = planted(tmp_path, PICTURES["jpeg"]), PICTURES["jpeg"]
    known = (len(picture), hashlib.sha256(picture).hexdigest())
    rendering = partial(
        renderer.render, source, RECIPES["default"], Limits(), deadline_seconds=30, scratch=scratch
    )

    with await rendering(known=known) as rendered:
        assert known == (rendered.source.bytes, rendered.source.sha256)

    with pytest.raises(ChildCrashed) as caught:
        await rendering(known=(known[0] + 1, known[1]))
    assert caught.value.detail == "a false report: not the source it was given"
    assert left_in(scratch) == []


async def test_a_child_that_lies_about_whose_picture_it_made_has_crashed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scratch: Path
) -> None:
    monkeypatch.setattr(client, "_RENDER", task(claim_anothers_picture))
    source = planted(tmp_path, PICTURES["jpeg"])

    async with Renderer() as renderer:
        with pytest.raises(ChildCrashed) as caught:
            await renderer.render(
                source, RECIPES["default"], Limits(), deadline_seconds=30, scratch=scratch
            )

    last = RECIPES["default"].variants[-1].name
    told = f"a false report: thumb: '{last}.webp' is not what the report says"
    assert caught.value.detail == told
    assert left_in(scratch) == []


async def test_an_open_source_is_read_from_its_beginning_and_stays_open(
    renderer: Renderer, tmp_path: Path, scratch: Path
) -> None:
    with planted(tmp_path, PICTURES["jpeg"]).open("rb") as file:
        file.read()
        for _ in range(2):
            rendered = await renderer.render(
                file.fileno(), RECIPES["default"], Limits(), deadline_seconds=30, scratch=scratch
            )
            rendered.discard()
            rendered.discard()

            assert len(rendered.variants) == 10
            assert not file.closed


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (without_pixels(PICTURES["jpeg"]), "corrupt"),
        (b"<html>", "unsupported"),
        (b"", "empty_file"),
        (png_claiming(29_000, 29_000), "too_many_pixels"),
        (PICTURES["png"] + bytes(200_000), "too_large"),
    ],
    ids=["truncated", "markup", "empty", "bomb", "long"],
)
async def test_what_can_never_work_is_rejected_and_leaves_nothing(
    renderer: Renderer, content: bytes, code: str, tmp_path: Path, scratch: Path
) -> None:
    with pytest.raises(InputRejected) as rejected:
        await renderer.render(
            planted(tmp_path, content),
            RECIPES["default"],
            Limits(max_bytes=150_000),
            deadline_seconds=30,
            scratch=scratch,
        )

    assert rejected.value.code == code
    assert left_in(scratch) == []


async def test_a_picture_that_needs_more_memory_than_it_may_have_is_rejected(
    renderer: Renderer, tmp_path: Path, scratch: Path
) -> None:
    source = planted(tmp_path, saved(quadrants(6000, 6000), "PNG"))

    with pytest.raises(InputRejected) as rejected:
        await renderer.render(
            source,
            RECIPES["default"],
            Limits(),
            deadline_seconds=30,
            scratch=scratch,
            memory_bytes=80 * 2**20,
        )

    assert rejected.value.code == "memory"
    assert left_in(scratch) == []


async def test_a_source_that_is_not_there_leaves_nothing(
    renderer: Renderer, tmp_path: Path, scratch: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        await renderer.render(
            tmp_path / "none", RECIPES["default"], Limits(), deadline_seconds=30, scratch=scratch
        )

    assert left_in(scratch) == []


@pytest.mark.parametrize("how", ["event", "task"])
async def test_a_cancelled_rendering_ends_at_once_and_leaves_nothing(
    renderer: Renderer, how: str, tmp_path: Path, scratch: Path
) -> None:
    source = planted(tmp_path, saved(quadrants(5000, 5000), "PNG"))
    cancel = asyncio.Event()
    zygote = renderer.zygote_pid
    assert zygote is not None

    async def rendering() -> None:
        await renderer.render(
            source, RECIPES["avif"], Limits(), deadline_seconds=600, scratch=scratch, cancel=cancel
        )

    async with asyncio.TaskGroup() as group:
        task = group.create_task(_expecting(rendering, how))
        await eventually(lambda: children_of(zygote), within=20)
        if how == "event":
            cancel.set()
        else:
            task.cancel()

    assert children_of(zygote) == []
    assert left_in(scratch) == []


async def _expecting(rendering: object, how: str) -> None:
    assert callable(rendering)
    expected = ChildCancelled if how == "event" else asyncio.CancelledError
    with pytest.raises(expected):
        await rendering()


async def test_five_at_once_get_five_different_pictures(
    renderer: Renderer, tmp_path: Path, scratch: Path
) -> None:
    sources = []
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        sources.append(planted(folder, saved(quadrants(400 + number, 300))))

    rendered = await asyncio.gather(
        *(
            renderer.render(
                source, RECIPES["default"], Limits(), deadline_seconds=60, scratch=scratch
            )
            for source in sources
        )
    )

    assert [rendering.source.width for rendering in rendered] == [400, 401, 402, 403, 404]
    assert len(left_in(scratch)) == 5
    for one in rendered:
        one.discard()
    assert left_in(scratch) == []


async def test_two_hundred_renderings_leave_the_process_as_it_was(
    renderer: Renderer, tmp_path: Path, scratch: Path
) -> None:
    good = planted(tmp_path, saved(quadrants(64, 48)))
    bad = tmp_path / "bad"
    bad.write_bytes(without_pixels(PICTURES["jpeg"]))
    zygote = renderer.zygote_pid
    assert zygote is not None
    await renderer.render(good, RECIPES["default"], Limits(), deadline_seconds=30, scratch=scratch)
    before = open_descriptors()

    async def some(count: int) -> None:
        for number in range(count):
            source = good if number % 4 else bad
            try:
                rendered = await renderer.render(
                    source, RECIPES["default"], Limits(), deadline_seconds=30, scratch=scratch
                )
                rendered.discard()
            except InputRejected:
                pass

    await asyncio.gather(*(some(50) for _ in range(4)))

    assert before == open_descriptors()
    assert children_of(zygote) == []
    assert renderer.zygote_pid == zygote
    assert len(left_in(scratch)) == 1  # the one that was not discarded


def test_it_runs_on_the_workers_own_event_loop(tmp_path: Path, scratch: Path) -> None:
    source = planted(tmp_path, PICTURES["jpeg"])

    async def main() -> None:
        async with Renderer() as renderer:
            with await renderer.render(
                source, RECIPES["default"], Limits(), deadline_seconds=30, scratch=scratch
            ) as rendered:
                assert len(rendered.variants) == 10
            with pytest.raises(ChildCrashed):
                await asyncio.gather(
                    renderer.render(
                        source, RECIPES["avif"], Limits(), deadline_seconds=30, scratch=scratch
                    ),
                    _kill_when_busy(renderer.zygote_pid),
                )

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
    assert left_in(scratch) == []


async def _kill_when_busy(zygote: int | None) -> None:
    assert zygote is not None
    (child,) = await eventually(lambda: children_of(zygote))
    os.kill(child, 9)
