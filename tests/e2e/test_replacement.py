"""A picture is replaced: its stable address, which the edge keeps, shows the new one in seconds."""

import re
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest

from imagefleet.embedded.edge.origins import MANAGED, seconds_kept
from imagefleet.embedded.topology import described
from tests.support.images import BLUE, GREEN, RED
from tests.support.published import (
    LONGER_THAN_A_FLUSH,
    Viewer,
    a_picture,
    a_viewer,
    all_flushed,
    debts_of,
    delete,
    invalidations_of,
    kept_at_the_edge,
    no_flusher,
    publish,
    replace,
    stays,
)
from tests.support.stack import Producer, Stack

A_DAY = 86_400


@pytest.fixture
async def viewer() -> AsyncIterator[Viewer]:
    async with a_viewer() as viewer:
        yield viewer


async def done(producer: Producer, job_id: str) -> None:
    ended = await producer.ended(job_id)
    assert ended["status"] == "completed", ended


async def test_the_stable_address_shows_the_new_picture_and_the_old_address_the_old_one(
    stack: Stack, producer: Producer, viewer: Viewer
) -> None:
    image = await publish(producer, RED)
    await kept_at_the_edge(viewer, image.stable_url)
    await kept_at_the_edge(viewer, image.url)
    assert await viewer.sees(image.stable_url, RED)
    async with stack.database() as owner:
        assert [] == await debts_of(owner, image.image_id)  # a first publication owes nothing

        await done(producer, await replace(producer, image.image_id, a_picture(GREEN)))
        assert [1] == await debts_of(owner, image.image_id)  # one, of eight variants

    await viewer.will_see(image.stable_url, GREEN)
    assert await viewer.sees(image.url, RED)
    await all_flushed(stack)
    assert await viewer.sees(image.stable_url, GREEN)
    assert await viewer.sees(image.url, RED)
    assert 1 == invalidations_of(stack, image.image_id)


async def test_without_a_flusher_the_old_picture_stays(
    stack: Stack, producer: Producer, viewer: Viewer
) -> None:
    """The control: nothing but an invalidation makes the edge forget."""
    image = await publish(producer, RED)
    await kept_at_the_edge(viewer, image.stable_url)
    with no_flusher(stack):
        await done(producer, await replace(producer, image.image_id, a_picture(GREEN)))
        await stays(lambda: viewer.sees(image.stable_url, RED), seconds=LONGER_THAN_A_FLUSH)
        assert 0 == invalidations_of(stack, image.image_id)

    await viewer.will_see(image.stable_url, GREEN, within=30)


async def test_the_last_of_two_quick_replacements_stays(
    stack: Stack, producer: Producer, viewer: Viewer
) -> None:
    image = await publish(producer, RED)
    await kept_at_the_edge(viewer, image.stable_url)

    jobs = [await replace(producer, image.image_id, a_picture(colour)) for colour in (GREEN, BLUE)]
    for job in jobs:
        await viewer.get(image.stable_url)  # the edge is asked all the while
        await done(producer, job)

    await viewer.will_see(image.stable_url, BLUE)
    await all_flushed(stack)
    assert await viewer.sees(image.stable_url, BLUE)
    async with stack.database() as owner:
        assert 2 == sum(await debts_of(owner, image.image_id))


async def test_a_picture_that_is_replaced_and_deleted_at_once_is_gone(
    stack: Stack, producer: Producer, viewer: Viewer
) -> None:
    image = await publish(producer, RED)
    for url in (image.stable_url, image.url):
        await kept_at_the_edge(viewer, url)

    await replace(producer, image.image_id, a_picture(GREEN))
    job = await delete(producer, image.image_id)

    await done(producer, job)
    for url in (image.stable_url, image.url):
        await viewer.will_miss(url)
    await all_flushed(stack)
    for url in (image.stable_url, image.url):
        assert 404 == (await viewer.get(url)).status_code


