"""Uploads past the API: a form for S3, and what was posted with it becoming an image."""

import asyncio
import base64
import json
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.api.http import limiting
from imagefleet.api.http.intake import REFUSED_HEAD
from imagefleet.api.http.limiting import Limiting
from imagefleet.aws.objects import Headers, Objects
from imagefleet.jobs.model import JobId, TenantId
from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import ApiKey
from tests.support.api import MAX_UPLOAD_BYTES, Running, app_of
from tests.support.http import a_jpeg, a_png, but_for_its_id, is_problem
from tests.support.images import jpeg_claiming, png_claiming
from tests.support.rows import job_row


async def prepared(client: httpx.AsyncClient, **asked: object) -> dict[str, Any]:
    answer = await client.post("/v1/uploads", json={"contentType": "image/jpeg"} | asked)
    assert answer.status_code == 201, answer.text
    upload: dict[str, Any] = answer.json()
    return upload


async def posted(upload: dict[str, Any], body: bytes) -> httpx.Response:
    async with httpx.AsyncClient() as browser:
        return await browser.post(
            upload["url"], data=upload["fields"], files={"file": ("a.jpg", body)}
        )


async def test_a_posted_file_becomes_an_image(acme: httpx.AsyncClient, owner: Connection) -> None:
    upload = await prepared(acme)
    assert (await posted(upload, a_jpeg())).is_success

    answer = await acme.post(
        "/v1/images", json={"uploadId": upload["uploadId"], "reference": "r", "recipe": "avif"}
    )

    assert answer.status_code == 202, answer.text
    assert answer.json()["imageId"] == upload["imageId"]
    payload = (await job_row(owner, JobId(UUID(answer.json()["jobId"]))))["payload"]
    assert payload["source_key"] == upload["fields"]["key"]
    assert (payload["source_bytes"], payload["recipe"]) == (len(a_jpeg()), "avif")
    assert payload["source_etag"]
    shown = (await acme.get(f"/v1/images/{upload['imageId']}")).json()
    assert (shown["status"], shown["reference"]) == ("pending", "r")


async def test_one_upload_is_one_image_however_often_it_is_said(
    acme: httpx.AsyncClient, owner: Connection, originals: Objects
) -> None:
    upload = await prepared(acme)
    await posted(upload, a_jpeg())
    asked = {"uploadId": upload["uploadId"]}

    answers = await asyncio.gather(*(acme.post("/v1/images", json=asked) for _ in range(10)))
    await originals.delete([upload["fields"]["key"]])
    later = await acme.post("/v1/images", json=asked)
    other = await acme.post("/v1/images", json=asked | {"recipe": "avif"})
    under_a_key = await acme.post("/v1/images", json=asked, headers={"Idempotency-Key": "k"})

    assert {later.content} == {answer.content for answer in answers}
    is_problem(other, 422, "idempotency_conflict")
    is_problem(under_a_key, 409, "upload_used")
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 1


async def test_nothing_posted_is_no_image(acme: httpx.AsyncClient, owner: Connection) -> None:
    upload = await prepared(acme)

    answer = await acme.post("/v1/images", json={"uploadId": upload["uploadId"]})

    is_problem(answer, 409, "upload_incomplete")
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 0


async def test_another_tenants_upload_does_not_exist(
    acme: httpx.AsyncClient, rival: httpx.AsyncClient
) -> None:
    upload = await prepared(acme)
    await posted(upload, a_jpeg())

    theirs = await rival.post("/v1/images", json={"uploadId": upload["uploadId"]})
    nobodys = await rival.post("/v1/images", json={"uploadId": str(uuid4())})

    is_problem(theirs, 404, "not_found")
    assert but_for_its_id(theirs) == but_for_its_id(nobodys)


async def test_what_is_larger_than_it_may_be_is_no_image(
    acme: httpx.AsyncClient, originals: Objects
) -> None:
    upload = await prepared(acme, maxBytes=100)
    # S3 refuses that itself; whoever stands in for it may not.
    key = upload["fields"]["key"]
    await originals.put(key, a_jpeg(), Headers(content_type="image/jpeg"))

    answer = await acme.post("/v1/images", json={"uploadId": upload["uploadId"]})

    is_problem(answer, 413, "too_large")


async def test_an_empty_file_is_no_image(acme: httpx.AsyncClient, originals: Objects) -> None:
    upload = await prepared(acme)
    await originals.put(upload["fields"]["key"], b"", Headers(content_type="image/jpeg"))

    answer = await acme.post("/v1/images", json={"uploadId": upload["uploadId"]})

    is_problem(answer, 422, "empty_file")


