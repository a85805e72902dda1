"""Operators and images over HTTP: any tenant's, with their past, and orders on their behalf."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.jobs.lifecycle import Failed
from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from imagefleet.store.images import listing
from tests.cli.conftest import Cli
from tests.support.api import JPEG, Running, published, uploaded
from tests.support.factories import settle_job
from tests.support.http import a_jpeg, a_png, claimed, is_problem
from tests.support.rows import job_row

IMAGES = "/v1/operator/images"
OCTETS = "application/octet-stream"
CORRUPT = Failed(code="corrupt", message="The file is damaged.")
HERE = {"x": 0.3, "y": 0.7}


async def found(client: httpx.AsyncClient, **asked: str) -> list[str]:
    """The ids on all pages of a list, in order."""
    ids: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        answer = await client.get(IMAGES, params=asked | cursor)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        ids += [image["imageId"] for image in page["images"]]
        if "nextCursor" not in page:
            return ids
        cursor = {"cursor": page["nextCursor"]}


async def audited(superuser: Connection) -> list[tuple[str, str, str, str]]:
    rows = await superuser.fetch("SELECT * FROM audit WHERE kind = 'image' ORDER BY id")
    return [(row["action"], row["name"], row["tenant_id"], row["reason"]) for row in rows]


@pytest.fixture
async def some(
    acme: httpx.AsyncClient, rival: httpx.AsyncClient, worker: Connection
) -> dict[str, str]:
    """An image of each status, the oldest first; by status its id."""
    ready = await uploaded(acme, reference="order-7")
    await published(worker, ready)
    failed = await uploaded(rival)
    await settle_job(worker, await claimed(worker, failed["jobId"]), CORRUPT)
    gone = await uploaded(acme)
    await acme.delete(gone["links"]["image"])
    pending = await uploaded(rival, reference="order-7")
    return {
        "ready": str(ready["imageId"]), "failed": str(failed["imageId"]),
        "deleted": str(gone["imageId"]), "pending": str(pending["imageId"]),
    }  # fmt: skip


async def test_lists_hold_the_images_of_all_tenants_newest_first(
    operating: httpx.AsyncClient, some: dict[str, str]
) -> None:
    newest = list(reversed(some.values()))

    assert newest == await found(operating)
    assert newest == await found(operating, limit="1")
    for status, image_id in some.items():
        assert [image_id] == await found(operating, status=status)
    assert [some["pending"], some["ready"]] == await found(operating, reference="order-7")
    assert [some["ready"]] == await found(operating, reference="order-7", status="ready")
    assert [some["pending"], some["failed"]] == await found(operating, tenant="rival")
    assert [some["failed"]] == await found(operating, tenant="rival", status="failed")
    assert [] == await found(operating, tenant="rival", status="ready")


async def test_a_list_may_be_of_a_time(operating: httpx.AsyncClient, some: dict[str, str]) -> None:
    page = (await operating.get(IMAGES)).json()["images"]
    stamp = {image["imageId"]: image["createdAt"] for image in page}
    moment = stamp[some["deleted"]]

    for more in ({}, {"tenant": "rival"}):
        after = await found(operating, createdAfter=moment, **more)
        before = await found(operating, createdBefore=moment, **more)
        assert some["pending"] in after
        assert some["failed"] in before
        assert some["deleted"] not in [*after, *before]
    later = (datetime.fromisoformat(moment) + timedelta(days=2)).isoformat()
    assert [] == await found(operating, createdAfter=later)


async def test_a_page_that_found_little_says_where_to_go_on(
    operating: httpx.AsyncClient, some: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST_LOOKED_AT", 2)

    first = (await operating.get(IMAGES, params={"status": "ready"})).json()

    assert [] == first["images"]
    assert [some["ready"]] == await found(operating, status="ready")


async def test_ids_that_begin_alike_are_found_whosever_they_are(
    operating: httpx.AsyncClient, some: dict[str, str]
) -> None:
    image_id = some["failed"]

    assert [image_id] == await found(operating, idPrefix=image_id)
    assert [image_id] == await found(operating, idPrefix=image_id, tenant="rival")
    assert [] == await found(operating, idPrefix=image_id, tenant="acme")
    assert [] == await found(operating, idPrefix="ffffffff")


async def test_a_whole_image_has_its_past(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient, worker: Connection
) -> None:
    image = await uploaded(acme)
    await published(worker, image)
    path = f"{IMAGES}/{image['imageId']}"
    await acme.put(f"/v1/images/{image['imageId']}", content=a_jpeg(), headers=JPEG)

    whole = (await operating.get(path)).json()

    assert ("acme", "ready") == (whole["tenant"], whole["status"])
    (revision,) = whole["revisions"]
    assert (whole["revision"], whole["source"]["width"]) == (
        revision["revision"],
        revision["width"],
    )
    assert 2 == len(whole["originals"])
    newer, older = (original["sourceSeq"] for original in whole["originals"])
    assert newer > older == revision["sourceSeq"]
    assert whole["variants"][0]["url"].startswith("https://")
    is_problem(await operating.get(f"{IMAGES}/{uuid4()}"), 404, "not_found")


async def test_it_says_whether_its_recipe_cuts(
    operating: httpx.AsyncClient, some: dict[str, str], superuser: Connection
) -> None:
    path = f"{IMAGES}/{some['pending']}"

    known = (await operating.get(path)).json()
    await superuser.execute("UPDATE images SET recipe_hash = repeat('0', 32)")
    unknown = (await operating.get(path)).json()

    assert True is known["cuts"]
    assert "cuts" not in unknown


async def test_a_deleted_one_shows_its_receipt(
    operating: httpx.AsyncClient, some: dict[str, str]
) -> None:
    whole = (await operating.get(f"{IMAGES}/{some['deleted']}")).json()

    assert "deleted" == whole["status"]
    assert "requestedAt" in whole["deletion"]


Order = Callable[[httpx.AsyncClient, str], Any]
ORDERS: dict[str, tuple[Order, str, str]] = {
    "reprocess": (
        lambda client, path: client.post(
            f"{path}/reprocess", json={"reason": "mended", "recipe": "avif"}
        ),
        "process_image",
        "reprocess",
    ),
    "focal": (
        lambda client, path: client.patch(path, json={"reason": "mended", "focalPoint": HERE}),
        "process_image",
        "move_focal",
    ),
    "replace": (
        lambda client, path: client.put(
            path, params={"reason": "mended"}, content=a_png(), headers={"Content-Type": OCTETS}
        ),
        "process_image",
        "replace",
    ),
    "delete": (
        lambda client, path: client.delete(path, params={"reason": "mended"}),
        "delete_image",
        "delete",
    ),
}


@pytest.mark.parametrize("name", ORDERS)
async def test_an_order_is_a_job_of_the_tenants_and_a_line_of_the_audit(
    name: str,
    operating: httpx.AsyncClient,
    rival: httpx.AsyncClient,
    superuser: Connection,
) -> None:
    order, job_type, action = ORDERS[name]
    image = await uploaded(rival)
    image_id = str(image["imageId"])

    answer = await order(operating, f"{IMAGES}/{image_id}")

    assert answer.status_code == 202, answer.text
    job = await job_row(superuser, JobId(UUID(answer.json()["jobId"])))
    assert ("rival", job_type, f"image:{image_id}") == (
        job["tenant_id"],
        job["type"],
        job["target"],
    )
    assert answer.headers["location"] == answer.json()["links"]["self"]
    assert [(action, image_id, "rival", "mended")] == await audited(superuser)
    shown = (await rival.get(f"/v1/images/{image_id}")).json()
    assert (name == "delete") == (shown["status"] == "deleted")
    is_problem(await order(operating, f"{IMAGES}/{uuid4()}"), 404, "not_found")


async def test_what_changes_nothing_is_not_told(
    operating: httpx.AsyncClient,
    rival: httpx.AsyncClient,
    superuser: Connection,
) -> None:
    image = await uploaded(rival)
    path = f"{IMAGES}/{image['imageId']}"

    unmoved = await operating.patch(path, json={"reason": "mended", "focalPoint": None})
    first = await operating.post(f"{path}/reprocess", json={"reason": "mended"})
    again = await operating.post(f"{path}/reprocess", json={"reason": "mended"})
    gone = await operating.delete(path)
    gone_again = await operating.delete(path)

    assert (200, "rival") == (unmoved.status_code, unmoved.json()["tenant"])
    assert first.json()["jobId"] == again.json()["jobId"]
    assert gone.json()["jobId"] == gone_again.json()["jobId"]
    told = [action for action, *_ in await audited(superuser)]
    assert ["reprocess", "delete"] == told
    after = await operating.post(f"{path}/reprocess", json={"reason": "mended", "recipe": "avif"})
    is_problem(after, 409, "image_deleted")


async def test_a_replacement_that_is_sent_again_is_one_and_what_is_no_image_is_none(
    operating: httpx.AsyncClient, rival: httpx.AsyncClient, superuser: Connection
) -> None:
    image = await uploaded(rival)
    path, why = f"{IMAGES}/{image['imageId']}", {"reason": "mended"}
    headers = {"Content-Type": OCTETS, "Idempotency-Key": "once"}

    first = await operating.put(path, params=why, content=a_png(), headers=headers)
    again = await operating.put(path, params=why, content=a_png(), headers=headers)
    nothing = await operating.put(
        path, params=why, content=b"x" * 99, headers={"Content-Type": OCTETS}
    )

    assert first.json()["jobId"] == again.json()["jobId"]
    assert nothing.is_client_error
    assert ["replace"] == [action for action, *_ in await audited(superuser)]
    sources = "SELECT tenant_id, content_type FROM image_sources ORDER BY source_seq"
    assert [("rival", "image/jpeg"), ("rival", "image/png")] == [
        tuple(row) for row in await superuser.fetch(sources)
    ]
    await operating.delete(path)
    gone = await operating.put(path, params=why, content=a_png(), headers={"Content-Type": OCTETS})
    is_problem(gone, 409, "image_deleted")


async def test_the_command_line_orders_and_looks_as_an_operator(
    operate: Cli, running: Running, rival: httpx.AsyncClient, tmp_path: Path
) -> None:
    file = tmp_path / "new.png"
    file.write_bytes(a_png())
    image_id = str((await uploaded(rival))["imageId"])

    listed = await operate("images", "list", "--tenant", "rival")
    shown = await operate("images", "show", "--full", image_id[:20])
    moved = await operate("images", "focal", "--reason", "mended", image_id, "0.3", "0.7")
    again = await operate("images", "reprocess", "--reason", "mended", image_id)
    given = await operate("images", "replace", "--reason", "mended", image_id, str(file))
    waits = await operate("images", "reprocess", "--reason", "mended", "--wait", image_id)
    gone = await operate("images", "delete", "--reason", "mended", "--yes", image_id)

    assert [0, 0, 0, 0, 0, 2, 0] == [
        ended.code for ended in (listed, shown, moved, again, given, waits, gone)
    ]
    assert image_id in listed.out
    assert "rival" in shown.out
    for ended in (moved, again, given, gone):
        assert "queued" in ended.out
