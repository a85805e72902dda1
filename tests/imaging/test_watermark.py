"""A mark over a variant: where, how large, how strong; and whose fault it is."""

from __future__ import annotations

import base64

import pytest
from PIL import Image, ImageChops

from imagefleet.errors import Misconfigured
from imagefleet.imaging.composing import marked
from imagefleet.imaging.recipes import Place, Watermark
from imagefleet.jobs.images import ImageFormat
from tests.imaging.rendering import one, picture_of, rendered
from tests.support.images import pixel, png_claiming, quadrants, saved, translucent

GROUND = Image.new("RGB", (200, 100), (90, 90, 90))


def of(picture: Image.Image, **more: object) -> Watermark:
    image = base64.b64encode(saved(picture, "PNG")).decode()
    return Watermark(image, **more)  # type: ignore[arg-type]


WHITE = Image.new("RGB", (40, 20), "white")


def changed(shown: Image.Image, ground: Image.Image = GROUND) -> tuple[int, int, int, int]:
    box = ImageChops.difference(shown, ground).getbbox()
    assert box is not None
    return box


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Place.TOP_LEFT, (2, 2, 42, 22)),
        (Place.TOP, (80, 2, 120, 22)),
        (Place.TOP_RIGHT, (158, 2, 198, 22)),
        (Place.LEFT, (2, 40, 42, 60)),
        (Place.CENTRE, (80, 40, 120, 60)),
        (Place.RIGHT, (158, 40, 198, 60)),
        (Place.BOTTOM_LEFT, (2, 78, 42, 98)),
        (Place.BOTTOM, (80, 78, 120, 98)),
        (Place.BOTTOM_RIGHT, (158, 78, 198, 98)),
    ],
)
def test_a_mark_is_where_it_is_said_to_be(
    place: Place, expected: tuple[int, int, int, int]
) -> None:
    assert expected == changed(marked(GROUND, of(WHITE, place=place)))


@pytest.mark.parametrize(
    ("picture", "mark", "scale", "expected"),
    [
        ((200, 100), (40, 20), 0.5, (100, 50)),
        ((200, 100), (400, 200), 0.1, (20, 10)),
        ((200, 100), (20, 40), 0.5, (50, 100)),  # no higher than the picture
        ((200, 100), (40, 20), 1.0, (200, 100)),
        ((200, 100), (1000, 1), 0.1, (20, 1)),
        ((1, 1), (40, 20), 0.2, (1, 1)),
    ],
)
def test_a_mark_is_a_share_of_the_pictures_width_and_never_beyond_it(
    picture: tuple[int, int], mark: tuple[int, int], scale: float, expected: tuple[int, int]
) -> None:
    ground = Image.new("RGB", picture, (90, 90, 90))

    left, top, right, bottom = changed(
        marked(ground, of(Image.new("RGB", mark, "white"), scale=scale)), ground
    )

    assert expected == (right - left, bottom - top)


def test_opacity_is_how_much_of_the_mark_is_seen() -> None:
    shown = marked(GROUND, of(WHITE, place=Place.CENTRE, opacity=0.4))

    assert (156, 156, 156) == pixel(shown, 100, 50)
    assert (90, 90, 90) == pixel(shown, 10, 10)


def test_what_is_transparent_in_a_mark_is_not_seen() -> None:
    shown = marked(GROUND, of(translucent(40, 20), place=Place.CENTRE))

    assert (80, 40, 100, 60) == changed(shown)


def test_tiles_are_all_over_the_picture() -> None:
    shown = marked(GROUND, of(WHITE, tile=True, place=Place.CENTRE))

    assert (2, 2, 200, 100) == changed(shown)
    assert [(255,) * 3, (90,) * 3, (255,) * 3] == [pixel(shown, x, 10) for x in (41, 42, 44)]
    assert [(255,) * 3, (90,) * 3, (255,) * 3] == [pixel(shown, 10, y) for y in (21, 22, 24)]


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_a_grey_picture_has_colours_afterwards_if_the_mark_has(mode: str) -> None:
    ground = Image.new(mode, (200, 100), "black")

    assert mode == marked(ground, of(WHITE)).mode
    assert mode == marked(ground, of(WHITE.convert("L"))).mode
    coloured = marked(ground, of(quadrants(40, 20)))
    assert mode.replace("L", "RGB") == coloured.mode
    assert pixel(coloured, 162, 82)[0] > 200 > pixel(coloured, 162, 82)[1]


@pytest.mark.parametrize(
    "mark",
    [
        quadrants(40, 20).convert("P"),
        Image.new("1", (40, 20), 1),
        Image.new("I;16", (40, 20), 65_535),
        Image.new("LA", (40, 20), (255, 255)),
    ],
    ids=lambda mark: mark.mode,
)
def test_a_mark_may_be_of_any_mode(mark: Image.Image) -> None:
    assert (158, 78, 198, 98) == changed(marked(GROUND, of(mark)))


def test_a_mark_shows_on_what_is_transparent() -> None:
    shown = marked(Image.new("RGBA", (200, 100)), of(WHITE, place=Place.CENTRE))

    assert (80, 40, 120, 60) == shown.getchannel("A").getbbox()


def test_the_picture_itself_stays_as_it_is() -> None:
    before = GROUND.tobytes()
    marked(GROUND, of(WHITE, tile=True))

    assert before == GROUND.tobytes()


def test_every_variant_gets_the_mark_at_its_own_size() -> None:
    recipe = one(ImageFormat.PNG, watermark=of(WHITE, place=Place.TOP_LEFT, scale=0.5))

    shown = picture_of(saved(Image.new("RGB", (320, 200), "black"), "PNG"), recipe)

    assert (2, 2, 82, 42) == shown.getbbox()


@pytest.mark.parametrize(
    "image",
    [
        "not base64!",
        base64.b64encode(b"nothing that anybody reads").decode(),
        base64.b64encode(saved(WHITE, "PNG")[:60]).decode(),
        base64.b64encode(png_claiming(30_000, 30_000)).decode(),
    ],
    ids=["characters", "no picture", "half a picture", "too large"],
)
def test_a_mark_that_cannot_be_read_is_never_the_pictures_fault(image: str) -> None:
    with pytest.raises(Misconfigured, match="watermark"):
        rendered(saved(quadrants()), one(watermark=Watermark(image)))
