"""A picture goes in by HTTP and comes out at its published addresses."""

import math

import httpx
import pytest

from tests.support.images import (
    BLUE,
    CANARY,
    GREEN,
    RED,
    YELLOW,
    as_a_camera_stores,
    corners,
    near,
    opened,
    quadrants,
    saved,
    talkative,
)
from tests.support.stack import Producer, Stack

SIDES = {"thumb": 200, "small": 640, "medium": 1280, "large": 1920}
NAMES = {*SIDES, "square"}
FORMATS = {"jpeg": "JPEG", "webp": "WEBP"}
UPLOADED = {
    "JPEG": "image/jpeg",
    "PNG": "image/png",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "AVIF": "image/avif",
}
IMMUTABLE = "public, max-age=31536000, immutable"


def an_upload(pillow_format: str) -> bytes:
    if pillow_format == "GIF":
        return saved(quadrants().quantize(16), "GIF")
    if pillow_format == "AVIF":
        return saved(quadrants(), "AVIF", quality=95, max_threads=1)
    return saved(quadrants(), pillow_format)


async def published(producer: Producer, image: bytes, content_type: str) -> list[dict[str, object]]:
    accepted = await producer.upload(image, content_type)
    assert accepted.status_code == 202, accepted.text
    ended = await producer.ended(accepted.json()["jobId"])
    assert ended["status"] == "completed", ended
    shown = await producer.image(accepted.json()["imageId"])
    variants: list[dict[str, object]] = shown["variants"]
    return variants


async def fetched(url: object) -> httpx.Response:
    """As anybody would: no key, no knowledge of S3."""
    async with httpx.AsyncClient(follow_redirects=True) as public:
        answer = await public.get(str(url))
    assert answer.status_code == 200, answer.text
    return answer


def fitted(width: int, height: int, name: object) -> tuple[int, int]:
    """Inside a square of this name's side, never enlarged; `square` is cut out of what is more."""
    if name == "square":
        return 200, 200
    scale = min(1.0, SIDES[str(name)] / max(width, height))
    return max(1, math.floor(width * scale + 0.5)), max(1, math.floor(height * scale + 0.5))


@pytest.mark.parametrize("pillow_format", UPLOADED)
async def test_every_variant_is_published_upright_and_in_colour(
    producer: Producer, pillow_format: str
) -> None:
    variants = await published(producer, an_upload(pillow_format), UPLOADED[pillow_format])

    assert {(name, form) for name in NAMES for form in FORMATS} == {
        (variant["name"], variant["format"]) for variant in variants
    }
    for variant in variants:
        answer = await fetched(variant["url"])
        picture = opened(answer.content)
        assert FORMATS[str(variant["format"])] == picture.format
        assert fitted(320, 200, variant["name"]) == picture.size
        assert (variant["width"], variant["height"]) == picture.size
        assert variant["bytes"] == len(answer.content)
        if variant["name"] in SIDES:  # the square has what somebody would look at
            for expected, actual in zip((RED, GREEN, BLUE, YELLOW), corners(picture), strict=True):
                assert near(expected, actual, tolerance=12)


@pytest.mark.parametrize("orientation", [3, 6, 7])
async def test_a_camera_held_any_way_gives_an_upright_picture(
    producer: Producer, orientation: int
) -> None:
    upload = as_a_camera_stores(orientation, quadrants(), "JPEG")

    variants = await published(producer, upload, "image/jpeg")

    for variant in variants:
        picture = opened((await fetched(variant["url"])).content)
        assert fitted(320, 200, variant["name"]) == picture.size
        if variant["name"] in SIDES:  # the square has what somebody would look at
            for expected, actual in zip((RED, GREEN, BLUE, YELLOW), corners(picture), strict=True):
                assert near(expected, actual, tolerance=12)


async def test_a_large_picture_is_made_smaller(producer: Producer) -> None:
    variants = await published(producer, saved(quadrants(2400, 1500)), "image/jpeg")

    sizes = {str(variant["name"]): (variant["width"], variant["height"]) for variant in variants}
    assert sizes == {name: fitted(2400, 1500, name) for name in NAMES}
    for variant in variants:
        assert (variant["width"], variant["height"]) == opened(
            (await fetched(variant["url"])).content
        ).size


@pytest.mark.parametrize("pillow_format", ["JPEG", "PNG", "WEBP"])
async def test_nothing_that_a_file_tells_of_its_author_is_published(
    producer: Producer, pillow_format: str
) -> None:
    upload = talkative(pillow_format)
    assert CANARY in upload

    for variant in await published(producer, upload, UPLOADED[pillow_format]):
        answer = await fetched(variant["url"])
        picture = opened(answer.content)
        assert CANARY not in answer.content
        assert dict(picture.getexif()) == {}
        assert {"exif", "xmp", "comment"} & picture.info.keys() == set()


async def test_published_addresses_may_be_kept_for_ever(producer: Producer) -> None:
    variants = await published(producer, saved(quadrants()), "image/jpeg")

    for variant in variants:
        answer = await fetched(variant["url"])
        assert answer.headers["cache-control"] == IMMUTABLE
        assert answer.headers["content-type"] == f"image/{variant['format']}"


async def test_a_stable_address_leads_to_the_current_picture(
    producer: Producer, stack: Stack
) -> None:
    variant = (await published(producer, saved(quadrants()), "image/jpeg"))[0]

    answer = await fetched(variant["stableUrl"])

    assert str(variant["url"]) == str(answer.url)
    assert str(variant["stableUrl"]).startswith(stack.facts["public_base_url"])
    assert IMMUTABLE not in answer.history[0].headers["cache-control"]
