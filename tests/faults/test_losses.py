"""What Postgres knows is done, whatever becomes of the API, of the messages, of all of AWS."""

import os
import shutil
import signal
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.faults.killing import age_rings
from tests.support.checker import check
from tests.support.eventually import eventually
from tests.support.images import quadrants, saved
from tests.support.journal import read_facts
from tests.support.stack import ALWAYS, Reached, Stack, running_stack

JOBS = 500

pytestmark = [
    pytest.mark.timeout(120),
    # One stack for all of them, so that they are judged together.
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(workers=1, points=(*ALWAYS, "committed")) as stack:
        yield stack
        await stack.all_ended(within=30)
        facts = await read_facts(stack.place, stack.journal.posts)
        assert [] == [str(breach) for breach in check(facts)]


def kill_the_api_once(stack: Stack) -> None:
    """The next time it has committed a job and has told nobody yet."""
    killed: list[int] = []

    def decide(reached: Reached) -> str:
        if reached.point == "committed" and not killed:
            killed.append(reached.pid)
            return "kill"
        return "go"

    stack.director.decide = decide  # type: ignore[assignment]


async def jobs_under(stack: Stack, key: str) -> list[tuple[str, str]]:
    async with stack.database() as owner:
        rows = await owner.fetch(
            "SELECT id::text, state FROM jobs WHERE idempotency_key = $1", key
        )
    return [(row["id"], row["state"]) for row in rows]


async def test_a_job_whose_api_died_after_the_commit_is_done_and_answered_once(
    stack: Stack,
) -> None:
    image = saved(quadrants(90, 60))
    kill_the_api_once(stack)

    async with stack.producer() as producer:
        with pytest.raises(httpx.HTTPError):
            await producer.upload(image, key="committed")
        ((job_id, _),) = await jobs_under(stack, "committed")

        async def completed() -> bool:
            assert [(job_id, "completed")] == await jobs_under(stack, "committed")
            return True

        # Nobody has asked again: the ring row alone brings it about.
        await eventually(completed, within=30)
        again = await producer.until_answered(lambda: producer.upload(image, key="committed"))

    assert (202, job_id) == (again.status_code, again.json()["jobId"])
    assert [(job_id, "completed")] == await jobs_under(stack, "committed")
    assert {"committed": 1} == stack.journal.by_phase()


async def hundreds_of_jobs(stack: Stack) -> list[str]:
    async with stack.producer() as producer:
        return await producer.submit_many(JOBS)


async def all_announced(stack: Stack, ids: list[str]) -> None:
    """Every message was sent and confirmed: from now on only their rows know of the jobs."""
    async with stack.database() as owner:

        async def announced() -> bool:
            waiting = await owner.fetchval(
                "SELECT count(*) FROM rings WHERE job_id = ANY ($1::uuid[]) AND rings = 0", ids
            )
            assert waiting == 0
            return True

        await eventually(announced, within=20)


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
        await all_announced(stack, ids)
        sqs = stack.place.client("sqs")
        for url in stack.place.queue_urls.values():
            sqs.purge_queue(QueueUrl=url)

    await all_completed(stack, ids)


async def test_five_hundred_jobs_outlive_all_of_aws(stack: Stack) -> None:
    before = stack.facts["processes"]["aws"]
    with stack.director.closing("received"):
        ids = await hundreds_of_jobs(stack)
        await all_announced(stack, ids)
        # What it keeps is gone before it can be read again, and what it remembers goes with it.
        for kept in ("state", "s3"):
            shutil.rmtree(stack.state / "aws" / kept, ignore_errors=True)
        os.kill(before, signal.SIGKILL)

        def is_back() -> bool:
            return stack.facts["processes"].get("aws") not in {None, before}

        await eventually(is_back, within=30)

    await all_completed(stack, ids)
