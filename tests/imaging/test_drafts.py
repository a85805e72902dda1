"""Nobody sees that a JPEG was decoded at a part of its size: `python -m tests.bench.quality`."""

from __future__ import annotations

import pytest
from PIL import Image

from imagefleet.imaging import sizes
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.sizes import Size
from imagefleet.imaging.sniff import sniff
from imagefleet.imaging.steps import STEPS, open_file
from tests.bench.quality import DRAWN, jpeg, psnr, ssim
from tests.imaging.rendering import one

SOURCE = Size(1600, 1200)
ALIKE = {draw.__name__: jpeg(draw(SOURCE)) for draw in DRAWN}
# Hard edges and letters show most: no camera takes them so.
LEAST = [("grain", 49, 0.994), ("edges", 27, 0.97), ("text", 29, 0.985)]


def largest(source: bytes, side: int) -> Image.Image:
    """What goes to the encoders."""
    work = open_file(source, sniff(source), one(width=side, height=side), Limits())
    for step in STEPS:
        work = step(work)
    return work.picture


@pytest.mark.parametrize(("name", "least_psnr", "least_ssim"), LEAST)
@pytest.mark.parametrize("distance", [1.9, 2.0, 2.04, 2.3, 3.0, 4.0, 4.05, 4.9, 5.0, 6.0])
def test_a_drafted_picture_is_like_one_that_was_decoded_whole(
    name: str,
    least_psnr: float,
    least_ssim: float,
    distance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    side = round(SOURCE.width / distance)
    drafted = largest(ALIKE[name], side)
    monkeypatch.setattr(sizes, "_DRAFTS", ())
    whole = largest(ALIKE[name], side)

    assert psnr(whole, drafted) > least_psnr
    assert ssim(whole, drafted) > least_ssim


def test_likeness_is_told_by_figures() -> None:
    black, grey = (Image.new("RGB", (64, 64), (level,) * 3) for level in (0, 128))

    assert psnr(grey, grey) == float("inf")
    assert ssim(grey, grey) == pytest.approx(1)
    assert psnr(black, grey) == pytest.approx(5.99, abs=0.01)
    assert ssim(black, grey) < 0.001