@pytest.mark.parametrize(
    ("declared", "body", "status", "code"),
    [
        ("image/png", a_jpeg(), 415, "type_mismatch"),
        ("image/jpeg", a_png(), 415, "type_mismatch"),
        ("image/jpeg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "unsupported"),
        ("image/png", png_claiming(20_000, 10_000), 422, "too_many_pixels"),
        ("image/jpeg", jpeg_claiming(7_000, 7_000), 422, "corrupt"),
        ("image/jpeg", b"\xff\xd8" + b"\xff\xfe\x00\x02" * 5_000, 422, "too_many_parts"),
    ],
)
async def test_what_was_posted_is_judged_by_its_bytes(
    acme: httpx.AsyncClient,
    owner: Connection,
    declared: str,
    body: bytes,
    status: int,
    code: str,
) -> None:
    upload = await prepared(acme, contentType=declared)
    assert (await posted(upload, body)).is_success  # S3 believes the form

    answer = await acme.post("/v1/images", json={"uploadId": upload["uploadId"]})

    is_problem(answer, status, code)
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 0


async def test_after_a_refusal_the_right_file_may_still_be_posted(acme: httpx.AsyncClient) -> None:
    upload = await prepared(acme, contentType="image/png")
    await posted(upload, a_jpeg())
    asked = {"uploadId": upload["uploadId"]}
    is_problem(await acme.post("/v1/images", json=asked), 415, "type_mismatch")

    await posted(upload, a_png())

    assert (await acme.post("/v1/images", json=asked)).status_code == 202


async def test_looking_at_what_was_posted_takes_a_place_and_counts_its_bytes(
    running: Running, acme: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiting: Limiting = app_of(running).state.limiting
    upload = await prepared(acme, contentType="image/png")
    asked = {"uploadId": upload["uploadId"]}
    await posted(upload, a_jpeg())
    ours = limiting.tenants.of(TenantId("acme"))
    places: list[int] = []
    sent: list[int] = []
    usual = limiting.sent

    def counted(key: ApiKey, size_bytes: int) -> None:
        places.append(ours.uploads)
        sent.append(size_bytes)
        usual(key, size_bytes)

    monkeypatch.setattr(limiting, "sent", counted)

    is_problem(await acme.post("/v1/images", json=asked), 415, "type_mismatch")

    assert (places[-1], sent[-1]) == (1, len(a_jpeg()))
    assert ours.uploads == 0
    limiting._override = lambda _, name: 0 if name.startswith("uploads") else None
    answer = await acme.post("/v1/images", json=asked)
    is_problem(answer, 429, "limit_reached")
    assert answer.json()["limit"] == "uploads_waiting"


async def test_what_is_refused_once_posted_costs_as_much_as_many_requests(
    running: Running, acme: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiting, "monotonic", lambda: 0.0)
    most = {"requests": REFUSED_HEAD // 2 + 1}  # twice as many at once
    app_of(running).state.limiting._override = lambda _, name: most.get(name)
    upload = await prepared(acme, contentType="image/png")
    asked = {"uploadId": upload["uploadId"]}
    await posted(upload, a_jpeg())

    is_problem(await acme.post("/v1/images", json=asked), 415, "type_mismatch")
    answer = await acme.post("/v1/images", json=asked)

    is_problem(answer, 429, "limit_reached")
    assert answer.json()["limit"] == "requests"


async def test_a_form_is_for_one_key_one_type_and_a_size(acme: httpx.AsyncClient) -> None:
    upload = await prepared(acme, maxBytes=1000)
    policy = json.loads(base64.b64decode(upload["fields"]["policy"]))

    assert {"Content-Type": "image/jpeg"} in policy["conditions"]
    assert {"key": upload["fields"]["key"]} in policy["conditions"]
    assert ["content-length-range", 1, 1000] in policy["conditions"]

    assert upload["maxBytes"] == 1000
    assert upload["fields"]["Content-Type"] == "image/jpeg"
    assert upload["fields"]["key"].startswith(f"o/{upload['imageId']}/")


async def test_what_cannot_be_uploaded_is_refused(acme: httpx.AsyncClient) -> None:
    cases: list[tuple[dict[str, object], int, str]] = [
        ({}, 422, "invalid_request"),
        ({"contentType": "image/svg+xml"}, 415, "unsupported"),
        ({"contentType": "image/jpeg", "maxBytes": 0}, 422, "invalid_request"),
        ({"contentType": "image/jpeg", "maxBytes": MAX_UPLOAD_BYTES + 1}, 413, "too_large"),
        ({"contentType": "image/jpeg", "key": "o/other"}, 422, "invalid_request"),
    ]
    for asked, status, code in cases:
        is_problem(await acme.post("/v1/uploads", json=asked), status, code)


async def test_what_is_said_of_an_upload_is_judged(acme: httpx.AsyncClient) -> None:
    upload_id = str(uuid4())
    cases: list[tuple[dict[str, object], str]] = [
        ({"uploadId": "no"}, "invalid_request"),
        ({"uploadId": upload_id, "recipe": "none-of-ours"}, "unknown_recipe"),
        ({"uploadId": upload_id, "reference": "a\x00"}, "invalid_request"),
        ({"uploadId": upload_id, "tenant": "rival"}, "invalid_request"),
    ]
    for asked, code in cases:
        is_problem(await acme.post("/v1/images", json=asked), 422, code)
    in_query = await acme.post("/v1/images?recipe=default", json={"uploadId": upload_id})
    is_problem(in_query, 422, "invalid_request")
