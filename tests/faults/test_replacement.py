"""A replacement that is killed at any of its steps is made, told to the edge once, and shown."""

import os
import signal
from collections.abc import AsyncIterator
from typing import Literal

import httpx
import pytest
import pytest_asyncio

from tests.faults.director import ALWAYS, Reached
from tests.faults.facts import Post
from tests.faults.killing import PHASES, age_rings
from tests.support.eventually import eventually
from tests.support.images import GREEN, RED
from tests.support.published import (
    FLUSHED_WITHIN,
    Shown,
    Viewer,
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
    # Few slots: what dies with a worker is little, so many workers may die.
    "worker": {"WORKER_FAST_SLOTS": "1", "WORKER_GENERAL_SLOTS": "2", "RENDER_CHILDREN": "1"},
    "maintenance": {"RESCUE_AFTER": "5"},
}
WITHIN = 60.0

pytestmark = [pytest.mark.timeout(150), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    points = (*ALWAYS, "rendering", "saving", "settling", "committed")
    async with running_stack(workers=2, settings=SETTINGS, points=points) as stack:
        yield stack
        await stack.all_ended(within=30)
        assert [] == await stack.breaches()


@pytest_asyncio.fixture(loop_scope="module")
async def viewer() -> AsyncIterator[Viewer]:
    async with a_viewer() as viewer:
        yield viewer


def unanswered(producer: Producer, key: str | None, asked: str) -> None:
    producer._posts.append(Post(tenant="demo", key=key, asked=asked, outcome="info"))


class Assassin:
    """Kills one process: the first that comes to a phase with a job that is not spared."""

    def __init__(self, stack: Stack, phase: str, spared: set[str]) -> None:
        self.struck: Reached | None = None
        self._director = stack.director
        self._phase = phase
        self._spared = spared
        self._director.decide = self._decide

    def _decide(self, reached: Reached) -> Literal["go", "kill"]:
        mine = set(reached.jobs) - self._spared
        if self.struck is not None or reached.point != self._phase or not mine:
            return "go"
        self.struck = reached
        return "kill"


async def replaced(producer: Producer, image: Shown, key: str) -> str:
    """As a careful client does it: again under the same key until somebody answers."""

    async def answered() -> str | None:
        try:
            return await replace(producer, image.image_id, a_picture(GREEN), key=key)
        except httpx.HTTPError:
            unanswered(producer, key, image.image_id)
            return None

    return await eventually(answered, within=WITHIN)


async def has_struck(stack: Stack, assassin: Assassin) -> None:
    async with stack.database() as owner:

        async def struck() -> bool:
            await age_rings(owner)  # the message may have gone down with somebody else's job
            return assassin.struck is not None

        await eventually(struck, within=WITHIN)


async def all_completed(stack: Stack, jobs: set[str]) -> None:
    async with stack.database() as owner:

        async def completed() -> bool:
            await age_rings(owner)
            left = await owner.fetch(
                "SELECT id, state FROM jobs WHERE id = ANY ($1::uuid[]) AND state <> 'completed'",
                list(jobs),
            )
            assert left == [], [tuple(row) for row in left]
            return True

        await eventually(completed, within=WITHIN)


async def shown_and_told_once(stack: Stack, viewer: Viewer, image: Shown) -> None:
    await viewer.will_see(image.stable_url, GREEN, within=2 * FLUSHED_WITHIN)
    async with stack.database() as owner:
        assert [1] == await debts_of(owner, image.image_id)
    assert 1 == invalidations_of(stack, image.image_id)
    assert await viewer.sees(image.url, RED)


async def test_a_replacement_whose_processes_die_at_every_phase_is_shown(
    stack: Stack, producer: Producer, viewer: Viewer
) -> None:
    images = {phase: await publish(producer, RED) for phase in ("committed", *PHASES)}
    for image in images.values():
        await viewer.will_see(image.stable_url, RED)  # the edge keeps it from now on
    jobs: set[str] = set()
    for phase, image in images.items():
        assassin = Assassin(stack, phase, spared=set(jobs))
        jobs.add(await replaced(producer, image, phase.replace(" ", "-")))
        await has_struck(stack, assassin)

    await all_completed(stack, jobs)
    await all_flushed(stack)
    for image in images.values():
        await shown_and_told_once(stack, viewer, image)
    assert dict.fromkeys(images, 1) == stack.journal.by_phase()


async def test_the_flusher_dies_while_nobody_knows_whether_cloudfront_took_it(
    stack: Stack, producer: Producer, viewer: Viewer
) -> None:
    """The batch is committed, its request is on the way, and no answer comes."""
    image = await publish(producer, RED)
    await viewer.will_see(image.stable_url, RED)
    (maintenance,), (aws,) = stack.pids("maintenance").values(), stack.pids("aws").values()
    await all_completed(stack, {await replaced(producer, image, "in-doubt")})
    os.kill(aws, signal.SIGSTOP)
    try:
        await eventually(lambda: sent(stack, image, accepted=False), within=20)
        os.kill(maintenance, signal.SIGKILL)
    finally:
        os.kill(aws, signal.SIGCONT)

    await all_flushed(stack)
    await shown_and_told_once(stack, viewer, image)


async def test_the_flusher_dies_before_it_hears_that_cloudfront_is_done(
    stack: Stack, producer: Producer, viewer: Viewer
) -> None:
    image = await publish(producer, RED)
    await viewer.will_see(image.stable_url, RED)
    (maintenance,) = stack.pids("maintenance").values()
    await all_completed(stack, {await replaced(producer, image, "accepted")})
    await eventually(lambda: sent(stack, image, accepted=True), within=20)
    os.kill(maintenance, signal.SIGKILL)

    await all_flushed(stack)
    await shown_and_told_once(stack, viewer, image)


async def sent(stack: Stack, image: Shown, *, accepted: bool) -> bool:
    """Whether the image's batch was sent, and is not known to be complete."""
    async with stack.database() as owner:
        row = await owner.fetchrow(
            "SELECT batches.sends, batches.accepted_at IS NOT NULL AS accepted,"
            "       batches.completed_at IS NOT NULL AS completed"
            "  FROM invalidations JOIN invalidation_batches AS batches"
            "    ON batches.id = invalidations.batch_id WHERE image_id = $1::uuid",
            image.image_id,
        )
    return row is not None and tuple(row) == (1, accepted, False)
