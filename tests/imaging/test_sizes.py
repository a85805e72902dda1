from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.imaging.recipes import Fit, VariantSpec
from imagefleet.imaging.sizes import Size, cropped, levels, scaled, too_small
from imagefleet.jobs.images import ImageFormat
from tests.support.recipes import RECIPES

SIDE = st.integers(1, 30_000)
BOX = st.integers(1, 4_000)
FITS = st.sampled_from(Fit)


def spec(width: int, height: int, fit: Fit = Fit.INSIDE) -> VariantSpec:
    return VariantSpec("any", width, height, ImageFormat.WEBP, 80, fit)


@pytest.mark.parametrize(
    ("source", "box", "fit", "expected"),
    [
        ((4000, 3000), (200, 200), Fit.INSIDE, (200, 150)),
        ((3000, 4000), (200, 200), Fit.INSIDE, (150, 200)),
        ((4000, 3000), (200, 200), Fit.CONTAIN, (200, 150)),
        ((4000, 3000), (200, 200), Fit.COVER, (267, 200)),
        ((3000, 4000), (200, 200), Fit.COVER, (200, 267)),
        ((100, 50), (200, 200), Fit.INSIDE, (100, 50)),
        ((400, 100), (200, 200), Fit.COVER, (400, 100)),
        ((30_000, 1), (200, 200), Fit.INSIDE, (200, 1)),
        ((200, 200), (200, 200), Fit.INSIDE, (200, 200)),
    ],
)
def test_a_picture_is_scaled_to_its_box(
    source: tuple[int, int], box: tuple[int, int], fit: Fit, expected: tuple[int, int]
) -> None:
    assert expected == scaled(Size(*source), spec(*box, fit))


def test_a_source_of_exactly_the_box_is_not_too_small() -> None:
    assert not too_small(Size(200, 100), spec(200, 200))
    assert too_small(Size(199, 100), spec(200, 200))
    assert too_small(Size(400, 100), spec(200, 200, Fit.COVER))


@given(SIDE, SIDE, BOX, BOX, FITS)
def test_nothing_is_ever_enlarged_or_vanishes(
    width: int, height: int, box_width: int, box_height: int, fit: Fit
) -> None:
    size = scaled(Size(width, height), spec(box_width, box_height, fit))

    assert 1 <= size.width <= width
    assert 1 <= size.height <= height


@given(SIDE, SIDE, BOX, BOX)
def test_inside_is_inside_and_cover_covers(
    width: int, height: int, box_width: int, box_height: int
) -> None:
    source = Size(width, height)
    inside = scaled(source, spec(box_width, box_height))
    cover = spec(box_width, box_height, Fit.COVER)

    assert inside.width <= box_width
    assert inside.height <= box_height
    if not too_small(source, cover):
        assert (box_width, box_height) == cropped(scaled(source, cover), cover)


@given(SIDE, SIDE)
def test_levels_go_from_large_to_small_and_lose_no_variant(width: int, height: int) -> None:
    variants = RECIPES["default"].variants
    planned = levels(Size(width, height), variants)

    areas = [level.size.width * level.size.height for level in planned]
    assert sorted(areas, reverse=True) == areas
    assert len({level.size for level in planned}) == len(planned)
    assert len(variants) == sum(len(level.variants) for level in planned)


def test_a_small_source_has_one_level_for_all_it_is_too_small_for() -> None:
    planned = levels(Size(300, 200), RECIPES["default"].variants)

    assert [(300, 200), (200, 133)] == [level.size for level in planned]
