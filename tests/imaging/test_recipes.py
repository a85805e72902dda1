from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.imaging.recipes import (
    RECIPES,
    Fit,
    Recipe,
    Size,
    VariantSpec,
    cropped,
    levels,
    scaled,
    too_small,
)
from imagefleet.jobs.images import ImageFormat

THUMB = VariantSpec("thumb", 200, 200, ImageFormat.WEBP, 80)


def test_the_default_recipe_makes_four_sizes_in_two_formats() -> None:
    made = {(spec.name, spec.width, spec.format) for spec in RECIPES["default"].variants}

    sides = {"thumb": 200, "small": 640, "medium": 1280, "large": 1920}
    formats = (ImageFormat.WEBP, ImageFormat.JPEG)
    assert {(name, side, form) for name, side in sides.items() for form in formats} == made


def test_a_recipe_with_avif_is_slow_and_others_are_not() -> None:
    assert {"avif"} == {recipe.name for recipe in RECIPES.values() if recipe.slow}


def test_hashes_are_what_the_ledger_remembers() -> None:
    """They change with the recipes, their encoders' options and the pipeline's version alone.

    If this fails and none of those was meant to change, variants would be made again for nothing.
    """
    expected = {
        "default": "77e39f7774738cf379ba64dc1b3a30b6",
        "avif": "45500ba4f680451d5b7aa8ea0bd4f413",
    }

    assert expected == {name: recipe.hash for name, recipe in RECIPES.items()}


@pytest.mark.parametrize(
    "change",
    [
        {"width": 201},
        {"height": 201},
        {"quality": 81},
        {"fit": Fit.COVER},
        {"format": ImageFormat.JPEG},
        {"name": "tiny"},
    ],
)
def test_any_change_to_a_variant_changes_the_hash(change: dict[str, object]) -> None:
    changed = dataclasses.replace(THUMB, **change)  # type: ignore[arg-type]

    assert Recipe("a", (THUMB,)).hash != Recipe("a", (changed,)).hash


def test_a_recipes_name_is_not_part_of_its_hash() -> None:
    assert Recipe("a", (THUMB,)).hash == Recipe("b", (THUMB,)).hash


def test_a_recipe_needs_variants_that_differ_in_name_or_format() -> None:
    with pytest.raises(ValueError, match="recipe x"):
        Recipe("x", ())
    with pytest.raises(ValueError, match="recipe x"):
        Recipe("x", (THUMB, dataclasses.replace(THUMB, width=300)))


@pytest.mark.parametrize(
    ("width", "height", "image_format"),
    [(0, 10, ImageFormat.JPEG), (10, 20_000, ImageFormat.WEBP), (10, 10, ImageFormat.GIF)],
)
def test_a_variant_that_cannot_be_made_cannot_be_written_down(
    width: int, height: int, image_format: ImageFormat
) -> None:
    with pytest.raises(ValueError, match="bad"):
        VariantSpec("bad", width, height, image_format, 80)


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
