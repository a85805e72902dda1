"""Where an image's objects lie."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.jobs.images import (
    OutputKey,
    cache_tag,
    image_at,
    is_original_key,
    original_key,
    parse_output_key,
    revision_prefix,
    stable_path,
    variant_key,
)

IMAGE = UUID("0198c0de-0000-7000-8000-000000000001")
UPLOAD = UUID("0198c0de-0000-7000-8000-000000000002")


def test_no_two_claims_ever_write_the_same_key() -> None:
    keys = {
        variant_key(IMAGE, revision, claim_no, "thumb", "webp")
        for revision in (1, 2, 11)
        for claim_no in (1, 2, 11)
    }

    assert len(keys) == 9


def test_a_variant_lies_under_its_image_revision_and_claim() -> None:
    assert variant_key(IMAGE, 4, 2, "thumb", "webp") == f"i/{IMAGE}/4.2/thumb.webp"
    assert variant_key(IMAGE, 4, 2, "thumb", "webp").startswith(revision_prefix(IMAGE, 4, 2))


def test_the_stable_address_names_no_revision() -> None:
    assert stable_path(IMAGE, "thumb", "webp") == f"i/{IMAGE}/current/thumb.webp"


def test_originals_lie_apart_from_everything_that_is_served() -> None:
    assert original_key(IMAGE, UPLOAD) == f"o/{IMAGE}/{UPLOAD}"


def test_one_tag_stands_for_all_that_an_image_published() -> None:
    assert cache_tag(IMAGE) == f"img-{IMAGE}"


@pytest.mark.parametrize(
    "key",
    [
        f"i/{IMAGE}/4.2/thumb.webp/x",
        f"i/{IMAGE}/4.2/",
        f"i/{IMAGE}/4/thumb.webp",
        f"i/{IMAGE}/current/thumb.webp",
        f"i/{IMAGE}/-4.2/thumb.webp",
        f"i/{IMAGE}/{'9' * 19}.2/thumb.webp",
        f"i/{str(IMAGE).upper()}/4.2/thumb.webp",
        f"o/{IMAGE}/4.2/thumb.webp",
        f"i/{IMAGE}/4.2/thumb.webp\n",
        "i/",
        "",
    ],
)
def test_what_is_no_key_of_ours_is_nobodys(key: str) -> None:
    assert parse_output_key(key) is None
    assert not is_original_key(key)


def test_keys_say_whose_they_are() -> None:
    key = variant_key(IMAGE, 4, 2, "thumb", "webp")

    assert OutputKey(image_id=IMAGE, revision=4, claim_no=2) == parse_output_key(key)
    assert is_original_key(original_key(IMAGE, UPLOAD))


ODD = st.text(alphabet="0189af-/gz AZ\N{LATIN SMALL LETTER E WITH ACUTE}", max_size=40)


@given(
    st.uuids() | st.just(IMAGE),
    ODD | st.uuids().map(str) | st.uuids().map(lambda one: f"{one}/4.2/thumb.webp"),
    st.integers(0, 36),
)
def test_a_place_divides_images_as_the_names_of_their_keys_do(
    image_id: UUID, text: str, shared: int
) -> None:
    """Also where a key shares its beginning with the images around it."""
    name = str(image_id)[:shared] + text
    place = image_at(f"i/{name}")

    for other in (image_id, IMAGE, UUID(int=place.int - 1 if place.int else 0)):
        if other < place:
            assert f"i/{other}/" < f"i/{name}" or f"i/{name}".startswith(f"i/{other}")
    for other in (image_id, IMAGE, UUID(int=min(place.int + 1, 2**128 - 1))):
        if other > place:
            assert f"i/{other}/" > f"i/{name}"
