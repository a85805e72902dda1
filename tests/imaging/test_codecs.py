from __future__ import annotations

import pytest
from PIL import Image, ImageCms

from imagefleet.imaging.codecs import to_srgb
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Recipe, VariantSpec
from imagefleet.imaging.render import render
from imagefleet.jobs.images import Caveat, ImageFormat
from tests.imaging.rendering import alpha_range
from tests.support.images import (
    ADOBE_RGB,
    DISPLAY_P3,
    Primaries,
    cmyk_profile,
    grey_profile,
    matrix_profile,
    near,
    opened,
    pixel,
    saved,
)

MIB = 2**20
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
# XYZ under D50 to linear sRGB
TO_LINEAR_SRGB = (
    (3.1338561, -1.6168667, -0.4906146),
    (-0.9787684, 1.9161415, 0.0334540),
    (0.0719453, -0.2289914, 1.4052427),
)


def expected_srgb(colour: tuple[int, ...], primaries: Primaries, gamma: float) -> list[int]:
    """What the colour is in sRGB, by arithmetic instead of by the library under test."""
    light = [(value / 255) ** gamma for value in colour]
    xyz = [sum(light[i] * primaries[i][axis] for i in range(3)) for axis in range(3)]
    linear = [sum(a * b for a, b in zip(row, xyz, strict=True)) for row in TO_LINEAR_SRGB]
    clipped = [min(max(value, 0.0), 1.0) for value in linear]
    curve = [12.92 * v if v <= 0.0031308 else 1.055 * v ** (1 / 2.4) - 0.055 for v in clipped]
    return [round(255 * value) for value in curve]


@pytest.mark.parametrize("colour", [(200, 100, 60), (40, 160, 90), (128, 128, 128), (90, 90, 210)])
@pytest.mark.parametrize("primaries", [DISPLAY_P3, ADOBE_RGB], ids=["P3", "AdobeRGB"])
def test_a_wide_gamut_colour_becomes_the_same_colour_in_srgb(
    colour: tuple[int, int, int], primaries: Primaries
) -> None:
    picture = Image.new("RGB", (8, 8), colour)

    converted, caveats = to_srgb(picture, matrix_profile(primaries), MIB)

    assert near(expected_srgb(colour, primaries, 2.2), pixel(converted, 4, 4), tolerance=2)
    assert caveats == ()


@pytest.mark.parametrize("pillow_format", ["JPEG", "PNG", "WEBP", "AVIF"])
def test_every_format_that_carries_a_profile_is_converted(pillow_format: str) -> None:
    profile, colour = matrix_profile(DISPLAY_P3), (200, 100, 60)
    source = saved(Image.new("RGB", (32, 32), colour), pillow_format, icc_profile=profile)
    recipe = Recipe("one", (VariantSpec("only", 16, 16, ImageFormat.WEBP, 95),))
    outputs: list[bytes] = []

    render(source, recipe, Limits(), lambda _name, _format, encoded: outputs.append(encoded))

    expected = expected_srgb(colour, DISPLAY_P3, 2.2)
    assert not near(colour, expected)
    assert near(expected, pixel(opened(outputs[0]), 8, 8), tolerance=5)


def test_srgb_under_any_name_is_left_alone() -> None:
    picture = Image.effect_noise((16, 16), 60).convert("RGB")

    converted, caveats = to_srgb(picture, SRGB, MIB)

    assert picture.tobytes() == converted.tobytes()
    assert caveats == ()


@pytest.mark.parametrize(
    ("mode", "colour", "profile"),
    [
        ("RGBA", (200, 100, 60, 77), matrix_profile(DISPLAY_P3)),
        ("LA", (55, 77), grey_profile(1.0)),
    ],
)
def test_alpha_passes_through_a_profile_untouched(
    mode: str, colour: tuple[int, ...], profile: bytes
) -> None:
    converted, _ = to_srgb(Image.new(mode, (8, 8), colour), profile, MIB)

    assert converted.mode == mode
    assert alpha_range(converted) == (77, 77)
    assert pixel(converted, 4, 4)[0] > colour[0]


def test_a_grey_profile_is_obeyed() -> None:
    converted, caveats = to_srgb(Image.new("L", (8, 8), 55), grey_profile(1.0), MIB)

    # 55/255 of the light is what sRGB calls 128
    assert converted.mode == "L"
    assert near((128, 128, 128), pixel(converted, 4, 4), tolerance=2)
    assert caveats == ()


def test_inks_are_converted_by_their_profile() -> None:
    """In this press cyan is a grey, which no guess would come upon."""
    converted, caveats = to_srgb(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), cmyk_profile(), MIB)

    assert converted.mode == "RGB"
    red, green, blue = pixel(converted, 4, 4)
    assert max(red, green, blue) - min(red, green, blue) <= 3
    assert 100 < red < 140
    assert caveats == ()


def test_inks_without_a_profile_are_guessed_and_said_to_be() -> None:
    converted, caveats = to_srgb(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), None, MIB)

    assert near((255, 0, 0), pixel(converted, 4, 4))
    assert caveats == (Caveat.CMYK_WITHOUT_PROFILE,)


@pytest.mark.parametrize(
    ("profile", "caveat"),
    [
        (b"not a profile", Caveat.PROFILE_BROKEN),
        (matrix_profile(DISPLAY_P3)[:200], Caveat.PROFILE_BROKEN),
        (grey_profile(2.2), Caveat.PROFILE_MISMATCH),
        (cmyk_profile(), Caveat.PROFILE_MISMATCH),
        (matrix_profile(DISPLAY_P3) + bytes(MIB), Caveat.PROFILE_TOO_LARGE),
    ],
)
def test_an_unusable_profile_leaves_the_picture_as_it_is(profile: bytes, caveat: Caveat) -> None:
    picture = Image.new("RGB", (8, 8), (200, 100, 60))

    converted, caveats = to_srgb(picture, profile, MIB)

    assert pixel(converted, 4, 4) == (200, 100, 60)
    assert caveats == (caveat,)


def test_inks_with_an_unusable_profile_still_become_rgb() -> None:
    converted, caveats = to_srgb(Image.new("CMYK", (8, 8)), b"broken", MIB)

    assert converted.mode == "RGB"
    assert caveats == (Caveat.PROFILE_BROKEN,)
