"""Where most is to be seen, of pictures that were drawn to have such a place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PIL import Image, ImageDraw

from imagefleet.imaging import attention as attending
from imagefleet.imaging.attention import attention
from imagefleet.imaging.recipes import Fit, Focus, Recipe, VariantSpec
from imagefleet.jobs.images import Focal, ImageFormat
from tests.imaging.rendering import one, picture_of, rendered
from tests.support.images import near, pixel, quadrants, saved

PLACES = [(0.15, 0.2), (0.8, 0.25), (0.5, 0.5), (0.2, 0.8), (0.85, 0.85)]
SKIN = (224, 172, 140)


def with_a_face(x: float, y: float, width: int = 320, height: int = 240) -> Image.Image:
    picture = Image.new("RGB", (width, height), (70, 90, 110))
    middle, radius = (x * width, y * height), height // 10
    box = (middle[0] - radius, middle[1] - radius, middle[0] + radius, middle[1] + radius)
    ImageDraw.Draw(picture).ellipse(box, fill=SKIN)
    return picture


def with_letters(x: float, y: float) -> Image.Image:
    picture = Image.new("RGB", (320, 240), "white")
    draw = ImageDraw.Draw(picture)
    for line in range(-20, 20, 6):
        draw.line((x * 320 - 24, y * 240 + line, x * 320 + 24, y * 240 + line), fill="black")
    return picture


@pytest.mark.parametrize("draw", [with_a_face, with_letters])
@pytest.mark.parametrize("place", PLACES)
def test_what_stands_out_is_found(
    draw: Callable[[float, float], Image.Image], place: tuple[float, float]
) -> None:
    found = attention(draw(*place))

    assert all(abs(at - was) < 0.15 for at, was in zip(found, place, strict=True))


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
@pytest.mark.parametrize("size", [(1, 1), (3, 900), (900, 3), (64, 64)])
def test_where_nothing_is_to_be_seen_it_is_the_middle(mode: str, size: tuple[int, int]) -> None:
    found = attention(Image.new(mode, size, "white"))

    assert all(abs(share - 0.5) < 0.02 for share in found)


def test_what_is_in_a_corner_has_to_stand_out_more_than_what_is_not() -> None:
    picture = with_a_face(0.55, 0.5)
    picture.paste(with_a_face(0.15, 0.185, height=260).crop((0, 0, 120, 84)))  # a little larger

    assert abs(attention(picture).x - 0.55) < 0.1


def test_what_is_transparent_is_not_looked_at() -> None:
    picture = with_a_face(0.2, 0.5).convert("RGBA")
    hidden = with_letters(0.8, 0.5).convert("RGBA")
    hidden.putalpha(0)
    picture.paste(hidden.crop((160, 0, 320, 240)), (160, 0))

    assert attention(picture).x < 0.35


def test_the_same_picture_has_the_same_point() -> None:
    picture = with_a_face(0.3, 0.6)

    assert attention(picture) == attention(picture.copy())


def test_a_variant_is_cut_around_it_if_it_says_so() -> None:
    source = saved(with_a_face(0.85, 0.5))

    attended, centred = (
        picture_of(source, one(fit=Fit.COVER, width=60, height=60, focus=focus))
        for focus in (Focus.ATTENTION, Focus.CENTRE)
    )

    assert near(SKIN, pixel(attended, 47, 30), tolerance=12)
    assert near((70, 90, 110), pixel(centred, 47, 30), tolerance=12)


def test_a_focal_point_goes_before_it() -> None:
    source = saved(with_a_face(0.85, 0.5))
    recipe = one(fit=Fit.COVER, width=60, height=60, focus=Focus.ATTENTION)

    assert near((70, 90, 110), pixel(picture_of(source, recipe, Focal(0.1, 0.5)), 47, 30), 12)


def test_all_variants_are_cut_around_one_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changes from one to the other of a dense screen sees the same."""
    looked: list[tuple[int, int]] = []

    def counting(picture: Image.Image) -> Focal:
        looked.append(picture.size)
        return attention(picture)

    monkeypatch.setattr(attending, "attention", counting)
    boxes = tuple(
        VariantSpec(f"v{side}", side, side, form, 80, Fit.COVER, focus=Focus.ATTENTION)
        for side in (40, 80)
        for form in (ImageFormat.WEBP, ImageFormat.JPEG)
    )
    rendered(saved(with_a_face(0.85, 0.5)), Recipe("boxes", boxes))
    rendered(saved(with_a_face(0.85, 0.5)), one(fit=Fit.COVER))
    rendered(saved(quadrants()), one(focus=Focus.ATTENTION))

    assert 1 == len(looked)
