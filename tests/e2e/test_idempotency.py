"""The same request is one job, however often and however concurrently it is made."""

import asyncio
from typing import Literal

import httpx
import pytest

from tests.faults.director import Reached
from tests.support.eventually import eventually
from tests.support.images import quadrants, saved
from tests.support.stack import Producer, Stack

AT_ONCE = 50


async def jobs_of(stack: Stack, key: str) -> list[str]:
    async with stack.database() as owner:
        rows = await owner.fetch("SELECT id::text FROM jobs WHERE idempotency_key = $1", key)
    return [row["id"] for row in rows]


async def test_a_repeated_upload_is_answered_with_the_same_job(
    producer: Producer, stack: Stack
) -> None:
    image = saved(quadrants(64, 40))

    first = await producer.upload(image, key="repeated")
    await producer.ended(first.json()["jobId"])
    again = await producer.upload(image, key="repeated")

    assert (202, 202) == (first.status_code, again.status_code)
    assert first.json().keys() == again.json().keys()
    assert {key: first.json()[key] for key in ("jobId", "imageId", "links")} == {
        key: again.json()[key] for key in ("jobId", "imageId", "links")
    }
    assert [first.json()["jobId"]] == await jobs_of(stack, "repeated")


async def test_fifty_uploads_at_once_under_one_key_make_one_job(
    producer: Producer, stack: Stack
) -> None:
    image = saved(quadrants(80, 50))

    answers = await asyncio.gather(*(producer.upload(image, key="at-once") for _ in range(AT_ONCE)))

    assert {202} == {answer.status_code for answer in answers}
    assert {answer.json()["jobId"] for answer in answers} == set(await jobs_of(stack, "at-once"))
    assert 1 == len(await jobs_of(stack, "at-once"))
    assert 1 == len({answer.json()["imageId"] for answer in answers})


async def test_another_picture_under_the_same_key_is_refused(
    producer: Producer, stack: Stack
) -> None:
    await producer.upload(saved(quadrants(48, 30)), key="taken")

    refused = await producer.upload(saved(quadrants(30, 48)), key="taken")

    assert (422, "idempotency_conflict") == (refused.status_code, refused.json()["code"])
    assert 1 == len(await jobs_of(stack, "taken"))


async def test_repeats_leave_the_first_picture_as_it_was(producer: Producer) -> None:
    image = saved(quadrants(72, 45))
    accepted = (await producer.upload(image, key="untouched")).json()
    await producer.ended(accepted["jobId"])
    before = await producer.image(accepted["imageId"])

    await producer.upload(image, key="untouched")

    assert before == await producer.image(accepted["imageId"])


def kill_the_api_once(stack: Stack) -> None:
    """The next time that it has committed a job, and has told neither SQS nor the client."""
    killed: list[int] = []

    def decide(reached: Reached) -> Literal["go", "kill"]:
        if reached.point == "committed" and not killed:
            killed.append(reached.pid)
            return "kill"
        return "go"

    stack.director.decide = decide


async def test_an_upload_whose_api_died_after_the_commit_is_done_and_answered_once(
    producer: Producer, stack: Stack
) -> None:
    image = saved(quadrants(90, 60))
    kill_the_api_once(stack)

    with pytest.raises(httpx.HTTPError):
        await producer.upload(image, key="committed")
    (job_id,) = await jobs_of(stack, "committed")

    async def completed() -> bool:
        async with stack.database() as owner:
            state = await owner.fetchval("SELECT state FROM jobs WHERE id = $1", job_id)
        assert state == "completed"
        return True

    # Nobody has asked again: the ring row alone brings it about.
    await eventually(completed, within=30)
    again = await producer.until_answered(lambda: producer.upload(image, key="committed"))
    assert (202, job_id) == (again.status_code, again.json()["jobId"])
    assert [job_id] == await jobs_of(stack, "committed")
    assert {"committed": 1} == stack.journal.by_phase()
