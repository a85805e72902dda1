"""Originals read back over HTTP: by whom, which one, and what is told of those that are gone."""

from datetime import datetime, timedelta
from uuid import UUID

import httpx
import pytest

from imagefleet.aws.objects import Headers, Objects
from imagefleet.jobs.lifecycle import Failed
from imagefleet.store.database import Connection
from tests.support.api import Running, Serve, published, uploaded
from tests.support.factories import settle_job
from tests.support.http import a_jpeg, a_png, claimed, is_problem
from tests.support.image_rows import bury

GONE = "UPDATE image_sources SET gone_at = now() WHERE image_id = $1"


async def downloaded(url: str) -> httpx.Response:
    """As anybody fetches it: without a key."""
    async with httpx.AsyncClient(timeout=20) as anybody:
        return await anybody.get(url)


async def put(client: httpx.AsyncClient, image: dict[str, str]) -> dict[str, str]:
    png = {"Content-Type": "image/png"}
    answer = await client.put(f"/v1/images/{image['imageId']}", content=a_png(), headers=png)
    replaced: dict[str, str] = answer.json()
    return replaced


async def test_an_original_is_downloaded_byte_for_byte_from_an_address_that_is_short_lived(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    image = await uploaded(acme)
    await published(worker, image)

    answer = await acme.get(f"/v1/images/{image['imageId']}/original")
    told = answer.json()
    file = await downloaded(told["url"])

    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert (told["contentType"], told["bytes"]) == ("image/jpeg", len(a_jpeg()))
    assert "keptUntil" not in told
    assert "X-Amz-Expires=300" in told["url"]
    left = datetime.fromisoformat(told["expiresAt"]) - datetime.fromisoformat(told["acceptedAt"])
    assert timedelta(0) < left < timedelta(minutes=15)
    assert (file.status_code, file.content) == (200, a_jpeg())


async def test_what_a_stranger_sent_is_a_download_and_never_a_page(
    acme: httpx.AsyncClient,
) -> None:
    image = await uploaded(acme)

    told = (await acme.get(f"/v1/images/{image['imageId']}/original")).json()
    file = await downloaded(told["url"])

    name = f'attachment; filename="{image["imageId"]}.jpg"'
    assert (file.headers["content-disposition"], file.headers["content-type"]) == (
        name,
        "image/jpeg",
    )


async def test_an_address_that_was_changed_opens_nothing(acme: httpx.AsyncClient) -> None:
    image, other = await uploaded(acme), await uploaded(acme)

    told = (await acme.get(f"/v1/images/{image['imageId']}/original")).json()
    changed = told["url"].replace(image["imageId"], other["imageId"], 1)

    assert (await downloaded(changed)).status_code in {403, 404}


async def test_it_is_the_original_of_what_is_shown(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    image = await uploaded(acme)
    await published(worker, image)
    replacement = await put(acme, image)
    link = f"/v1/images/{image['imageId']}/original"

    before = (await acme.get(link)).json()
    await published(worker, replacement)
    after = (await acme.get(link)).json()

    assert (before["contentType"], after["contentType"]) == ("image/jpeg", "image/png")
    assert (await downloaded(after["url"])).content == a_png()


async def test_while_nothing_is_shown_it_is_the_newest_that_came(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    image = await uploaded(acme)
    job = await claimed(worker, image["jobId"])
    await settle_job(worker, job, Failed(code="corrupt", message="It is damaged."))
    await put(acme, image)

    told = (await acme.get(f"/v1/images/{image['imageId']}/original")).json()

    assert told["contentType"] == "image/png"


async def test_a_key_needs_leave_of_its_own_for_it(running: Running) -> None:
    async with running.client() as acme:
        image = await uploaded(acme)
    for who in ("reader", "submitter", "operator"):
        async with running.client(who) as client:
            answer = await client.get(f"/v1/images/{image['imageId']}/original")
        is_problem(answer, 403, "forbidden")


async def test_of_a_deleted_image_there_is_none(acme: httpx.AsyncClient) -> None:
    image = await uploaded(acme)
    await acme.delete(f"/v1/images/{image['imageId']}")

    is_problem(await acme.get(f"/v1/images/{image['imageId']}/original"), 409, "image_deleted")
    shown = (await acme.get(f"/v1/images/{image['imageId']}")).json()
    assert "original" not in shown


@pytest.mark.parametrize("how", ["forgotten", "missing", "another"])
async def test_an_original_that_is_not_there_is_told_so_before_anybody_asks_s3(
    acme: httpx.AsyncClient, owner: Connection, originals: Objects, how: str
) -> None:
    image = await uploaded(acme)
    key = await owner.fetchval("SELECT key FROM image_sources")
    if how == "forgotten":
        await owner.execute(GONE, UUID(image["imageId"]))
    else:
        await originals.delete([key])
    if how == "another":  # somebody posted a form once more
        await originals.put(key, b"another file", Headers(content_type="image/jpeg"))

    answer = await acme.get(f"/v1/images/{image['imageId']}/original")

    is_problem(answer, 409, "source_changed" if how == "another" else "original_gone")


async def test_an_image_tells_since_when_its_original_is_kept_and_until_when(
    serve: Serve, worker: Connection, owner: Connection
) -> None:
    async with serve(originals_kept_days=30) as running, running.client() as acme:
        image = await uploaded(acme)
        link = image["links"]["image"]
        pending = (await acme.get(link)).json()["original"]
        await published(worker, image)
        ready = (await acme.get(link)).json()["original"]
        (listed,) = (await acme.get("/v1/images")).json()["images"]
        told = (await acme.get(f"{link}/original")).json()
        await owner.execute(GONE, UUID(image["imageId"]))
        gone = (await acme.get(link)).json()["original"]

    accepted_at = datetime.fromisoformat(ready["acceptedAt"])
    assert timedelta(days=30) == datetime.fromisoformat(ready["keptUntil"]) - accepted_at
    assert pending == ready == listed["original"]
    assert (told["acceptedAt"], told["keptUntil"]) == (ready["acceptedAt"], ready["keptUntil"])
    assert gone == {"acceptedAt": ready["acceptedAt"], "gone": True}


async def test_without_its_original_nothing_is_rendered_again_and_what_is_shown_stays(
    acme: httpx.AsyncClient, worker: Connection, owner: Connection
) -> None:
    image = await uploaded(acme)
    await published(worker, image)
    link = f"/v1/images/{image['imageId']}"
    key = {"Idempotency-Key": "asked-before"}
    before = await acme.post(f"{link}/reprocess", headers=key)
    await published(worker, before.json())
    shown = (await acme.get(link)).json()
    await owner.execute(GONE, UUID(image["imageId"]))

    is_problem(await acme.post(f"{link}/reprocess"), 409, "original_gone")
    moved = await acme.patch(link, json={"focalPoint": {"x": 0.5, "y": 0.5}})
    is_problem(moved, 409, "original_gone")
    again = await acme.post(f"{link}/reprocess", headers=key)
    assert (again.status_code, again.json()["jobId"]) == (202, before.json()["jobId"])
    assert (await acme.get(link)).json()["variants"] == shown["variants"]

    await published(worker, await put(acme, image))
    assert (await acme.post(f"{link}/reprocess")).status_code == 202


async def test_of_an_image_that_was_deleted_that_is_told_and_no_more(
    acme: httpx.AsyncClient, owner: Connection, api: Connection
) -> None:
    image = await uploaded(acme)
    await owner.execute(GONE, UUID(image["imageId"]))
    await bury(api, UUID(image["imageId"]))

    answer = await acme.post(f"/v1/images/{image['imageId']}/reprocess")

    is_problem(answer, 409, "image_deleted")
