"""Images rendered again over HTTP: one of them, and sets of them as a job like any other."""

from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.jobs.lifecycle import Failed
from imagefleet.jobs.model import JobId, JobState
from imagefleet.store.database import Connection
from imagefleet.store.jobs.leases import report_progress
from tests.api.producers.test_events import listening
from tests.support.api import JPEG, published, uploaded
from tests.support.factories import settle_job
from tests.support.http import a_png, claimed, is_problem, submitted, told
from tests.support.image_rows import bury, renewal_of
from tests.support.recipes import RECIPES
from tests.support.rows import job_row


async def reprocessed(
    client: httpx.AsyncClient, image: dict[str, str], **asked: str
) -> dict[str, Any]:
    answer = await client.post(f"/v1/images/{image['imageId']}/reprocess", json=asked)
    assert answer.status_code == 202, answer.text
    shown: dict[str, str] = answer.json()
    return shown


async def test_an_image_is_rendered_again_as_another_revision(
    acme: httpx.AsyncClient, worker: Connection, owner: Connection
) -> None:
    first = await uploaded(acme)
    await published(worker, first)

    again = await reprocessed(acme, first, recipe="avif")

    assert (first["imageId"], "queued") == (again["imageId"], again["status"])
    old = await job_row(owner, JobId(UUID(first["jobId"])))
    new = await job_row(owner, JobId(UUID(again["jobId"])))
    avif = {"recipe": "avif", "recipe_hash": RECIPES["avif"].hash}
    assert old["payload"] | avif | {"source_seq": 1, "slow": "makes_avif"} == new["payload"]
    assert 1 == (await acme.get(first["links"]["image"])).json()["revision"]
    await published(worker, again)
    shown = (await acme.get(first["links"]["image"])).json()
    assert ("ready", 2) == (shown["status"], shown["revision"])


async def test_the_newest_original_is_taken_though_it_is_not_made_yet(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    image = await uploaded(acme, recipe="avif")
    png = {"Content-Type": "image/png"}
    replaced = await acme.put(image["links"]["image"], content=a_png(), headers=png)

    again = await reprocessed(acme, image)

    replacement = await job_row(owner, JobId(UUID(replaced.json()["jobId"])))
    row = await job_row(owner, JobId(UUID(again["jobId"])))
    assert replacement["payload"] | {"source_seq": 2} == row["payload"]
    assert ("avif", 3) == (row["payload"]["recipe"], row["target_seq"])


async def test_an_image_whose_job_failed_may_be_tried_again(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    image = await uploaded(acme)
    job = await claimed(worker, image["jobId"])
    await settle_job(worker, job, Failed(code="corrupt", message="It is damaged."))

    await published(worker, await reprocessed(acme, image))

    assert "ready" == (await acme.get(image["links"]["image"])).json()["status"]


async def test_a_repeat_gets_the_same_answer_and_another_request_none(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    image, other = await uploaded(acme), await uploaded(acme)
    path, elsewhere = (f"/v1/images/{each['imageId']}/reprocess" for each in (image, other))
    header = {"Idempotency-Key": "again-1"}

    without_body = await acme.post(path, headers=header)
    repeat = await acme.post(path, json={"idempotencyKey": "again-1"})

    assert without_body.content == repeat.content
    for answer in (
        await acme.post(path, json={"recipe": "avif"}, headers=header),
        await acme.post(elsewhere, headers=header),
    ):
        is_problem(answer, 422, "idempotency_conflict")
    assert 3 == await owner.fetchval("SELECT count(*) FROM jobs")


async def test_a_deleted_image_is_not_rendered_again(
    acme: httpx.AsyncClient, api: Connection
) -> None:
    image = await uploaded(acme)
    path = f"/v1/images/{image['imageId']}/reprocess"
    before = await acme.post(path, headers={"Idempotency-Key": "before"})
    await bury(api, UUID(image["imageId"]))

    is_problem(await acme.post(path), 409, "image_deleted")
    again = await acme.post(path, headers={"Idempotency-Key": "before"})
    assert before.content == again.content


async def test_what_is_no_image_of_the_tenant_is_not_found(
    acme: httpx.AsyncClient, rival: httpx.AsyncClient, owner: Connection
) -> None:
    theirs = await uploaded(rival)

    answers = [
        await acme.post(f"/v1/images/{image_id}/reprocess")
        for image_id in (theirs["imageId"], uuid4())
    ]

    assert [(404, "not_found")] * 2 == [told(answer) for answer in answers]
    theirs, nobodys = ({**answer.json(), "requestId": None} for answer in answers)
    assert theirs == nobodys
    assert 1 == await owner.fetchval("SELECT count(*) FROM jobs")


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"recipe": "nothing-of-ours"}, "unknown_recipe"),
        ({"recipe": "free?w=9999"}, "invalid_request"),
        ({"width": 9999}, "invalid_request"),
    ],
)
async def test_only_recipes_are_taken(
    acme: httpx.AsyncClient, asked: dict[str, object], code: str
) -> None:
    image = await uploaded(acme)

    is_problem(await acme.post(f"/v1/images/{image['imageId']}/reprocess", json=asked), 422, code)


async def test_uploads_are_not_read_as_orders(acme: httpx.AsyncClient) -> None:
    image = await uploaded(acme)

    answer = await acme.post(
        f"/v1/images/{image['imageId']}/reprocess", content=a_png(), headers=JPEG
    )

    is_problem(answer, 415, "unsupported_media_type")


# Sets.


async def test_a_set_is_a_job_that_anybody_may_submit(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    payload = {"reference": "r", "recipe": "avif"}

    job_id = await submitted(acme, jobType="reprocess_images", payload=payload)

    row = await job_row(owner, job_id)
    assert ("acme", "general", None) == (row["tenant_id"], row["lane"], row["target"])
    versions = {name: recipe.hash for name, recipe in RECIPES.items()}
    assert payload | {"recipe_hashes": versions} == row["payload"]


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({}, "invalid_payload"),
        ({"all_images": True, "reference": "r"}, "invalid_payload"),
        ({"image_ids": ["x"]}, "invalid_payload"),
        ({"all_images": True, "recipe": "nothing-of-ours"}, "unknown_recipe"),
        ({"recipe_was": "default@00000000"}, "unknown_recipe"),
        ({"recipe_was": f"avif@{RECIPES['default'].hash}"}, "unknown_recipe"),
        ({"recipe_was": "default@0"}, "invalid_payload"),
        ({"all_images": True, "recipe_hashes": {"default": "0" * 32}}, "invalid_payload"),
    ],
)
async def test_a_set_that_nobody_can_mean_is_refused(
    acme: httpx.AsyncClient, payload: dict[str, object], code: str
) -> None:
    answer = await acme.post("/v1/jobs", json={"jobType": "reprocess_images", "payload": payload})

    is_problem(answer, 422, code)


async def test_progress_is_shown_by_the_job_the_list_and_the_events(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    job_id = await submitted(acme, jobType="reprocess_images", payload={"all_images": True})
    job = await claimed(worker, job_id)
    async with listening(acme, job_id) as listener:
        before = (await listener.event())[1]
        await report_progress(worker, renewal_of(job), done=25, total=60, cursor={"before": "x"})
        told_by_event = (await listener.event())[1]

    shown = (await acme.get(f"/v1/jobs/{job_id}")).json()
    (listed,) = (await acme.get("/v1/jobs?jobType=reprocess_images")).json()["jobs"]
    assert "progress" not in before
    assert {"done": 25, "total": 60} == shown["progress"]
    assert JobState.PROCESSING == shown["status"]
    assert shown == told_by_event == listed
