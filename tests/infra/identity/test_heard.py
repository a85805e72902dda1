"""From an upload to a deletion: all that the processes call they may, and they may little else.

What a whole run of the tests hears beside this is judged when it ends (`tests/support/calls.py`).
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, cast

import httpx
import pytest

from imagefleet.aws.transfers import PART_BYTES
from imagefleet.jobs.model import Lane
from imagefleet.maintenance.walker import delete_keys
from imagefleet.store.database import Connection
from tests.faults.plugin.calls import FILE, Call, heard
from tests.support.api import JPEG, Serve
from tests.support.calls import heard_in, is_whole
from tests.support.cloudfront import DISTRIBUTION, a_cloudfront
from tests.support.eventually import eventually
from tests.support.fleet import Place, inside, running
from tests.support.http import a_jpeg
from tests.support.images import quadrants, saved
from tests.support.rights import Table

MOST_BYTES: Final = PART_BYTES + 2**20

# What this short life does not show of a right, and a whole run of the tests does; by why.
RARE: Final = {
    "everything is heard of in its turn": {
        "worker sqs:ChangeMessageVisibility on lanes": "lanes, ChangeMessageVisibilityBatch",
        "worker sqs:SendMessage on lanes, dead-letter": "lanes",
        "maintenance sqs:SendMessage on lanes, dead-letter": "lanes, dead-letter, SendMessageBatch",
        "maintenance sqs:ChangeMessageVisibility on dead-letter": (
            "dead-letter, ChangeMessageVisibilityBatch"
        ),
        "maintenance sqs:DeleteMessage on dead-letter": "dead-letter, DeleteMessageBatch",
    },
    "nobody asks the doctor": {
        "maintenance sqs:GetQueueAttributes on lanes, dead-letter": "dead-letter",
    },
    "a sweep finds litter when it is a day old, and so does the second look at a deletion": {
        "maintenance s3:GetObject on originals/o/*, outputs/i/*": (
            "originals/o/*, outputs/i/*, HeadObject"
        ),
        "maintenance s3:ListBucket on originals, outputs": "HeadObject",
        "maintenance s3:DeleteObject on originals/o/*, outputs/i/*": (
            "originals/o/*, outputs/i/*, DeleteObjects"
        ),
        "maintenance s3:ListBucketVersions on originals, outputs": (
            "originals, outputs, ListObjectVersions"
        ),
        "maintenance s3:DeleteObjectVersion on originals/o/*, outputs/i/*": (
            "originals/o/*, outputs/i/*, DeleteObjects of versions"
        ),
    },
}
MAY_LACK: Final = {name: lacks for rows in RARE.values() for name, lacks in rows.items()}


async def ended(client: httpx.AsyncClient, answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 202, answer.text
    job = await client.get(f"/v1/jobs/{answer.json()['jobId']}", params={"wait": 20})
    shown: dict[str, Any] = job.json()
    assert shown["status"] == "completed", shown
    return shown


async def posted(client: httpx.AsyncClient, image: bytes) -> httpx.Response:
    """An upload past the API."""
    form = (await client.post("/v1/uploads", json={"contentType": "image/jpeg"})).json()
    async with httpx.AsyncClient() as anybody:
        stored = await anybody.post(form["url"], data=form["fields"], files={"file": image})
    assert stored.is_success, stored.text
    return await client.post("/v1/images", json={"uploadId": form["uploadId"]})


async def too_much() -> AsyncIterator[bytes]:
    """An image that turns out to be larger than allowed in its second part."""
    yield a_jpeg()
    for _ in range(MOST_BYTES // 2**20 + 1):
        yield bytes(2**20)


async def live(client: httpx.AsyncClient) -> None:
    """Everything that a producer can ask for, once."""
    shown = await ended(client, await posted(client, saved(quadrants(900, 600))))
    image = f"/v1/images/{shown['imageId']}"
    assert (await client.get(f"{image}/original")).status_code == 200
    moved = {"focalPoint": {"x": 0.1, "y": 0.9}}
    await ended(client, await client.patch(image, json=moved))
    await ended(client, await client.post("/v1/images", content=a_jpeg(), headers=JPEG))
    large = a_jpeg() + bytes(PART_BYTES)
    await ended(client, await client.put(image, content=large, headers=JPEG))
    refused = await client.post("/v1/images", content=too_much(), headers=JPEG)
    assert refused.status_code == 413, refused.text


@pytest.mark.timeout(90)
async def test_what_is_called_from_an_upload_to_a_deletion_is_allowed_and_is_what_is_allowed(
    serve: Serve, place: Place, table: Table, superuser: Connection
) -> None:
    async with AsyncExitStack() as stack:
        calls = stack.enter_context(heard())
        edge = await stack.enter_async_context(a_cloudfront())
        api = await stack.enter_async_context(serve(max_upload_bytes=MOST_BYTES))
        await stack.enter_async_context(inside(place, "worker"))
        acme = await stack.enter_async_context(api.client("acme"))
        operator = await stack.enter_async_context(api.client("operator"))
        await live(acme)
        newest = await superuser.fetchval("SELECT max(id::text) FROM images")
        preview = f"/v1/operator/images/{newest}/preview"
        await ended(acme, await operator.post(preview))
        assert (await operator.get(preview)).status_code == 200
        await place.send(Lane.FAST, "not a message of ours")
        upkeep = {
            "AWS_ENDPOINT_URL_CLOUDFRONT": edge.url,
            "CLOUDFRONT_DISTRIBUTION_ID": DISTRIBUTION,
            "SWEEP_GRACE_SECONDS": "0",
        }
        await stack.enter_async_context(inside(place, "maintenance", environment=upkeep))
        assert (await operator.get("/v1/operator/queues")).status_code == 200
        (image, _) = await superuser.fetch("SELECT id FROM images ORDER BY created_at")
        await eventually(lambda: "GetInvalidation" in {call.operation for call in calls}, within=20)
        deleted = await acme.delete(f"/v1/images/{image['id']}")
        await ended(acme, deleted)

        def nothing_is_idle() -> bool:
            idle = {
                f"{name}: {lacked}"
                for name, all_lacked in table.idle(calls).items()
                for lacked in all_lacked.split(", ")
                if lacked not in MAY_LACK.get(name, "").split(", ")
            }
            assert set() == idle
            return True

        await eventually(nothing_is_idle, within=20)

    assert [] == table.refused(calls)
    assert {"api", "worker", "maintenance"} == {call.process for call in calls}


def test_what_is_rare_is_in_the_table(table: Table) -> None:
    rows = {right.name: (*right.on, *right.operations) for right in table.rights}

    for name, lacks in MAY_LACK.items():
        assert {*lacks.split(", ")} <= {*rows[name]}


async def test_what_a_test_asks_for_itself_is_nobodys(place: Place) -> None:
    with heard() as calls:
        await place.send(Lane.FAST, "by a test")
        await (await place.queue(Lane.FAST)).depth()

    assert set[Call]() == calls


async def test_what_a_process_asks_over_a_session_of_a_test_is_its_own(place: Place) -> None:
    originals = await place.session.objects(place.settings.originals_bucket)

    with heard() as calls:
        await delete_keys(originals, ["o/1/2"])

    assert {Call("maintenance", "DeleteObjects", "originals/o/")} == calls


@pytest.mark.parametrize("process", ["worker", "maintenance"])
async def test_processes_of_their_own_tell_what_they_call(
    place: Place, process: Literal["worker", "maintenance"], tmp_path: Path
) -> None:
    told = tmp_path / "calls"

    async with running(place, process, environment={FILE: str(told)}):
        await eventually(lambda: heard_in(told), within=10)

    assert {process} == {call.process for call in heard_in(told)}


@pytest.mark.parametrize(
    ("source", "options", "asked"),
    [
        ("TESTPATHS", {"keyword": "", "lf": False}, "for all"),
        ("ARGS", {}, "for some"),
        ("TESTPATHS", {"keyword": "claim"}, "for some"),
        ("TESTPATHS", {"collectonly": True}, "for some"),
    ],
)
def test_only_a_whole_run_is_asked_for_rights_that_nothing_needed(
    source: str, options: dict[str, object], asked: str
) -> None:
    config = SimpleNamespace(
        args_source=pytest.Config.ArgsSource[source],
        getoption=lambda name, *, default: options.get(name, default),
    )

    assert (asked == "for all") == is_whole(cast("pytest.Config", config))
