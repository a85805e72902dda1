"""What is drawn is told from what is photographed, and few colours are stored as they are."""

from __future__ import annotations

import random
from functools import cache

import pytest
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from imagefleet.imaging.graphics import carried, indexed, is_drawn, simplest, without_hidden
from imagefleet.jobs.images import ImageFormat
from tests.support.images import grain

PNG, JPEG = ImageFormat.PNG, ImageFormat.JPEG


def page(width: int = 600, height: int = 400) -> Image.Image:
    """Letters, a chart and a button, with soft edges as a browser draws them."""
    picture = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(picture)
    for line in range(4):
        draw.text((20, 20 + 30 * line), "Read me first, 1234", "navy", ImageFont.load_default(20))
    for bar in range(6):
        draw.rectangle(
            (300 + 40 * bar, 380 - 40 * bar, 330 + 40 * bar, 380), fill=(200, 40 * bar, 30)
        )
    draw.rounded_rectangle((20, 250, 200, 320), 20, fill=(10, 120, 80), outline="black", width=3)
    return picture


def photo(width: int = 600, height: int = 400) -> Image.Image:
    """Smooth light with a sensor's noise over it; the same one every time."""
    return _photo(width, height).copy()


@cache
def _photo(width: int, height: int) -> Image.Image:
    light = Image.radial_gradient("L").resize((width, height))
    bands = [Image.blend(light, each, 0.1) for each in grain(width, height).split()]
    return Image.merge("RGB", bands)


def on_white(picture: Image.Image) -> Image.Image:
    """In the middle of a white page three times as wide, as a shop shows what it sells."""
    sheet = Image.new("RGB", (3 * picture.width, 3 * picture.height), "white")
    sheet.paste(picture, picture.size)
    return sheet


def cut_out(picture: Image.Image) -> Image.Image:
    """With nothing around a disc of it."""
    mask = Image.new("L", picture.size)
    ImageDraw.Draw(mask).ellipse((50, 50, 250, 250), fill=255)
    picture.putalpha(mask)
    return picture


@pytest.mark.parametrize(
    "picture",
    [
        page(),
        page().convert("L"),
        cut_out(page()),
        page().quantize(8).convert("RGB"),
        photo().convert("P").convert("RGB"),  # dithered
        photo(20, 12),  # an icon
        photo(13, 50),  # several, in a strip
        Image.new("RGB", (4000, 1), "red"),
        Image.new("L", (1, 4000)),
    ],
    ids=["page", "grey", "transparent", "palette", "dithered", "icon", "strip", "flat", "thin"],
)
def test_what_is_drawn_is_recognised(picture: Image.Image) -> None:
    assert is_drawn(picture, PNG)


@pytest.mark.parametrize(
    "picture",
    [
        photo(),
        photo().convert("L"),
        on_white(photo(200, 200)),
        on_white(grain(200, 200)),
        cut_out(photo()),
        photo().filter(ImageFilter.GaussianBlur(3)),
        Image.radial_gradient("L"),
        photo().quantize(256, dither=Image.Dither.NONE).convert("RGB"),
        photo().point(lambda level: level & 0xF0),
    ],
    ids=[
        *("photo", "grey", "on white", "grass", "cut out", "blurred", "gradient", "palette"),
        "posterised",
    ],
)
def test_a_photo_is_not_taken_for_drawn(picture: Image.Image) -> None:
    assert not is_drawn(picture, PNG)


def test_a_jpeg_is_never_taken_for_drawn() -> None:
    assert not is_drawn(page(), JPEG)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
@pytest.mark.parametrize("colours", [1, 2, 16, 17, 255, 256])
def test_a_palette_changes_no_pixel(mode: str, colours: int) -> None:
    """Among colours that differ by one level, too, which Pillow's own palettes make one."""
    chosen = random.Random(colours)
    bands = len(Image.new(mode, (1, 1)).getbands())
    wanted: set[bytes] = set()
    while len(wanted) < colours:
        wanted.add(
            bytes(
                chosen.randrange(120, 200 if bands > 1 else 256 + 120) % 256 for _ in range(bands)
            )
        )
    pixels = [*wanted, *chosen.choices([*wanted], k=32 * 32 - colours)]
    picture = Image.frombytes(mode, (32, 32), b"".join(pixels))

    few = indexed(picture)

    assert few is not None
    assert few.convert("RGBA").tobytes() == picture.convert("RGBA").tobytes()
    assert len(few.getpalette() or []) == 3 * colours


def test_more_colours_than_a_palette_has_are_no_palette() -> None:
    picture = Image.frombytes(
        "RGB", (257, 1), bytes(v for n in range(257) for v in (n % 256, n // 256, 0))
    )

    assert indexed(picture) is None
    assert [picture] == simplest(picture)


def test_colours_that_nobody_sees_are_not_stored() -> None:
    picture = Image.merge("RGBA", (*grain(40, 40).split(), Image.new("L", (40, 40), 0)))

    (few, plain) = simplest(picture)

    assert few.getpalette() == [0, 0, 0]
    assert plain.getextrema() == ((0, 0),) * len(plain.getbands())


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_what_nobody_sees_is_carried_on_from_what_is_seen_before_it(mode: str) -> None:
    picture = cut_out(photo()).convert(mode)

    filled = carried(picture)

    assert without_hidden(filled) == without_hidden(picture)
    before = b"\0" * len(filled.getbands())
    pixels, step = filled.tobytes(), len(before)
    for at in range(0, 220 * step * picture.width, step):
        if not pixels[at + step - 1]:
            assert pixels[at : at + step - 1] == before[:-1]
        before = pixels[at : at + step]
    assert carried(Image.new(mode, (3, 2))) == Image.new(mode, (3, 2))


def test_bands_that_are_alike_are_one() -> None:
    grey = grain(40, 40).getchannel(0)

    assert simplest(Image.merge("RGB", (grey,) * 3))[-1].mode == "L"
    assert simplest(Image.merge("RGBA", (grey,) * 4))[-1].mode == "LA"
    assert simplest(grain(40, 40))[-1].mode == "RGB"
