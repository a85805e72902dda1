"""A picture for which memory is short is told so, never that it is broken: in real children."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from PIL import Image, ImageCms

from imagefleet.errors import InputRejected
from imagefleet.imaging.limits import Limits
from imagefleet.worker.isolation.client import Renderer
from imagefleet.worker.isolation.report import ChildCrashed
from tests.support.images import quadrants, saved, translucent
from tests.support.recipes import RECIPES

MIB = 2**20
SIDE = 1600
PICTURES = {
    "jpeg": saved(quadrants(SIDE, SIDE)),
    "jpeg in passes": saved(quadrants(SIDE, SIDE), progressive=True),
    "jpeg cmyk": saved(quadrants(SIDE, SIDE).convert("CMYK")),
    "png": saved(quadrants(SIDE, SIDE), "PNG"),
    "png alpha": saved(translucent(SIDE, SIDE), "PNG"),
    "png grey": saved(Image.new("I;16", (SIDE, SIDE), 500), "PNG"),
    "png profile": saved(
        quadrants(SIDE, SIDE),
        "PNG",
        icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(),
    ),
    "webp": saved(quadrants(SIDE, SIDE), "WEBP", method=0),
    "webp lossless": saved(translucent(SIDE, SIDE), "WEBP", lossless=True, method=0),
    "gif": saved(quadrants(SIDE, SIDE), "GIF"),
    "avif": saved(quadrants(SIDE, SIDE), "AVIF", speed=10, max_threads=1),
    "avif alpha": saved(translucent(SIDE, SIDE), "AVIF", speed=10, max_threads=1),
}


@pytest.fixture
async def renderer() -> AsyncIterator[Renderer]:
    async with Renderer() as renderer:
        yield renderer


@pytest.mark.parametrize("recipe", ["default", "avif"])
@pytest.mark.parametrize("picture", PICTURES)
async def test_it_is_made_or_memory_is_short_and_nothing_else(
    renderer: Renderer, picture: str, recipe: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(PICTURES[picture])
    endings = []
    for mebibytes in range(14, 64, 5):
        try:
            made = await renderer.render(
                source,
                RECIPES[recipe],
                Limits(),
                deadline_seconds=30,
                scratch=tmp_path,
                memory_bytes=mebibytes * MIB,
            )
        except InputRejected as refused:
            endings.append(refused.code)
        except ChildCrashed:
            endings.append("crashed")
        else:
            caveats = {warning for each in made.variants for warning in each.facts.warnings}
            assert "profile_broken" not in caveats
            endings.append("made")
            made.discard()

    # Not of a crash either: the encoder of AVIF dies where it is refused, so it is not begun.
    assert set(endings) <= {"memory", "made"}
    assert endings[0] == "memory"
