from __future__ import annotations

from itertools import pairwise, starmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.imaging.recipes import Fit, VariantSpec
from imagefleet.imaging.sizes import Size, fitted, levels, scaled, too_small, window
from imagefleet.jobs.images import Focal, ImageFormat
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
        assert (box_width, box_height) == fitted(scaled(source, cover), cover)


@pytest.mark.parametrize(
    ("source", "box", "fit", "expected"),
    [
        ((4000, 3000), (200, 200), Fit.COVER, (200, 200)),
        ((150, 90), (200, 200), Fit.COVER, (90, 90)),
        ((400, 100), (200, 200), Fit.COVER, (100, 100)),
        ((100, 400), (300, 200), Fit.COVER, (100, 67)),
        ((1, 30_000), (200, 200), Fit.COVER, (1, 1)),
        ((4000, 3000), (200, 200), Fit.PAD, (200, 200)),
        ((150, 90), (200, 200), Fit.PAD, (150, 150)),
        ((90, 150), (200, 100), Fit.PAD, (200, 100)),
        ((30, 60), (200, 100), Fit.PAD, (120, 60)),
        ((150, 90), (200, 200), Fit.CONTAIN, (200, 200)),
        ((150, 90), (200, 200), Fit.INSIDE, (150, 90)),
    ],
)
def test_a_variant_has_its_boxs_shape_even_of_a_small_source(
    source: tuple[int, int], box: tuple[int, int], fit: Fit, expected: tuple[int, int]
) -> None:
    variant = spec(*box, fit)

    assert expected == fitted(scaled(Size(*source), variant), variant)


@given(SIDE, SIDE, BOX, BOX, FITS)
def test_what_is_shown_fits_the_box_and_has_its_shape(
    width: int, height: int, box_width: int, box_height: int, fit: Fit
) -> None:
    variant = spec(box_width, box_height, fit)
    size = scaled(Size(width, height), variant)
    shown = fitted(size, variant)

    assert 1 <= shown.width <= box_width
    assert 1 <= shown.height <= box_height
    if fit is not Fit.INSIDE:  # to half a pixel of one side, or a side of one pixel
        across = abs(shown.width - shown.height * box_width / box_height)
        down = abs(shown.height - shown.width * box_height / box_width)
        assert min(across, down) <= 0.5 or 1 in shown
    if fit is Fit.COVER:
        assert size == (max(size.width, shown.width), max(size.height, shown.height))
        assert shown.width == size.width or shown.height == size.height
    else:
        assert shown == (max(size.width, shown.width), max(size.height, shown.height))
    if fit is Fit.PAD:
        assert shown.width == size.width or shown.height == size.height


@given(SIDE, SIDE, st.data())
def test_a_window_is_as_near_around_its_point_as_the_edges_let_it_be(
    width: int, height: int, data: st.DataObject
) -> None:
    size = Size(width, height)
    kept = Size(data.draw(st.integers(1, width)), data.draw(st.integers(1, height)))
    focal = Focal(data.draw(st.floats(0, 1)), data.draw(st.floats(0, 1)))

    box = window(size, kept, focal)

    for length, part, share, begin, end in zip(size, kept, focal, box[:2], box[2:], strict=True):
        assert 0 <= begin <= end == begin + part <= length
        off = (begin + end) / 2 - length * share
        assert abs(off) <= 0.5 + 1e-6 or (begin == 0 and off > 0) or (end == length and off < 0)


def test_without_a_point_the_middle_is_kept() -> None:
    assert (33, 0, 233, 200) == window(Size(267, 200), Size(200, 200), None)
    assert (34, 0, 234, 200) == window(Size(268, 200), Size(200, 200), None)


@given(SIDE, SIDE)
def test_levels_go_from_large_to_small_and_lose_no_variant(width: int, height: int) -> None:
    variants = RECIPES["default"].variants
    planned = levels(Size(width, height), variants)

    areas = [level.size.width * level.size.height for level in planned]
    assert sorted(areas, reverse=True) == areas
    assert len({level.size for level in planned}) == len(planned)
    assert len(variants) == sum(len(level.variants) for level in planned)


BOXES = st.lists(st.tuples(BOX, BOX, FITS), min_size=1, max_size=8)


@given(SIDE, SIDE, BOXES)
def test_each_level_can_be_made_of_the_one_before_whatever_the_boxes(
    width: int, height: int, boxes: list[tuple[int, int, Fit]]
) -> None:
    """No side of it is longer: nothing is stretched, and a JPEG is decoded for the first."""
    sizes = [level.size for level in levels(Size(width, height), starmap(spec, boxes))]

    assert sizes[0] == (max(size.width for size in sizes), max(size.height for size in sizes))
    assert all(
        before.width >= after.width and before.height >= after.height
        for before, after in pairwise(sizes)
    )


def test_a_small_source_has_one_level_for_all_it_is_too_small_for() -> None:
    planned = levels(Size(300, 200), RECIPES["default"].variants)

    assert [(300, 200), (200, 133)] == [level.size for level in planned]
