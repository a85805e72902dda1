"""What an image tells beside its variants, and how images are found among many."""

from datetime import datetime
from typing import Any
from uuid import UUID

import httpx
import pytest

from imagefleet.jobs.images import ImageStatus
from imagefleet.jobs.lifecycle import Failed
from imagefleet.jobs.model import TenantId
from imagefleet.store.database import Connection
from imagefleet.store.images import listing
from tests.support.api import JPEG, published, uploaded
from tests.support.factories import settle_job
from tests.support.http import a_jpeg, claimed, is_problem

CORRUPT = Failed(code="corrupt", message="The file is damaged.", detail="SECRET")
SAID = {"code": "corrupt", "message": "The file is damaged."}


async def fails(worker: Connection, accepted: dict[str, Any]) -> None:
    await settle_job(worker, await claimed(worker, accepted["jobId"]), CORRUPT)


async def look(client: httpx.AsyncClient, accepted: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = (await client.get(accepted["links"]["image"])).json()
    return shown


async def found(client: httpx.AsyncClient, **asked: str) -> list[str]:
    """The ids on all pages of a list, in order."""
    ids: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        answer = await client.get("/v1/images", params=asked | cursor)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        ids += [image["imageId"] for image in page["images"]]
        if "nextCursor" not in page:
            return ids
        cursor = {"cursor": page["nextCursor"]}


async def test_a_failed_image_says_why_and_which_job_it_was(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    image = await uploaded(acme, recipe="avif")
    pending = await look(acme, image)
    await fails(worker, image)

    shown = await acme.get(image["links"]["image"])

    told = shown.json()
    assert (pending["status"], "failure" in pending) == ("pending", False)
    assert (told["status"], told["failure"]) == ("failed", SAID)
    assert (told["recipe"], told["jobId"]) == ("avif", image["jobId"])
    assert "SECRET" not in shown.text
    assert (await acme.get("/v1/images")).json()["images"] == [told]


async def test_a_replacement_that_failed_is_told_while_the_older_revision_is_shown(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    image = await uploaded(acme)
    await published(worker, image)
    before = await look(acme, image)
    replacing = await acme.put(image["links"]["image"], content=a_jpeg(), headers=JPEG)
    under_way = await look(acme, image)
    await fails(worker, replacing.json())

    after = await look(acme, image)

    new_job = {"jobId": replacing.json()["jobId"]}
    assert under_way == before | new_job
    assert after == before | new_job | {"failure": SAID}
    assert (after["status"], after["revision"]) == ("ready", 1)


async def test_an_image_says_when_it_came(acme: httpx.AsyncClient, owner: Connection) -> None:
    shown = await look(acme, await uploaded(acme))

    created_at = await owner.fetchval("SELECT images.created_at FROM images")
    assert datetime.fromisoformat(shown["createdAt"]) == created_at


@pytest.fixture
async def one_of_each(acme: httpx.AsyncClient, worker: Connection) -> dict[str, str]:
    """An image of each status, in the order in which they came; ready is one that also failed."""
    images = {status: await uploaded(acme, reference=status) for status in STATUSES}
    await fails(worker, images["failed"])
    await published(worker, images["ready"])
    await published(worker, images["deleted"])
    again = await acme.put(images["ready"]["links"]["image"], content=a_jpeg(), headers=JPEG)
    await fails(worker, again.json())
    assert (await acme.delete(images["deleted"]["links"]["image"])).status_code == 202
    return {status: image["imageId"] for status, image in images.items()}


STATUSES = ("pending", "ready", "failed", "deleted")


async def test_images_are_found_by_their_status(
    acme: httpx.AsyncClient, rival: httpx.AsyncClient, one_of_each: dict[str, str]
) -> None:
    for status in STATUSES:
        assert [one_of_each[status]] == await found(acme, status=status), status
        assert [] == await found(rival, status=status)
        assert [one_of_each[status]] == await found(acme, status=status, reference=status)
        assert [] == await found(acme, status=status, reference="other")


async def test_an_image_is_found_by_what_its_last_job_came_to(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    image = await uploaded(acme)
    await fails(worker, image)
    again = (await acme.post(f"{image['links']['image']}/reprocess")).json()

    pending = await found(acme, status="pending"), await found(acme, status="failed")
    await fails(worker, again)
    failed = await found(acme, status="pending"), await found(acme, status="failed")

    assert pending == ([image["imageId"]], [])
    assert failed == ([], [image["imageId"]]), "and once, though two of its jobs have failed"


async def test_images_are_found_by_when_they_came(acme: httpx.AsyncClient) -> None:
    images = [(await look(acme, await uploaded(acme, reference="r"))) for _ in range(4)]
    ids, moments = [each["imageId"] for each in images], [each["createdAt"] for each in images]
    first, last = moments[0], moments[-1]

    assert ids[:0:-1] == await found(acme, createdAfter=first)
    assert ids[-2::-1] == await found(acme, createdBefore=last, limit="2")
    assert ids[2:0:-1] == await found(acme, createdAfter=first, createdBefore=last)
    assert ids[2:0:-1] == await found(
        acme, createdAfter=first, createdBefore=last, status="pending", reference="r", limit="1"
    )
    assert [] == await found(acme, createdAfter=last)
    assert [] == await found(acme, createdAfter=first, status="ready")


async def test_a_filter_that_no_image_can_meet_is_refused(acme: httpx.AsyncClient) -> None:
    answer = await acme.get("/v1/images?status=completed")

    is_problem(answer, 422, "invalid_request")
    (fault,) = answer.json()["errors"]
    assert fault["detail"] == "must be 'pending', 'ready', 'failed' or 'deleted'"
    is_problem(await acme.get("/v1/images?createdAfter=yesterday"), 422, "invalid_request")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"status": "pending"}, "pending"),
        ({"status": "failed"}, "failed"),
        ({"status": "ready"}, "ready"),
        ({"status": "deleted"}, "deleted"),
        ({"status": "failed", "reference": "r"}, "failed"),
        ({"createdAfter": "2020-01-01T00:00:00Z"}, "all"),
    ],
)
async def test_pages_with_filters_join_without_gap_or_overlap_however_few_are_looked_at(
    acme: httpx.AsyncClient,
    worker: Connection,
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, str],
    expected: str,
) -> None:
    images = [await uploaded(acme, reference="r") for _ in range(9)]
    for number, image in enumerate(images):
        if number % 3 == 1:
            await fails(worker, image)
        if number % 3 == 2:
            await published(worker, image)
    for image in images[5:6]:
        await acme.delete(image["links"]["image"])
    by_status: dict[str, list[str]] = {}
    for image in images[::-1]:
        by_status.setdefault((await look(acme, image))["status"], []).append(image["imageId"])
    by_status["all"] = [image["imageId"] for image in images[::-1]]

    for most in (1, 2, 5, 2000):
        monkeypatch.setattr(listing, "MOST_LOOKED_AT", most)
        for limit in ("1", "2", "100"):
            assert by_status[expected] == await found(acme, **asked, limit=limit), (most, limit)


async def test_a_page_looks_at_a_bounded_number_of_images(
    acme: httpx.AsyncClient, api: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [(await uploaded(acme))["imageId"] for _ in range(5)]
    monkeypatch.setattr(listing, "MOST_LOOKED_AT", 2)

    page = (await acme.get("/v1/images?status=ready")).json()

    assert page == {"images": [], "nextCursor": images[3]}
    rest = listing.ImageFilter(status=ImageStatus.READY)
    tenant = TenantId("acme")
    looked = await listing.list_images(api, tenant, rest, after=UUID(images[0]))
    assert looked.next_cursor is None