async def test_an_older_revision_that_is_made_later_is_never_shown(
    stack: Stack, producer: Producer, viewer: Viewer
) -> None:
    """It failed, a newer one went live, and then it was replayed."""
    image = await publish(producer, RED)
    await kept_at_the_edge(viewer, image.stable_url)
    s3, bucket = stack.place.client("s3"), stack.place.originals
    with stack.director.closing("claimed"):
        failing = await replace(producer, image.image_id, a_picture(GREEN))
        async with stack.database() as owner:
            key = await owner.fetchval(
                "SELECT payload ->> 'source_key' FROM jobs WHERE id = $1::uuid", failing
            )
        s3.delete_object(Bucket=bucket, Key=key)
    ended = await producer.ended(failing)
    assert "failed" == ended["status"], ended
    s3.put_object(Bucket=bucket, Key=key, Body=a_picture(GREEN))
    await done(producer, await replace(producer, image.image_id, a_picture(BLUE)))
    await viewer.will_see(image.stable_url, BLUE)

    async with stack.database() as owner, stack.producer(key="operator_key") as operator:
        owed = await debts_of(owner, image.image_id)
        letter = (await operator.http.get(f"/v1/operator/dead-letters/{failing}")).json()
        replayed = await operator.http.post(
            "/v1/operator/dead-letters:replay", json={"ids": [letter["id"]], "reason": "it is back"}
        )
        assert replayed.is_success, replayed.text
        again = await owner.fetchval(
            "SELECT id::text FROM jobs WHERE replay_of = $1::uuid", failing
        )
        await done(producer, again)
        assert "superseded" == await owner.fetchval(
            "SELECT result_reason FROM jobs WHERE id = $1::uuid", again
        )
        assert owed == await debts_of(owner, image.image_id)
    await all_flushed(stack)
    assert await viewer.sees(image.stable_url, BLUE)


async def test_its_answers_are_kept_exactly_as_long_as_they_may(
    stack: Stack, producer: Producer
) -> None:
    """Read as CloudFront reads them, with the policy that the distribution has."""
    image, gone = await publish(producer, RED), await publish(producer, RED)
    await done(producer, await delete(producer, gone.image_id))
    policy = MANAGED[described().edge.pointers_cache_policy]

    async def kept(image_id: object) -> tuple[int, float]:
        path = httpx.URL(image.stable_url).path.replace(image.image_id, str(image_id))
        answer = await producer.http.get(stack.facts["api_url"] + path)
        headers = {"Cache-Control": answer.headers["cache-control"]}
        return answer.status_code, seconds_kept(answer.status_code, headers, policy)

    with stack.director.closing("claimed"):
        not_yet = (await producer.upload(a_picture(GREEN))).json()
        assert (404, 0) == await kept(not_yet["imageId"])
    assert (302, A_DAY) == await kept(image.image_id)
    assert (404, 0) == await kept(gone.image_id)
    assert (404, 0) == await kept(uuid4())
    await done(producer, not_yet["jobId"])


async def test_its_answer_is_one_read(stack: Stack, producer: Producer) -> None:
    image = await publish(producer, RED)
    path = httpx.URL(image.stable_url).path
    counted = re.compile(r"^db_query_duration_seconds_count\{(.*)\} (.+)$", re.MULTILINE)

    async def reads() -> dict[str, float]:
        text = (await producer.http.get(stack.facts["metrics_urls"]["api"])).text
        return {labels: float(value) for labels, value in counted.findall(text)}

    async def read_by_one_answer() -> set[tuple[str, float]]:
        before = await reads()
        async with httpx.AsyncClient() as anybody:
            assert 302 == (await anybody.get(stack.facts["api_url"] + path)).status_code
        more = {name: count - before.get(name, 0) for name, count in (await reads()).items()}
        return {(name, count) for name, count in more.items() if count}

    # What the API looks at by itself now and then does not fall into each of them.
    read = set.intersection(*[await read_by_one_answer() for _ in range(4)])

    ((name, count),) = read
    assert 'operation="find_current"' in name
    assert 1 == count
