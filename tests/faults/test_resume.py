"""A job of many items goes on where it was, whatever ended its worker; each item is done once."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from itertools import groupby
from typing import Any, Final, Literal

import pytest
import pytest_asyncio

from imagefleet.store.images.reprocessing import PAGE
from tests.faults.director import ALWAYS, Reached
from tests.faults.killing import age_rings
from tests.support.eventually import eventually
from tests.support.images import quadrants, saved
from tests.support.stack import Producer, Stack, running_stack

IMAGES: Final = 2 * PAGE + 10
UPLOADS_AT_ONCE: Final = 4
GRACE: Final = 1
SETTINGS: Final = {
    "all": {"BACKOFF_BASE_SECONDS": "1"},
    "worker": {"SHUTDOWN_GRACE_PERIOD_SECONDS": str(GRACE)},
    "maintenance": {"RESCUE_AFTER": "5"},
}
POINTS: Final = (*ALWAYS, "page written", "page committed")

FOLLOW_UPS: Final = """
SELECT payload->>'image_id' AS image, state, result_reason, created_at
  FROM jobs WHERE parent_job_id = $1
 ORDER BY created_at, image DESC
"""
ATTEMPTS: Final = """
SELECT outcome, charged FROM attempts WHERE job_id = $1 ORDER BY claim_no
"""

pytestmark = [pytest.mark.timeout(150), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    """With images that are made."""
    async with running_stack(workers=1, settings=SETTINGS, points=POINTS) as stack:
        await upload(stack)
        await all_ended(stack)
        yield stack
        assert [] == await stack.breaches(backoff_base=1)


async def upload(stack: Stack) -> None:
    numbers = iter(range(IMAGES))

    async def client() -> None:
        async with stack.producer() as producer:
            for number in numbers:
                answer = await producer.upload(saved(quadrants(24 + number, 20)))
                assert answer.status_code == 202, answer.text

    await asyncio.gather(*(client() for _ in range(UPLOADS_AT_ONCE)))


async def all_ended(stack: Stack) -> None:
    async with stack.database() as owner:

        async def nothing_open() -> bool:
            await age_rings(owner)
            left = await owner.fetchval("SELECT count(*) FROM jobs WHERE finished_at IS NULL")
            assert left == 0
            return True

        await eventually(nothing_open, within=60)


async def begin(producer: Producer) -> str:
    """A job that has every image rendered again."""
    answer = await producer.submit("reprocess_images", {"all_images": True})
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["jobId"]
    return job_id


async def each_was_asked_for_once(stack: Stack, set_job: str) -> None:
    """And in three pages, from the newest image to the oldest, all of which are made."""
    async with stack.database() as owner:
        follow_ups = await owner.fetch(FOLLOW_UPS, set_job)
        images = await owner.fetch("SELECT id::text FROM images ORDER BY id DESC")
    assert [row["id"] for row in images] == [row["image"] for row in follow_ups]
    pages = [len([*page]) for _, page in groupby(follow_ups, key=lambda row: row["created_at"])]
    assert [PAGE, PAGE, IMAGES - 2 * PAGE] == pages
    assert {("completed", "done")} == {(row["state"], row["result_reason"]) for row in follow_ups}


async def attempts(stack: Stack, set_job: str) -> list[tuple[str, bool]]:
    async with stack.database() as owner:
        return [tuple(row) for row in await owner.fetch(ATTEMPTS, set_job)]


async def test_a_worker_killed_amid_a_page_leaves_it_to_the_next_attempt(
    stack: Stack, producer: Producer
) -> None:
    before = stack.director.counts["page written"]

    def decide(reached: Reached) -> Literal["go", "kill"]:
        written = stack.director.counts["page written"] - before
        return "kill" if reached.point == "page written" and written == 2 else "go"

    stack.director.decide = decide
    set_job = await begin(producer)
    shown = await producer.ended(set_job, within=60)
    await all_ended(stack)

    assert "completed" == shown["status"]
    assert {"done": IMAGES, "total": IMAGES} == shown["progress"]
    assert ["page written"] == [kill.phase for kill in stack.journal.kills]
    assert [("rescued", True), ("completed", True)] == await attempts(stack, set_job)
    # The first page once, the second twice (it was rolled back), the third once.
    assert 4 == stack.director.counts["page written"] - before
    await each_was_asked_for_once(stack, set_job)


async def test_a_worker_that_drains_between_pages_hands_the_cursor_on(
    stack: Stack, producer: Producer
) -> None:
    before = stack.director.counts["page written"]
    with stack.director.closing("page committed"):
        set_job = await begin(producer)
        await progress_is_visible(stack, producer, set_job)
        ((_, pid),) = stack.pids("worker").items()
        os.kill(pid, signal.SIGTERM)

        async def released() -> bool:
            return await attempts(stack, set_job) == [("released", False)]

        await eventually(released, within=20)
    shown = await producer.ended(set_job, within=60)
    await all_ended(stack)

    assert "completed" == shown["status"]
    assert [("released", False), ("completed", True)] == await attempts(stack, set_job)
    assert 3 == stack.director.counts["page written"] - before
    await each_was_asked_for_once(stack, set_job)


async def progress_is_visible(stack: Stack, producer: Producer, set_job: str) -> None:
    """To whoever asks, listens, or uses the command line, while the job is at its second page."""
    expected = {"done": PAGE, "total": IMAGES}

    async def at_the_second_page() -> dict[str, Any]:
        shown: dict[str, Any] = (await producer.http.get(f"/v1/jobs/{set_job}")).json()
        assert shown.get("progress") == expected, shown
        return shown

    shown = await eventually(at_the_second_page, within=30)
    assert "processing" == shown["status"]
    assert shown == await first_event(producer, set_job)
    for arguments in (("show", set_job), ("list", "--type", "reprocess_images")):
        assert f"{PAGE}/{IMAGES}" in await told(stack, "jobs", *arguments)


async def first_event(producer: Producer, job_id: str) -> object:
    async with (
        asyncio.timeout(10),
        producer.http.stream("GET", f"/v1/jobs/{job_id}/events") as events,
    ):
        async for line in events.aiter_lines():
            if line.startswith("data: "):
                return json.loads(line.removeprefix("data: "))
    raise AssertionError


async def told(stack: Stack, *arguments: str) -> str:
    """What the command line prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "imagefleet", *arguments),
        env={
            **os.environ,  # noqa: TID251 - as from a terminal
            "IMAGEFLEET_URL": stack.facts["api_url"],
            "IMAGEFLEET_KEY": stack.facts["api_key"],
        },
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()
