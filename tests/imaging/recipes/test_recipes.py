from __future__ import annotations

import dataclasses
import json

import pytest

from imagefleet.imaging.recipes import LONGEST_MARKS, Fit, Recipe, VariantSpec, Watermark
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


def test_a_watermarks_image_is_once_in_a_document_however_many_variants_bear_it() -> None:
    first, second = (Watermark("QUJD" * 100, scale=scale) for scale in (0.1, 0.2))
    other = Watermark("REVG" * 100)
    recipe = Recipe(
        "marked",
        tuple(
            dataclasses.replace(THUMB, name=name, watermark=mark)
            for name, mark in {"a": first, "b": other, "c": second, "d": None}.items()
        ),
    )
    told = json.loads(json.dumps(recipe.document()))

    assert [first.image, other.image] == told["marks"]
    assert 1 == json.dumps(told).count(first.image)
    assert recipe == Recipe.of("marked", told)


def test_images_of_watermarks_are_short_enough_to_go_with_every_rendering() -> None:
    def bearing(*images: str) -> Recipe:
        marked = (
            dataclasses.replace(THUMB, name=f"v{n}", watermark=Watermark(image))
            for n, image in enumerate(images)
        )
        return Recipe("heavy", tuple(marked))

    half = LONGEST_MARKS // 2
    bearing("A" * half, "B" * half, "A" * half)
    with pytest.raises(ValueError, match="recipe heavy: watermarks"):
        bearing("A" * half, "B" * half, "C")
