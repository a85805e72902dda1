"""What Postgres knows is done, whatever becomes of the messages, or of all of AWS."""

import os
import shutil
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.faults.killing import age_rings
from tests.support.eventually import eventually
from tests.support.stack import Stack, running_stack

JOBS = 500

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(workers=1) as stack:
        yield stack
        await stack.all_ended(within=30)
        assert [] == await stack.breaches()


async def hundreds_of_jobs(stack: Stack) -> list[str]:
    async with stack.producer() as producer:
        return await producer.submit_many(JOBS)


FULL = """
SELECT lanes.window_size AS window,
       (SELECT count(*) FROM rings WHERE lane = 'fast' AND sent_at IS NOT NULL) AS announced
  FROM lanes
 WHERE lane = 'fast' AND room = 0
"""


async def as_many_announced_as_may_be(stack: Stack) -> None:
    """Nobody claims any: the others wait for their turn, and only rows know of them all."""
    async with stack.database() as owner:

        async def is_full() -> bool:
            lane = await owner.fetchrow(FULL)
            assert lane is not None, "there is room"
            assert lane["announced"] >= lane["window"] > 0, dict(lane)
            return True

        await eventually(is_full, within=20)


async def all_completed(stack: Stack, ids: list[str]) -> None:
    async with stack.database() as owner:

        async def completed() -> bool:
            await age_rings(owner)
            states = await owner.fetch(
                "SELECT state, count(*) FROM jobs WHERE id = ANY ($1::uuid[]) GROUP BY state", ids
            )
            assert [("completed", JOBS)] == [tuple(row) for row in states]
            return True

        await eventually(completed, within=60)


async def test_five_hundred_jobs_outlive_their_purged_messages(stack: Stack) -> None:
    with stack.director.closing("received"):
        ids = await hundreds_of_jobs(stack)
        await as_many_announced_as_may_be(stack)
        sqs = stack.place.client("sqs")
        for url in stack.place.queue_urls.values():
            sqs.purge_queue(QueueUrl=url)

    await all_completed(stack, ids)


async def test_five_hundred_jobs_outlive_all_of_aws(stack: Stack) -> None:
    before = stack.facts["processes"]["aws"]
    with stack.director.closing("received"):
        ids = await hundreds_of_jobs(stack)
        await as_many_announced_as_may_be(stack)
        # What it keeps is gone before it can be read again, and what it remembers goes with it.
        for kept in ("state", "s3"):
            shutil.rmtree(stack.state / "aws" / kept, ignore_errors=True)
        os.kill(before, signal.SIGKILL)

        def is_back() -> bool:
            return stack.facts["processes"].get("aws") not in {None, before}

        await eventually(is_back, within=30)

    await all_completed(stack, ids)
