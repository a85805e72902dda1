"""SQS's own redrive of the dead letters, which no other emulator has."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.localstack.fleet import Fleet
from tests.support.eventually import eventually
from tests.support.images import quadrants, saved, without_pixels
from tests.support.stack import Producer

TORN: Final = 4  # pictures that fail, and fail again when they are replayed
STOPPED: Final = 12  # jobs that an operator fails, and that do well when they are replayed
KNOWN: Final = 4  # of those: somebody says that nothing is to be done
PER_SECOND: Final = 100
LETTERS_WITHIN: Final = 60.0  # seconds; maintenance looks every five
REPLAYED_WITHIN: Final = 60.0
# A message whose delete was lost on a loaded machine is seen again when its visibility ends, and
# that is five minutes: longer is a message that nobody will delete.
EMPTY_WITHIN: Final = 420.0

COUNT_REPLAYS: Final = "SELECT count(*) FROM jobs WHERE replay_of = ANY ($1::uuid[])"
COUNT_FURTHER: Final = """
SELECT count(*)
  FROM jobs AS further
  JOIN jobs AS replays ON replays.id = further.replay_of
 WHERE replays.replay_of = ANY ($1::uuid[])
"""
LETTERS_OF: Final = "SELECT array_agg(id::text) FROM dead_letters WHERE job_id = ANY ($1::uuid[])"


async def redriven(fleet: Fleet) -> str:
    """What is moved back is replayed once, unless somebody has acknowledged it."""
    torn, stopped = await failures(fleet)
    failed, known = [*torn, *stopped], stopped[:KNOWN]
    await announced(fleet, len(failed))
    copies = await asyncio.to_thread(lying, fleet)
    assert sorted(job_of(each) for each in copies) == sorted(failed)
    await acknowledge(fleet, known)
    refusal = await asyncio.to_thread(moved_without_destination, fleet)

    first = await move_back(fleet)
    awaited = len(failed) - len(known)
    await replays(fleet, failed, awaited)
    await fleet.nothing_open(within=REPLAYED_WITHIN)
    await lineage(fleet, torn=torn, stopped=stopped[KNOWN:])
    assert await fleet.ask(COUNT_REPLAYS, known) == 0, "an acknowledged failure was replayed"

    # SQS delivers twice, and announcements are sent twice in doubt: the same messages once more,
    # beside those of the pictures that have failed again.
    await announced(fleet, TORN)
    await asyncio.to_thread(put, fleet, copies)
    second = await move_back(fleet)
    await again(fleet, torn)
    await fleet.nothing_open(within=REPLAYED_WITHIN)
    assert second > TORN, f"only {second} messages were moved again"
    assert await fleet.ask(COUNT_REPLAYS, failed) == awaited, "a failure was replayed twice"
    return (
        f"{first} moved: {awaited} replayed, {len(known)} acknowledged; {second} moved again: "
        f"{TORN} replayed; without a destination {refusal}"
    )


async def failures(fleet: Fleet) -> tuple[list[str], list[str]]:
    """Jobs that have failed: pictures without pixels, and some that an operator failed."""
    far = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    body = {"jobType": "noop", "payload": {}, "runAt": far}
    async with fleet.producer() as producer, fleet.producer("operator") as operator:
        torn = [
            await uploaded(producer, without_pixels(saved(quadrants(200 + number, 150))))
            for number in range(TORN)
        ]
        stopped = [
            (await producer.post("/v1/jobs", None, "later", json=body)).json()["jobId"]
            for _ in range(STOPPED)
        ]
        for job in stopped:
            answer = await operator.http.post(
                f"/v1/operator/jobs/{job}/fail", json={"reason": "to be redriven"}
            )
            assert answer.status_code == 202, answer.text
        for job in (*torn, *stopped):
            shown = await producer.ended(job, within=60)
            assert shown["status"] == "failed", shown
    return torn, stopped


async def uploaded(producer: Producer, picture: bytes) -> str:
    answer = await producer.upload(picture)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["jobId"])


async def acknowledge(fleet: Fleet, jobs: Sequence[str]) -> None:
    ids = await fleet.ask(LETTERS_OF, jobs)
    async with fleet.producer("operator") as operator:
        answer = await operator.http.post(
            "/v1/operator/dead-letters:acknowledge", json={"ids": ids, "note": "known"}
        )
    assert answer.json() == {"acknowledged": len(jobs), "more": False}, answer.text


async def announced(fleet: Fleet, count: int) -> None:
    """So many messages lie in the dead-letter queue."""

    async def all_there() -> bool:
        there = await asyncio.to_thread(depth, fleet, "dead-letter")
        assert there == count, f"{there} messages of {count}"
        return True

    await eventually(all_there, within=LETTERS_WITHIN)


async def replays(fleet: Fleet, failed: Sequence[str], count: int) -> None:
    async def all_there() -> bool:
        found = await fleet.ask(COUNT_REPLAYS, failed)
        assert found == count, f"{found} replays of {count}"
        return True

    await eventually(all_there, within=REPLAYED_WITHIN)


async def again(fleet: Fleet, torn: Sequence[str]) -> None:
    async def all_there() -> bool:
        further = await fleet.ask(COUNT_FURTHER, torn)
        assert further == len(torn), f"{further} replays of replays, of {len(torn)}"
        return True

    await eventually(all_there, within=REPLAYED_WITHIN)
    await emptied(fleet, "general")


async def lineage(fleet: Fleet, *, torn: Sequence[str], stopped: Sequence[str]) -> None:
    """Every failure names its replay, and every replay what it replays."""
    async with fleet.producer("operator") as operator:
        for failed in (*torn, *stopped):
            letter = (await operator.http.get(f"/v1/operator/dead-letters/{failed}")).json()
            answer = await operator.http.get(f"/v1/operator/jobs/{letter['replayedAs']}")
            replay = answer.json()
            told = {name: replay[name] for name in ("replayOf", "generation", "createdBy")}
            assert told == {"replayOf": failed, "generation": 1, "createdBy": "sqs-redrive"}, told
            status = "failed" if failed in torn else "completed"
            assert replay["status"] == status, replay


async def move_back(fleet: Fleet) -> int:
    """Redrive until nothing is left there: a sweep has some of the messages for a second or two."""
    moved = 0

    async def all_moved() -> bool:
        nonlocal moved
        moved += await asyncio.to_thread(moved_back, fleet)
        return depth(fleet, "dead-letter") == 0

    await eventually(all_moved, within=30)
    return moved


def moved_back(fleet: Fleet) -> int:
    """One task of SQS, to its end; how many messages it moved."""
    sqs, source = fleet.client("sqs"), arn(fleet, "dead-letter")
    sqs.start_message_move_task(
        SourceArn=source,
        DestinationArn=arn(fleet, "general"),
        MaxNumberOfMessagesPerSecond=PER_SECOND,
    )
    task = ended_task(fleet)
    assert task["Status"] == "COMPLETED", task
    return int(task["ApproximateNumberOfMessagesMoved"])


def moved_without_destination(fleet: Fleet) -> str:
    """SQS does not know where messages came from that an application sent there itself."""
    before = depth(fleet, "dead-letter")
    fleet.client("sqs").start_message_move_task(SourceArn=arn(fleet, "dead-letter"))
    task = ended_task(fleet)
    assert (task["Status"], depth(fleet, "dead-letter")) == ("FAILED", before), task
    return str(task["Status"])


def ended_task(fleet: Fleet) -> dict[str, Any]:
    """The newest task, once it is over."""
    sqs, source = fleet.client("sqs"), arn(fleet, "dead-letter")

    async def is_over() -> dict[str, Any] | None:
        (task,) = sqs.list_message_move_tasks(SourceArn=source, MaxResults=1)["Results"]
        return None if task["Status"] == "RUNNING" else dict(task)

    return asyncio.run(eventually(is_over, within=30))


def lying(fleet: Fleet) -> list[str]:
    """The bodies of all messages there, which are visible again afterwards."""
    sqs, url = fleet.client("sqs"), fleet.place.queue_urls["dead-letter"]
    messages = []
    while received := sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1, VisibilityTimeout=30
    ).get("Messages"):
        messages += received
    for message in messages:
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
        )
    return [str(message["Body"]) for message in messages]


def put(fleet: Fleet, bodies: Sequence[str]) -> None:
    sqs, url = fleet.client("sqs"), fleet.place.queue_urls["dead-letter"]
    for start in range(0, len(bodies), 10):
        entries = [
            {"Id": str(number), "MessageBody": body}
            for number, body in enumerate(bodies[start : start + 10])
        ]
        answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
        assert not answer.get("Failed"), answer


def job_of(body: str) -> str:
    return str(json.loads(body)["job_id"])


def arn(fleet: Fleet, queue: str) -> str:
    url = fleet.place.queue_urls[queue]
    answer = fleet.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return str(answer["Attributes"]["QueueArn"])


async def emptied(fleet: Fleet, *queues: str) -> None:
    """Nothing is in these queues, not even what somebody put away for later."""

    async def all_gone() -> bool:
        left = {queue: await asyncio.to_thread(depth, fleet, queue) for queue in queues}
        assert not any(left.values()), f"messages that are left: {left}"
        return True

    await eventually(all_gone, within=EMPTY_WITHIN)


def depth(fleet: Fleet, *queues: str) -> int:
    """Messages there, seen and unseen."""
    sqs, found = fleet.client("sqs"), 0
    for queue in queues:
        answer = sqs.get_queue_attributes(
            QueueUrl=fleet.place.queue_urls[queue], AttributeNames=["All"]
        )
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        found += sum(int(answer["Attributes"][name]) for name in names)
    return found
