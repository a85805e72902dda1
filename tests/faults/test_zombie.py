"""A worker that is frozen past its lease and comes back changes nothing that any address shows."""

import os
import signal

import httpx
import pytest

from tests.faults.director import ALWAYS
from tests.faults.killing import age_rings
from tests.support.eventually import eventually
from tests.support.images import BLUE, GREEN, RED
from tests.support.published import (
    FLUSHED_WITHIN,
    a_picture,
    a_viewer,
    all_flushed,
    debts_of,
    invalidations_of,
    publish,
    replace,
)
from tests.support.stack import Producer, Stack, running_stack

SETTINGS = {
    "worker": {"WORKER_FAST_SLOTS": "1", "WORKER_GENERAL_SLOTS": "2", "RENDER_CHILDREN": "1"},
    "maintenance": {"RESCUE_AFTER": "5"},
}


async def completed_with_rings_aged(stack: Stack, job_id: str) -> None:
    async with stack.database() as owner:

        async def completed() -> bool:
            await age_rings(owner)
            state = await owner.fetchval("SELECT state FROM jobs WHERE id = $1::uuid", job_id)
            assert "completed" == state
            return True

        await eventually(completed, within=40)


async def everything_shown(producer: Producer, image_id: str) -> dict[str, bytes]:
    """What every address of the image gives to somebody who sees no cache."""
    urls = []
    for variant in (await producer.image(image_id))["variants"]:
        urls += [variant["url"], variant["stableUrl"]]
    async with httpx.AsyncClient(follow_redirects=True) as anybody:
        return {url: (await anybody.get(url)).content for url in urls}


@pytest.mark.timeout(150)
async def test_a_zombie_changes_nothing_that_any_address_shows() -> None:
    points = (*ALWAYS, "saving")
    async with (
        running_stack(workers=2, settings=SETTINGS, points=points) as stack,
        stack.producer() as producer,
        a_viewer() as viewer,
    ):
        image = await publish(producer, RED)
        await viewer.will_see(image.stable_url, RED)

        # A worker stands with one variant stored and the others on their way; then it is frozen.
        with stack.director.closing("saving"):
            job = await replace(producer, image.image_id, a_picture(GREEN))

            def holder() -> int | None:
                holding = stack.director.holding.items()
                return next((pid for pid, jobs in holding if job in jobs), None)

            zombie = await eventually(holder, within=20)
            await eventually(lambda: stored(stack, image.image_id, "2.1"), within=20)
            (name,) = [n for n, pid in stack.pids("worker").items() if pid == zombie]
            os.killpg(zombie, signal.SIGSTOP)
        try:
            await completed_with_rings_aged(stack, job)
            newer = await replace(producer, image.image_id, a_picture(BLUE))
            await completed_with_rings_aged(stack, newer)
            await viewer.will_see(image.stable_url, BLUE, within=FLUSHED_WITHIN)
            await all_flushed(stack)
            before = await everything_shown(producer, image.image_id)
            async with stack.database() as owner:
                owed = await debts_of(owner, image.image_id)
        finally:
            os.killpg(zombie, signal.SIGCONT)

        # It comes to itself, is told that it is dead, and ends; another one takes its place.
        await eventually(lambda: stack.pids("worker").get(name, zombie) != zombie, within=40)
        assert before == await everything_shown(producer, image.image_id)
        assert 4 + 10 == len(before)  # so small a picture is two objects of each format
        assert await viewer.sees(image.stable_url, BLUE)
        async with stack.database() as owner:
            assert owed == await debts_of(owner, image.image_id)
            claims = await owner.fetch(
                "SELECT revision, claim_no FROM image_revisions WHERE image_id = $1::uuid"
                " ORDER BY revision",
                image.image_id,
            )
        assert [(1, 1), (2, 2), (3, 1)] == [tuple(row) for row in claims]
        assert len(owed) == invalidations_of(stack, image.image_id)
        # It did wake up at work: more of its own variants lie there now, and nobody is led to them.
        assert stored(stack, image.image_id, "2.1")
        assert not [url for url in before if "/2.1/" in url]
        await stack.all_ended(within=30)
        assert [] == await stack.breaches()


def stored(stack: Stack, image_id: str, claim: str) -> int:
    """How many objects one claim has written."""
    listed = stack.place.client("s3").list_objects_v2(
        Bucket=stack.place.outputs, Prefix=f"i/{image_id}/{claim}/"
    )
    count: int = listed["KeyCount"]
    return count
