from __future__ import annotations

import pytest

from imagefleet.errors import InputRejected
from imagefleet.imaging.headers.facts import HeaderFacts
from imagefleet.imaging.limits import Limits, judge_bytes, judge_density, judge_header, judge_scans
from imagefleet.jobs.images import ImageFormat

LIMITS = Limits()


def refusal(facts: HeaderFacts) -> str:
    with pytest.raises(InputRejected) as caught:
        judge_header(facts, LIMITS)
    return caught.value.code


def gif(width: int, height: int, frames: int | None) -> HeaderFacts:
    return HeaderFacts(ImageFormat.GIF, width, height, frames=frames)


@pytest.mark.parametrize(
    "facts",
    [
        HeaderFacts(ImageFormat.JPEG, 12_000, 9_000),  # a phone's 108 megapixels
        HeaderFacts(ImageFormat.JPEG, 8_192, 6_144),
        HeaderFacts(ImageFormat.AVIF, 8_192, 6_144),
        HeaderFacts(ImageFormat.PNG, 8_160, 6_144),
        HeaderFacts(ImageFormat.WEBP, 9_248, 6_936),  # a phone's 64
        HeaderFacts(ImageFormat.JPEG, 65_535, 1_600),  # a panorama
        HeaderFacts(ImageFormat.PNG, 1, 65_535),
        HeaderFacts(ImageFormat.JPEG),  # the size lies behind the head
        gif(4_000, 4_000, 1_001),
        gif(800, 600, None),
    ],
)
def test_what_people_have_passes(facts: HeaderFacts) -> None:
    judge_header(facts, LIMITS)


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (HeaderFacts(ImageFormat.JPEG, 16_000, 12_500), "too_many_pixels"),
        (HeaderFacts(ImageFormat.PNG, 12_000, 9_000), "too_many_pixels"),
        (HeaderFacts(ImageFormat.PNG, 2**26 + 1, 1), "too_many_pixels"),
        (HeaderFacts(ImageFormat.PNG, 1, 2**26 + 1), "too_many_pixels"),
        (HeaderFacts(ImageFormat.PNG, 1, 1, metadata_bytes=2**25), "too_much_metadata"),
    ],
)
def test_what_would_cost_too_much_is_refused_by_name(facts: HeaderFacts, code: str) -> None:
    assert code == refusal(facts)


def test_a_limit_itself_is_still_allowed() -> None:
    judge_bytes(LIMITS.max_bytes, LIMITS)
    judge_scans(LIMITS.max_scans, LIMITS)
    judge_header(HeaderFacts(ImageFormat.PNG, 8_192, 8_192), LIMITS)
    judge_header(HeaderFacts(ImageFormat.JPEG, 11_000, 10_000), LIMITS)


def test_one_more_is_refused_with_a_sentence_anybody_may_read() -> None:
    with pytest.raises(InputRejected) as bytes_refused:
        judge_bytes(LIMITS.max_bytes + 1, LIMITS)
    with pytest.raises(InputRejected) as scans_refused:
        judge_scans(LIMITS.max_scans + 1, LIMITS)

    assert bytes_refused.value.code == "too_large"
    assert bytes_refused.value.public_message == "The file is larger than 50 MiB."
    assert scans_refused.value.code == "too_many_scans"


def test_a_refusal_names_the_limit_in_force() -> None:
    limits = Limits(max_pixels=1_000, max_jpeg_pixels=2_000)
    sentences = []
    for image_format in (ImageFormat.PNG, ImageFormat.JPEG):
        with pytest.raises(InputRejected) as caught:
            judge_header(HeaderFacts(image_format, 2_001, 1), limits)
        sentences.append(caught.value.public_message)

    assert sentences == [
        "The image has more than 1,000 pixels.",
        "The image has more than 2,000 pixels.",
    ]


def test_a_jpeg_needs_a_bit_for_every_block_it_claims() -> None:
    facts = HeaderFacts(ImageFormat.JPEG, 1_024, 1_024)

    judge_density(facts, 2_048)
    with pytest.raises(InputRejected) as caught:
        judge_density(facts, 2_047)

    assert caught.value.code == "corrupt"


def test_other_formats_may_say_much_in_few_bytes() -> None:
    judge_density(HeaderFacts(ImageFormat.PNG, 5_000, 5_000), 500)
