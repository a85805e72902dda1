"""What variants look like, by eye's distance: no more than 4 levels in the mean, 16 in any block.

Where it can be said by other means than ours what a variant has to show (which side is up, what is
cut off, which colours a mode has), Pillow's own ImageOps says it. The rest is held to pictures in
golden/, which `make golden` writes and somebody has looked at.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from functools import partial

import pytest
from PIL import Image, ImageChops, ImageFilter, ImageOps

from imagefleet.imaging.recipes import Fit, Focus, Place, Recipe, Watermark
from imagefleet.jobs.images import Focal, ImageFormat
from tests.imaging.likeness import BLOCK, distance
from tests.imaging.rendering import one, picture_of
from tests.imaging.scenes import GOLDEN, PHOTOS, badge, landscape, photo, see_through
from tests.support.golden import Golden
from tests.support.images import as_a_camera_stores, saved

MEAN, WORST = 4.0, 16.0
OUT = [ImageFormat.JPEG, ImageFormat.WEBP, ImageFormat.AVIF, ImageFormat.PNG]
Draw = Callable[[], Image.Image]
SCENES: dict[str, Draw] = {
    "landscape": landscape,
    **{name: partial(photo, name) for name in PHOTOS},
}
HALF = (120, 80)


def assert_alike(expected: Image.Image, actual: Image.Image) -> None:
    assert expected.size == actual.size
    mean, worst = distance(expected, actual)
    assert mean <= MEAN, f"{mean:.1f} levels apart in the mean"
    assert worst <= WORST, f"a block of {BLOCK} pixels is {worst:.1f} levels apart"


def png(**options: object) -> Recipe:
    return one(ImageFormat.PNG, **{"width": HALF[0], "height": HALF[1], **options})


# What can be said by other means.


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(240, 160), (120, 80), (60, 40)])
def test_every_orientation_comes_out_upright(
    form: str, orientation: int, size: tuple[int, int]
) -> None:
    source = as_a_camera_stores(orientation, landscape(), form)

    shown = picture_of(source, png(width=size[0], height=size[1]))

    assert_alike(landscape().resize(size, Image.Resampling.BOX), shown)


BOXES = [(80, 80), (120, 50), (50, 120), (110, 110), (31, 77)]


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("fit", [Fit.INSIDE, Fit.CONTAIN, Fit.PAD])
def test_a_whole_picture_lies_where_pillows_own_would(
    fit: Fit, box: tuple[int, int], scene: str
) -> None:
    picture = SCENES[scene]()
    if fit is Fit.INSIDE:
        expected = ImageOps.contain(picture, box)
    else:  # of a margin of an odd number, the smaller half comes first
        expected = ImageOps.pad(picture, box, color="#406080", centering=(0.499, 0.499))

    recipe = png(fit=fit, width=box[0], height=box[1], background="#406080")

    assert_alike(expected, picture_of(saved(picture, "PNG"), recipe))


def cut_first(
    picture: Image.Image, box: tuple[int, int], focal: Focal, aside: float
) -> Image.Image:
    """Cut in the source, to parts of a pixel, and scaled then: the other way round."""
    part = min(picture.width / box[0], picture.height / box[1])
    left, top = (
        min(max(0, length * share + (aside - side / 2) * part), length - side * part)
        for length, share, side in zip(picture.size, focal, box, strict=True)
    )
    window = (left, top, left + box[0] * part, top + box[1] * part)
    return picture.resize(box, Image.Resampling.LANCZOS, box=window)


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("x", [0, 0.3, 0.5, 0.84, 1])
@pytest.mark.parametrize("y", [0, 0.6, 1])
def test_a_focal_point_is_in_the_middle_where_that_can_be(
    scene: str, box: tuple[int, int], x: float, y: float
) -> None:
    """To half a pixel, as whole ones are cut; so much shows in a small photo."""
    picture, recipe = SCENES[scene](), png(fit=Fit.COVER, width=box[0], height=box[1])

    shown = picture_of(saved(picture, "PNG"), recipe, Focal(x, y))

    asides = (n / 8 for n in range(-4, 5))
    near = (cut_first(picture, box, Focal(x, y), aside) for aside in asides)
    assert_alike(min(near, key=partial(distance, shown)), shown)


@pytest.mark.parametrize("scene", SCENES)
def test_without_a_focal_point_the_middle_is_kept(scene: str) -> None:
    source, recipe = saved(SCENES[scene](), "PNG"), png(fit=Fit.COVER, width=80)

    assert_alike(picture_of(source, recipe, Focal(0.5, 0.5)), picture_of(source, recipe))


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("form", OUT)
def test_every_format_shows_the_same(form: ImageFormat, scene: str) -> None:
    picture = SCENES[scene]()

    shown = picture_of(saved(picture, "PNG"), one(form, width=120, height=120, quality=90))

    assert_alike(ImageOps.contain(picture, (120, 120)), shown)


def on_white(picture: Image.Image) -> Image.Image:
    paper = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(paper, picture.convert("RGBA")).convert("RGB")


def deep_grey(picture: Image.Image) -> Image.Image:
    grey = picture.convert("L").convert("I").point(lambda level: level * 257)
    return grey.convert("I;16")


MODES: dict[str, tuple[Callable[[Image.Image], Image.Image], str]] = {
    "L": (lambda scene: scene.convert("L"), "PNG"),
    "LA": (lambda scene: see_through(scene).convert("LA"), "PNG"),
    "P": (lambda scene: scene.quantize(128), "PNG"),
    "P transparent": (lambda scene: see_through(scene).quantize(128), "PNG"),
    "RGB": (lambda scene: scene, "PNG"),
    "RGBA": (see_through, "PNG"),
    "RGBA webp": (see_through, "WEBP"),
    "CMYK": (lambda scene: scene.convert("CMYK"), "JPEG"),
    "L jpeg": (lambda scene: scene.convert("L"), "JPEG"),
    "16 bit": (deep_grey, "PNG"),
    "1": (lambda scene: scene.convert("1", dither=Image.Dither.NONE), "PNG"),
}


@pytest.mark.parametrize("form", OUT)
@pytest.mark.parametrize("mode", MODES)
def test_every_colour_mode_keeps_its_colours(mode: str, form: ImageFormat) -> None:
    """At its full size, so that nothing but the mode is at work."""
    made, kind = MODES[mode]
    picture = made(landscape())
    options = {"lossless": True} if kind == "WEBP" else {}
    seen = landscape().convert("L") if mode == "16 bit" else picture.convert("RGBA")

    shown = picture_of(
        saved(picture, kind, **options), one(form, width=240, height=160, quality=90)
    )

    assert_alike(on_white(seen) if form is ImageFormat.JPEG else seen, shown)


# What somebody has looked at.

MARK = base64.b64encode(saved(badge(), "PNG")).decode()
MARKED: dict[str, dict[str, object]] = {
    **{f"mark-{place}": {"watermark": Watermark(MARK, place, 0.3)} for place in Place},
    "mark-tile": {"watermark": Watermark(MARK, scale=0.2, opacity=0.4, tile=True)},
    "mark-faint": {"watermark": Watermark(MARK, Place.CENTRE, 0.8, opacity=0.3)},
    "mark-large": {"watermark": Watermark(MARK, Place.CENTRE, 1.0)},
}
FITTED: dict[str, dict[str, object]] = {
    "inside": {},
    "cover": {"fit": Fit.COVER, "width": 80},
    "contain": {"fit": Fit.CONTAIN, "width": 80},
    "pad-background": {"fit": Fit.PAD, "width": 80, "background": "#c04030"},
}
LOOKED_AT: dict[str, tuple[Draw, dict[str, object]]] = {
    **{f"landscape-{name}": (landscape, options) for name, options in (FITTED | MARKED).items()},
    **{
        f"small-{fit}": (partial(landscape, 90, 60), {"fit": fit, "width": 120, "height": 120})
        for fit in Fit
    },
    "grey-mark": (lambda: landscape().convert("L"), dict(MARKED["mark-bottom-right"])),
    "clear-mark": (lambda: see_through(landscape()), dict(MARKED["mark-top-left"])),
    "clear-sharpen": (lambda: see_through(landscape()), {"sharpen": 1.0}),
    "clear-background": (lambda: see_through(landscape()), {"background": "#c04030"}),
    "clear-pad": (lambda: see_through(landscape()), {"fit": Fit.PAD, "width": 80}),
    **{
        f"{name}-attention": (
            SCENES[name],
            {"fit": Fit.COVER, "width": 60, "height": 60, "focus": Focus.ATTENTION},
        )
        for name in PHOTOS
    },
    **{
        f"cat-sharpen-{strength}": (
            SCENES["cat"],
            {"width": 60, "height": 60, "sharpen": strength},
        )
        for strength in (0.0, 0.5, 1.0)
    },
}


def kept(name: str) -> Image.Image:
    with Image.open(GOLDEN / f"{name}.webp") as picture:
        return picture.convert("RGBA")


@pytest.mark.parametrize("name", LOOKED_AT)
def test_it_looks_as_somebody_saw_it(name: str, golden: Golden) -> None:
    draw, options = LOOKED_AT[name]

    shown = picture_of(saved(draw(), "PNG"), png(**options))

    if golden.writes:
        shown.save(GOLDEN / f"{name}.webp", lossless=True, exact=False, quality=100, method=6)
    assert_alike(kept(name), shown)


def test_no_picture_is_kept_that_nothing_is_held_to() -> None:
    assert {*LOOKED_AT} == {file.stem for file in GOLDEN.glob("*.webp")}
    assert {*PHOTOS} == {file.stem for file in GOLDEN.glob("*.jpg")}


def test_no_two_of_them_are_alike() -> None:
    """Else one could be taken for the other, and an option for none."""
    pictures = {name: kept(name) for name in LOOKED_AT}

    for (one_name, one_picture), (other_name, other) in itertools.combinations(pictures.items(), 2):
        if one_picture.size == other.size:
            mean, worst = distance(one_picture, other)
            assert mean > MEAN or worst > WORST, f"{one_name} looks like {other_name}"


# Mistakes are seen.


def swapped(picture: Image.Image) -> Image.Image:
    red, green, blue = picture.split()
    return Image.merge("RGB", (blue, green, red))


MISTAKES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "cut three pixels to the side": lambda shown: ImageChops.offset(shown, 3, 0),
    "mirrored": ImageOps.mirror,
    "upside down": ImageOps.flip,
    "red for blue": swapped,
    "no colours": lambda shown: shown.convert("L"),
    "blurred": lambda shown: shown.filter(ImageFilter.GaussianBlur(3)),
    "a twentieth darker": lambda shown: shown.point(lambda level: level * 19 // 20),
    "a block lost": lambda shown: ImageChops.composite(
        Image.new("RGB", shown.size), shown, corner_of(shown.size)
    ),
    "half as opaque": lambda shown: Image.merge(
        "RGBA", (*shown.split(), Image.new("L", shown.size, 128))
    ),
}


def corner_of(size: tuple[int, int]) -> Image.Image:
    mask = Image.new("L", size)
    mask.paste(255, (0, 0, BLOCK, BLOCK))
    return mask


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_not_as_it_should_be_is_noticed(mistake: str, scene: str) -> None:
    picture = ImageOps.fit(SCENES[scene](), (80, 80))

    with pytest.raises(AssertionError, match="levels apart"):
        assert_alike(picture, MISTAKES[mistake](picture))
