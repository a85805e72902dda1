"""What a variant shows of a picture that is scaled already."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageChops

from imagefleet.imaging.composing import compose
from imagefleet.imaging.recipes import Fit, Recipe, VariantSpec
from imagefleet.jobs.images import Caveat, Focal, ImageFormat
from tests.imaging.rendering import one, picture_of, rendered
from tests.support.images import opened, pixel, quadrants, saved, translucent

BROWN = "#7a4b12"


def spec(fit: Fit = Fit.INSIDE, width: int = 60, height: int = 60, **more: object) -> VariantSpec:
    return VariantSpec("any", width, height, ImageFormat.PNG, 80, fit, **more)  # type: ignore[arg-type]


def numbered(width: int, height: int) -> Image.Image:
    """Each pixel says where it is."""
    xs, ys = (Image.new("L", (width, height)) for _ in range(2))
    xs.putdata([x % 256 for _ in range(height) for x in range(width)])
    ys.putdata([y % 256 for y in range(height) for _ in range(width)])
    return Image.merge("RGB", (xs, ys, Image.new("L", (width, height))))


@given(st.integers(1, 200), st.integers(1, 200), st.floats(0, 1), st.floats(0, 1))
def test_cover_keeps_the_focal_point(width: int, height: int, x: float, y: float) -> None:
    shown = compose(numbered(width, height), spec(Fit.COVER), Focal(x, y))

    point = (x * width, y * height)
    first, last = pixel(shown, 0, 0), pixel(shown, shown.width - 1, shown.height - 1)
    assert all(a <= at <= b + 1 for a, at, b in zip(first[:2], point, last[:2], strict=True))


def test_the_focal_point_is_of_the_picture_as_it_is_seen() -> None:
    """Of one that lies on its side in its file, too."""
    stored = quadrants(400, 200).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6
    recipe = one(fit=Fit.COVER, width=40, height=40)

    right = picture_of(saved(stored, exif=exif), recipe, Focal(0.9, 0.5))
    left = picture_of(saved(stored, exif=exif), recipe, Focal(0.1, 0.5))

    assert pixel(right, 20, 5)[1] > 150 > pixel(right, 20, 5)[0]  # green above, yellow below
    assert pixel(right, 20, 35)[0] > 200
    assert pixel(left, 20, 5)[0] > 200 > pixel(left, 20, 5)[1]  # red above, blue below
    assert pixel(left, 20, 35)[2] > 150


def test_margins_are_on_two_sides_and_the_picture_is_whole_between_them() -> None:
    picture = numbered(60, 20)

    shown = compose(picture, spec(Fit.PAD, background=BROWN))

    assert ("RGB", (60, 60)) == (shown.mode, shown.size)
    assert picture.tobytes() == shown.crop((0, 20, 60, 40)).tobytes()
    for margin in (shown.crop((0, 0, 60, 20)), shown.crop((0, 40, 60, 60))):
        assert [(1200, (0x7A, 0x4B, 0x12))] == margin.getcolors()


@pytest.mark.parametrize("fit", [Fit.PAD, Fit.CONTAIN])
def test_margins_without_a_background_are_transparent(fit: Fit) -> None:
    for mode, expected in (("RGB", "RGBA"), ("RGBA", "RGBA"), ("L", "LA"), ("LA", "LA")):
        shown = compose(Image.new(mode, (60, 20), "white"), spec(fit))

        assert (expected, (60, 60)) == (shown.mode, shown.size)
        alpha = shown.getchannel("A")
        assert (0, 20, 60, 40) == alpha.getbbox()
        assert (255, 255) == alpha.crop((0, 20, 60, 40)).getextrema()


def test_a_small_source_is_padded_to_a_small_canvas_and_contained_in_a_large_one() -> None:
    source = saved(quadrants(30, 20), "PNG")

    padded, contained = (
        picture_of(source, one(fit=fit, width=90, height=90)) for fit in (Fit.PAD, Fit.CONTAIN)
    )

    assert ((30, 30), (90, 90)) == (padded.size, contained.size)


@pytest.mark.parametrize("form", [ImageFormat.PNG, ImageFormat.WEBP, ImageFormat.JPEG])
def test_the_background_is_behind_what_is_transparent_in_every_format(form: ImageFormat) -> None:
    result, outputs = rendered(saved(translucent(), "PNG"), one(form, background=BROWN))

    shown = opened(outputs["only", form])
    assert not shown.has_transparency_data
    assert all(
        abs(a - b) <= 6 for a, b in zip((0x7A, 0x4B, 0x12), pixel(shown, 60, 20), strict=True)
    )
    assert pixel(shown, 4, 20)[0] > 200
    assert Caveat.ALPHA_FLATTENED not in result.variants[0].warnings


def test_a_half_transparent_colour_is_mixed_with_the_background() -> None:
    shown = compose(Image.new("RGBA", (60, 60), (200, 0, 0, 128)), spec(background="#000064"))

    assert (100, 0, 50) == pixel(shown, 30, 30)


def test_a_grey_picture_stays_grey_on_grey_and_not_on_colour() -> None:
    grey = Image.new("LA", (60, 20), (80, 255))

    assert "L" == compose(grey, spec(Fit.PAD, background="#f0f0f0")).mode
    coloured = compose(grey, spec(Fit.PAD, background=BROWN))
    assert ("RGB", (0x7A, 0x4B, 0x12)) == (coloured.mode, pixel(coloured, 0, 0))


def soft_edge(mode: str = "RGB") -> Image.Image:
    step = Image.new("L", (60, 60), 60)
    step.paste(180, (30, 0, 60, 60))
    blurred = step.resize((20, 20), Image.Resampling.BOX).resize((60, 60), Image.Resampling.BICUBIC)
    return blurred.convert(mode)


def steepest(picture: Image.Image) -> int:
    row = picture.convert("L").crop((0, 30, picture.width, 31)).tobytes()
    return max(abs(after - before) for before, after in itertools.pairwise(row))


def test_sharpening_makes_edges_steeper_the_more_is_asked_for() -> None:
    picture = soft_edge()

    strengths = (0.0, 0.3, 1.0)
    steps = [steepest(compose(picture, spec(sharpen=strength))) for strength in strengths]

    assert steps == sorted(set(steps))


def test_what_was_not_scaled_is_not_sharpened() -> None:
    source, sharp = saved(soft_edge(), "PNG"), one(ImageFormat.PNG, sharpen=1.0)
    as_large, smaller = one(ImageFormat.PNG), one(ImageFormat.PNG, width=40, height=40)

    assert picture_of(source, as_large).tobytes() == picture_of(source, sharp).tobytes()
    sharper = one(ImageFormat.PNG, width=40, height=40, sharpen=1.0)
    assert steepest(picture_of(source, smaller)) < steepest(picture_of(source, sharper))


def test_variants_that_would_differ_in_sharpness_alone_are_one_where_nothing_is_scaled() -> None:
    boxes = (spec(width=90), spec(width=90, sharpen=0.5))
    named = (replace(box, name=name) for box, name in zip(boxes, ("soft", "sharp"), strict=True))
    recipe = Recipe("both", tuple(named))

    as_large, _ = rendered(saved(soft_edge(), "PNG"), recipe)
    larger, _ = rendered(saved(soft_edge().resize((120, 120)), "PNG"), recipe)

    assert [None, "soft"] == [made.same_as for made in as_large.variants]
    assert [None, None] == [made.same_as for made in larger.variants]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_sharpening_leaves_transparency_and_what_is_near_it_as_they_are(mode: str) -> None:
    """Colours under transparency are black, and would be drawn around everything."""
    picture = soft_edge(mode)
    disc = Image.new("L", (60, 60), 0)
    disc.paste(255, (10, 10, 50, 50))
    disc.paste(128, (10, 10, 12, 50))
    picture.paste(Image.new(mode, (60, 60)), mask=ImageChops.invert(disc))
    picture.putalpha(disc)

    shown = compose(picture, spec(sharpen=1.0))

    assert picture.getchannel("A").tobytes() == shown.getchannel("A").tobytes()
    difference = ImageChops.difference(shown.convert("RGB"), picture.convert("RGB")).getbbox()
    assert difference is not None
    left, top, right, bottom = difference
    assert min(left - 15, top - 13, 47 - right, 47 - bottom) >= 0
