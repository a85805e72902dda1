"""A deletion ends dark, whoever dies on its way, and whatever was being made of the image."""

from collections.abc import AsyncIterator
from typing import Any, Literal

import httpx
import pytest
import pytest_asyncio

from tests.faults.director import ALWAYS, Reached
from tests.faults.killing import age_rings
from tests.support.eventually import eventually
from tests.support.images import GREEN, RED
from tests.support.published import (
    a_picture,
    addresses,
    delete,
    expect_dark,
    publish,
    replace,
    until_dark,
    versions_of,
)
from tests.support.stack import Producer, Stack, running_stack

SETTINGS = {"all": {"BACKOFF_BASE_SECONDS": "1"}, "maintenance": {"RESCUE_AFTER": "5"}}
KILLED = {
    "committed": "api",
    "not yet emptied": "worker",
    "emptied": "worker",
    "settling": "worker",
    "not yet deleted": "worker",
    "not yet agreed": "maintenance",
}
HELD = ("rendering", "saving")

pytestmark = [pytest.mark.timeout(150), pytest.mark.asyncio(loop_scope="module")]


def keep_versions(stack: Stack) -> None:
    """Both buckets keep what is deleted, from now on."""
    s3 = stack.place.client("s3")
    for bucket in (stack.place.outputs, stack.place.originals):
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    points = tuple({*ALWAYS, *KILLED, *HELD})
    async with running_stack(workers=1, settings=SETTINGS, points=points) as stack:
        keep_versions(stack)
        yield stack
        await stack.all_ended(within=30)
        assert [] == await stack.breaches(backoff_base=1)


async def ends_dark(stack: Stack, producer: Producer, image_id: str) -> dict[str, Any]:
    """Rings whose message went down with a worker come round after a minute; here at once."""
    async with stack.database() as owner:

        async def over() -> bool:
            await age_rings(owner)
            left = await owner.fetchval("SELECT count(*) FROM jobs WHERE finished_at IS NULL")
            assert left == 0
            return True

        await eventually(over, within=60)
    return await until_dark(producer, image_id)


@pytest.mark.parametrize("point", KILLED)
async def test_whoever_dies_the_image_ends_dark(
    stack: Stack, producer: Producer, point: str
) -> None:
    image = await publish(producer, RED)
    urls = addresses(await producer.image(image.image_id))
    keys = versions_of(stack, image.image_id)
    killed: list[Reached] = []

    def once(reached: Reached) -> Literal["go", "kill"]:
        if killed or (reached.point, reached.process) != (point, KILLED[point]):
            return "go"
        killed.append(reached)
        return "kill"

    stack.director.decide = once
    try:

        async def asked() -> str | None:
            try:
                return await delete(producer, image.image_id)
            except httpx.HTTPError:
                return None

        job_id = await eventually(asked, within=30)
        receipt = await ends_dark(stack, producer, image.image_id)
    finally:
        stack.director.decide = lambda _: "go"

    assert 1 == len(killed)
    assert "completed" == (await producer.ended(job_id))["status"]
    assert sorted(keys) == sorted(receipt["objects"]["keys"])
    assert [] == versions_of(stack, image.image_id)
    await expect_dark(urls)


@pytest.mark.parametrize("point", HELD)
async def test_a_picture_that_is_being_made_meanwhile_is_never_shown(
    stack: Stack, producer: Producer, point: str
) -> None:
    image = await publish(producer, RED)
    urls = addresses(await producer.image(image.image_id))
    reached = stack.director.counts[point]

    with stack.director.closing(point):
        job_id = await replace(producer, image.image_id, a_picture(GREEN))

        async def running() -> bool:
            async with stack.database() as owner:
                state = await owner.fetchval("SELECT state FROM jobs WHERE id = $1::uuid", job_id)
            assert state == "processing"
            return True

        await eventually(running, within=20)
        await delete(producer, image.image_id)
    await ends_dark(stack, producer, image.image_id)

    assert stack.director.counts[point] > reached
    shown = (await producer.image(image.image_id))["variants"]
    assert [] == shown
    assert [] == versions_of(stack, image.image_id)
    await expect_dark(urls)
