"""An image is deleted: nothing of it is shown, stored or accepted any more."""

import httpx

from tests.support.images import GREEN, RED, quadrants, saved
from tests.support.published import (
    LONGER_THAN_A_FLUSH,
    a_picture,
    a_viewer,
    addresses,
    delete,
    expect_dark,
    kept_at_the_edge,
    no_flusher,
    publish,
    replace,
    stays,
    until_dark,
    versions_of,
)
from tests.support.stack import Producer, Stack


async def test_every_address_is_dark_and_every_version_gone(
    producer: Producer, stack: Stack
) -> None:
    image = await publish(producer, RED)
    urls = addresses(await producer.image(image.image_id))
    await producer.ended(await replace(producer, image.image_id, a_picture(GREEN)))
    urls += addresses(await producer.image(image.image_id))
    async with httpx.AsyncClient(timeout=20) as anybody:  # so that the edge has all of it
        answers = [await anybody.get(url, follow_redirects=True) for url in urls]
    assert {200} == {answer.status_code for answer in answers}
    keys = versions_of(stack, image.image_id)
    assert 10 == len(keys)  # two originals; of each the whole picture and a square, in two formats

    job_id = await delete(producer, image.image_id)
    ended = await producer.ended(job_id)
    receipt = await until_dark(producer, image.image_id)

    assert ("delete_image", "completed") == (ended["jobType"], ended["status"])
    assert [] == versions_of(stack, image.image_id)
    await expect_dark(urls)
    assert sorted(keys) == sorted(receipt["objects"]["keys"])
    told = {name: receipt["objects"][name] for name in ("deleted", "notThere", "errors")}
    assert {"deleted": 10, "notThere": 0, "errors": 0} == told
    assert receipt["requestedAt"] < receipt["objectsDeletedAt"] < receipt["darkAt"]
    assert receipt["secondsToDark"] > 0
    async with stack.database() as owner:
        reason = await owner.fetchval(
            "SELECT reason FROM invalidations WHERE id = $1::uuid", receipt["invalidationId"]
        )
    assert reason == "deleted"
    shown = await producer.image(image.image_id)
    assert ([], {}) == (shown["variants"], shown["srcset"])


async def test_without_a_flusher_the_edge_shows_what_it_kept_and_no_receipt_says_otherwise(
    producer: Producer, stack: Stack
) -> None:
    """The control: nothing but an invalidation makes the edge forget."""
    image = await publish(producer, RED)
    async with a_viewer() as viewer:
        for url in (image.stable_url, image.url):
            await kept_at_the_edge(viewer, url)
        with no_flusher(stack):
            await producer.ended(await delete(producer, image.image_id))
            assert [] == versions_of(stack, image.image_id)
            await stays(lambda: viewer.sees(image.stable_url, RED), seconds=LONGER_THAN_A_FLUSH)
            receipt = (await producer.image(image.image_id))["deletion"]
            assert "objectsDeletedAt" in receipt
            assert "darkAt" not in receipt

    await until_dark(producer, image.image_id)
    await expect_dark([image.stable_url, image.url])


async def test_the_stable_address_is_not_found_at_the_api_from_the_answer_on(
    producer: Producer, stack: Stack
) -> None:
    image = await publish(producer, RED)
    path = image.stable_url.removeprefix(stack.facts["public_base_url"])

    await delete(producer, image.image_id)
    answer = await producer.http.get(path)

    assert (404, "no-store") == (answer.status_code, answer.headers["cache-control"])


async def test_asked_again_it_is_the_same_job_and_nothing_new_is_taken(
    producer: Producer,
) -> None:
    image = await publish(producer, RED)

    jobs = {await delete(producer, image.image_id) for _ in range(3)}
    refused = await producer.http.put(
        f"/v1/images/{image.image_id}",
        content=saved(quadrants()),
        headers={"Content-Type": "image/jpeg"},
    )

    assert 1 == len(jobs)
    assert (409, "image_deleted") == (refused.status_code, refused.json()["code"])
    await until_dark(producer, image.image_id)
