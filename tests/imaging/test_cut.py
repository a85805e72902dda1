"""A JPEG whose data ends before its pixels do: what is there is made and said, or it is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from imagefleet.errors import InputRejected
from imagefleet.imaging.recipes import Truncated
from imagefleet.jobs.images import Caveat
from tests.imaging.rendering import one, picture_of, rendered
from tests.support.images import claimed, grain, near, pixel, quadrants, saved

GREY = (128, 128, 128)
CODINGS: dict[str, dict[str, object]] = {
    "baseline": {},
    "tables of its own": {"optimize": True},
    "restarts": {"restart_marker_blocks": 7},
    "restarts by row": {"restart_marker_rows": 1},
}


def warnings_of(source: bytes) -> tuple[Caveat, ...]:
    small = {Caveat.NOT_ENLARGED}
    return tuple(
        each for each in rendered(source, one())[0].variants[0].warnings if each not in small
    )


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("end", [b"", b"\xff\xd9"], ids=["no end", "an end"])
def test_what_is_there_of_a_jpeg_cut_short_is_made_and_the_rest_is_grey(
    coding: str, end: bytes
) -> None:
    photo = saved(quadrants(), "JPEG", **CODINGS[coding])
    half = photo[: photo.index(b"\xff\xda") + (len(photo) - photo.index(b"\xff\xda")) // 3] + end

    result = picture_of(half)

    assert warnings_of(half) == (Caveat.TRUNCATED,)
    assert near(pixel(picture_of(photo), 20, 8), pixel(result, 20, 8), tolerance=10)
    assert near(GREY, pixel(result, 150, 95), tolerance=10)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_recipe_may_refuse_it(coding: str) -> None:
    photo = saved(grain(320, 200), "JPEG", **CODINGS[coding])
    strict = replace(one(), truncated=Truncated.REFUSE)
    rendered(photo, strict)

    with pytest.raises(InputRejected, match="corrupt"):
        rendered(photo[: len(photo) // 2], strict)


def test_a_progressive_jpeg_without_its_last_scans_is_made_and_said() -> None:
    picture = quadrants()
    picture.paste(grain(160, 200), (160, 0))
    photo = saved(picture, progressive=True)
    coarse = photo[: photo.rindex(b"\xff\xda") + 300]

    assert warnings_of(coarse) == (Caveat.TRUNCATED,)
    assert near(pixel(picture_of(photo), 20, 8), pixel(picture_of(coarse), 20, 8), tolerance=16)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("options", CODINGS.values(), ids=CODINGS.keys())
def test_a_jpeg_that_lacks_nothing_but_its_end_is_like_any_other(
    options: dict[str, object], *, progressive: bool
) -> None:
    photo = saved(grain(320, 200), "JPEG", **options, progressive=progressive)
    strict = replace(one(), truncated=Truncated.REFUSE)

    assert warnings_of(photo.removesuffix(b"\xff\xd9")) == ()
    assert rendered(photo, strict)[1] == rendered(photo.removesuffix(b"\xff\xd9"), strict)[1]


def test_a_jpeg_that_lacks_few_rows_is_irregular() -> None:
    """Eight of six hundred: nobody would call it truncated, and no recipe refuses it."""
    for options in ({}, {"restart_marker_rows": 1}):
        photo = saved(grain(400, 600), "JPEG", subsampling=0, **options)
        source = photo[: len(photo) * 99 // 100]

        assert warnings_of(source) == (Caveat.IRREGULAR_FILE,)
        assert rendered(source, replace(one(), truncated=Truncated.REFUSE))


def test_a_small_hole_between_two_restarts_is_irregular() -> None:
    """The last bytes of a piece in the middle, as some damaged cameras' files lack them."""
    pieces = re.split(rb"(\xff[\xd0-\xd7])", saved(grain(400, 600), "JPEG", restart_marker_rows=1))
    pieces[20] = pieces[20][: len(pieces[20]) // 2]

    assert warnings_of(b"".join(pieces)) == (Caveat.IRREGULAR_FILE,)


def test_one_that_ends_within_a_table_between_scans_is_made_of_those_before() -> None:
    photo = saved(grain(320, 200), progressive=True)
    table = photo.rindex(b"\xff\xc4")

    assert warnings_of(photo[: table + 9]) == (Caveat.IRREGULAR_FILE,)


def test_a_jpeg_without_a_bit_for_every_block_is_refused_by_every_recipe() -> None:
    with pytest.raises(InputRejected, match="corrupt"):
        rendered(claimed(saved(quadrants(16, 16)), 3_000, 3_000), one())
