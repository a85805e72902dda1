"""A picture that kills, stalls or swells its decoder ends its own job and nobody else's."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.support.eventually import eventually
from tests.support.images import quadrants, saved
from tests.support.stack import Producer, Stack, running_stack

ATTEMPT_SECONDS = 6
FRESH = 5.0  # seconds; with an older beat a worker does not even receive
SETTINGS = {
    "all": {"BACKOFF_BASE_SECONDS": "1"},
    "worker": {"RENDER_CHILDREN": "2", "WORKER_GENERAL_SLOTS": "4"},
}

AGE_OF_BEAT = """
SELECT extract(epoch FROM clock_timestamp() - max(beat_at))::float8 FROM workers
"""

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]


def poisoned(what: str) -> bytes:
    """A picture as any, whose last bytes tell the planted decoder what to do."""
    return saved(quadrants(40, 25)) + b"poison:" + what.encode()


@dataclass(frozen=True, slots=True)
class Ended:
    why: str
    outcome: str
    charged: bool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(
        workers=1, settings=SETTINGS, poison=True, attempt_seconds=ATTEMPT_SECONDS
    ) as stack:
        worker = stack.pids("worker")
        yield stack
        # Whatever the children did, their worker is the one that was started.
        assert worker == stack.pids("worker")
        await stack.all_ended(within=30)
        assert [] == await stack.breaches(backoff_base=1)


async def first_attempt(stack: Stack, job_id: str) -> Ended:
    async with stack.database() as owner:

        async def ended() -> Ended | None:
            row = await owner.fetchrow(
                "SELECT why, outcome, charged FROM attempts WHERE job_id = $1 AND claim_no = 1",
                job_id,
            )
            return Ended(**row) if row is not None else None

        return await eventually(ended, within=30)


async def watch_beats(stack: Stack, ages: list[float]) -> None:
    """How long ago the worker's last beat was, looked at until this is cancelled."""
    async with stack.database() as owner:
        while True:
            ages += [await owner.fetchval(AGE_OF_BEAT)]
            await asyncio.sleep(0.1)  # between two looks; nothing waits for it


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("segfault", Ended("crashed", "retried", charged=True)),
        ("exit", Ended("crashed", "retried", charged=True)),
        ("memory", Ended("memory", "failed", charged=True)),
        ("tables", Ended("memory", "failed", charged=True)),
    ],
)
async def test_a_child_that_dies_ends_its_attempt_under_the_right_name(
    stack: Stack, producer: Producer, what: str, expected: Ended
) -> None:
    accepted = (await producer.upload(poisoned(what))).json()

    assert expected == await first_attempt(stack, accepted["jobId"])


async def test_a_picture_that_kills_every_decoder_ends_as_poison(
    stack: Stack, producer: Producer
) -> None:
    accepted = (await producer.upload(poisoned("segfault"))).json()

    ended = await producer.ended(accepted["jobId"], within=30)

    assert ("failed", "poison") == (ended["status"], ended["failure"]["code"])
    async with stack.database() as owner:
        rows = await owner.fetch(
            "SELECT lane, why FROM attempts WHERE job_id = $1 ORDER BY claim_no", accepted["jobId"]
        )
    assert [("fast", "crashed"), ("fast", "crashed"), ("quarantine", "poison")] == [
        tuple(row) for row in rows
    ]


@pytest.mark.parametrize("what", ["sleep", "spin"])
async def test_a_stuck_child_holds_up_nobody(stack: Stack, producer: Producer, what: str) -> None:
    ages: list[float] = []
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(watch_beats(stack, ages))
        stuck = (await producer.upload(poisoned(what))).json()
        others = [(await producer.upload(saved(quadrants(50 + n, 30)))).json() for n in range(4)]
        for other in others:
            assert "completed" == (await producer.ended(other["jobId"]))["status"]
        before = (await producer.http.get(f"/v1/jobs/{stuck['jobId']}")).json()["status"]
        ended = await first_attempt(stack, stuck["jobId"])
        watch.cancel()

    assert "processing" == before
    assert Ended("deadline", "retried", charged=True) == ended
    assert max(ages) < FRESH
    await producer.http.post(f"/v1/jobs/{stuck['jobId']}/cancel", json={})
    assert "cancelled" == (await producer.ended(stuck["jobId"]))["failure"]["code"]
