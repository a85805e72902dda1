"""Where an image's objects lie."""

from uuid import UUID

from imagefleet.jobs.images import (
    cache_tag,
    original_key,
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
