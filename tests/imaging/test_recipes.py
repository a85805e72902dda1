from __future__ import annotations

import dataclasses

import pytest

from imagefleet.imaging.recipes import Fit, Recipe, VariantSpec
from imagefleet.jobs.images import ImageFormat
from tests.support.recipes import RECIPES

THUMB = VariantSpec("thumb", 200, 200, ImageFormat.WEBP, 80)


def test_the_default_recipe_makes_four_sizes_and_a_square_in_two_formats() -> None:
    made = {(v.name, v.width, v.height, v.fit, v.format) for v in RECIPES["default"].variants}

    formats = (ImageFormat.WEBP, ImageFormat.JPEG)
    sides = {"thumb": 200, "small": 640, "medium": 1280, "large": 1920}
    scaled = {(name, side, side, Fit.INSIDE, f) for name, side in sides.items() for f in formats}
    assert scaled | {("square", 200, 200, Fit.COVER, form) for form in formats} == made


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
