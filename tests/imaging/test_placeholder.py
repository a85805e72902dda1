from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageStat

from imagefleet.imaging.placeholder import dominant_color, picture, thumbhash

# Made by the algorithm's own JavaScript (npm thumbhash 0.1.1) from the pictures of `pattern`.
VECTORS: dict[str, str] = json.loads(
    Path(__file__).with_name("thumbhash_vectors.json").read_text("utf-8")
)


def pattern(name: str) -> tuple[int, int, bytes]:
    """The picture a vector is named after, WIDTHxHEIGHT-KIND: slopes under noise.

    Regular pictures have waves of exactly nothing, whose rounding no two implementations share.
    """
    size, kind = name.split("-")
    width, height = map(int, size.split("x"))
    noise = iter(random.Random(name).randbytes(width * height * 4))
    rgba = bytearray()
    for y in range(height):
        for x in range(width):
            across, down = 255 * x // width, 255 * y // height
            slopes = (across, 255 - down, (across + down) // 2)
            rgba += bytes((slope + next(noise)) // 2 for slope in slopes)
            grain = next(noise)
            rgba.append(
                {"opaque": 255, "fade": (across + grain) // 2, "hole": 255 * (grain > down)}[kind]
            )
    return width, height, bytes(rgba)


@pytest.mark.parametrize("name", VECTORS)
def test_a_hash_is_the_one_the_reference_makes(name: str) -> None:
    assert VECTORS[name] == thumbhash(*pattern(name)).hex()


def test_a_plain_area_leaves_no_noise_in_the_hash() -> None:
    plain = thumbhash(32, 24, bytes((40, 90, 160, 255)) * 32 * 24)

    assert plain[5:] == bytes(len(plain) - 5)


def test_a_fully_transparent_picture_has_a_hash() -> None:
    assert len(thumbhash(8, 8, bytes(8 * 8 * 4))) > 5


@given(st.integers(1, 40), st.integers(1, 40), st.binary(min_size=4, max_size=16))
def test_any_picture_has_a_short_hash(width: int, height: int, seed: bytes) -> None:
    rgba = (seed * (width * height))[: width * height * 4]

    assert 5 < len(thumbhash(width, height, rgba)) <= 30


@pytest.mark.parametrize(("width", "height", "size"), [(101, 1, 404), (2, 2, 15)])
def test_a_picture_of_the_wrong_size_is_a_mistake_of_the_caller(
    width: int, height: int, size: int
) -> None:
    with pytest.raises(ValueError, match="pixels"):
        thumbhash(width, height, bytes(size))


def test_the_dominant_colour_is_that_of_the_largest_area_not_the_average() -> None:
    rgba = bytes((200, 20, 30, 255)) * 60 + bytes((10, 10, 240, 255)) * 40

    assert dominant_color(rgba) == "#c8141e"


def test_what_is_transparent_does_not_count_as_colour() -> None:
    rgba = bytes((200, 20, 30, 255)) * 10 + bytes((10, 10, 240, 0)) * 90

    assert dominant_color(rgba) == "#c8141e"
    assert dominant_color(bytes(400)) == "#ffffff"


def test_a_tie_between_colours_always_goes_the_same_way() -> None:
    one, other = bytes((200, 20, 30, 255)) * 8, bytes((10, 10, 240, 255)) * 8

    assert dominant_color(one + other) == dominant_color(other + one)


LONGEST_TOLD = 7  # times as long as wide is the most that a hash has words for


@pytest.mark.parametrize("name", VECTORS)
def test_a_hash_is_drawn_as_what_it_was_made_of(name: str) -> None:
    """As near as 25 bytes can be: the average of each colour, and where it is transparent."""
    width, height, rgba = pattern(name)
    with Image.open(io.BytesIO(picture(bytes.fromhex(VECTORS[name])))) as drawn:
        assert max(drawn.size) == 16
        told = min(max(width / height, 1 / LONGEST_TOLD), LONGEST_TOLD)
        assert drawn.width / drawn.height == pytest.approx(told, rel=0.25)
        means = ImageStat.Stat(drawn).mean
    expected = ImageStat.Stat(Image.frombytes("RGBA", (width, height), rgba)).mean
    if name.endswith("opaque"):
        assert means == pytest.approx(expected, abs=12)
    else:
        assert means[3] == pytest.approx(expected[3], abs=64)


def test_a_slope_is_drawn_as_one() -> None:
    rgba = b"".join(bytes((8 * x, 128, 255 - 8 * x, 255)) for _ in range(32) for x in range(32))
    with Image.open(io.BytesIO(picture(thumbhash(32, 32, rgba)))) as drawn:
        left, right = drawn.getpixel((1, 8)), drawn.getpixel((14, 8))
    assert isinstance(left, tuple)
    assert isinstance(right, tuple)
    assert right[0] - left[0] > 130
    assert left[2] - right[2] > 130


@given(st.binary(max_size=60))
def test_whatever_claims_to_be_a_hash_is_a_picture_or_refused(claimed: bytes) -> None:
    try:
        drawn = picture(claimed)
    except ValueError:
        return
    with Image.open(io.BytesIO(drawn)) as image:
        image.load()
        assert max(image.size) <= 16
