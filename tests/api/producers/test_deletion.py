"""DELETE over HTTP: gone from the answer on, the same answer for the same image, and a receipt."""

from uuid import UUID

import httpx

from imagefleet.jobs.images import Emptied
from imagefleet.jobs.lifecycle import Completed
from imagefleet.store.database import Connection
from tests.support.api import ACME, JPEG, Running, published, uploaded
from tests.support.eventually import eventually
from tests.support.factories import settle_job
from tests.support.http import a_jpeg, claimed, is_problem, told


async def test_the_answer_names_the_job_and_from_then_on_the_image_is_gone(
    acme: httpx.AsyncClient, worker: Connection, owner: Connection
) -> None:
    accepted = await uploaded(acme)
    await published(worker, accepted)
    image_id = accepted["imageId"]
    stable = f"/i/{image_id}/current/thumb.webp"
    assert (await acme.get(stable)).status_code == 302

    answer = await acme.delete(accepted["links"]["image"])

    shown = answer.json()
    assert (answer.status_code, shown["status"], shown["imageId"]) == (202, "queued", image_id)
    assert answer.headers["location"] == shown["links"]["self"] == f"/v1/jobs/{shown['jobId']}"
    assert (await acme.get(shown["links"]["self"])).json()["jobType"] == "delete_image"
    gone = await acme.get(stable)
    assert (told(gone), gone.headers["cache-control"]) == ((404, "not_found"), "no-store")
    image = (await acme.get(accepted["links"]["image"])).json()
    assert (image["status"], image["variants"]) == ("deleted", [])
    key_id = await owner.fetchval("SELECT requested_by FROM image_tombstones")
    assert image["deletion"] == {
        "requestedAt": image["deletion"]["requestedAt"],
        "requestedBy": key_id,
    }


async def test_asked_again_it_is_the_same_job_whatever_the_key(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    image = (await uploaded(acme))["links"]["image"]

    answers = [
        await acme.delete(image, headers=headers)
        for headers in ({}, {"Idempotency-Key": "a"}, {"Idempotency-Key": "a"}, {})
    ]

    assert 1 == len({answer.json()["jobId"] for answer in answers})
    assert {202} == {answer.status_code for answer in answers}
    count = "SELECT count(*) FROM jobs WHERE type = 'delete_image'"
    assert 1 == await owner.fetchval(count)


async def test_a_key_of_another_request_is_refused_and_nothing_deleted(
    acme: httpx.AsyncClient,
) -> None:
    headers = JPEG | {"Idempotency-Key": "mine"}
    accepted = (await acme.post("/v1/images", content=a_jpeg(), headers=headers)).json()

    answer = await acme.delete(accepted["links"]["image"], headers={"Idempotency-Key": "mine"})

    is_problem(answer, 422, "idempotency_conflict")
    assert "pending" == (await acme.get(accepted["links"]["image"])).json()["status"]


async def test_one_key_does_not_stand_for_the_deletion_of_two_images(
    acme: httpx.AsyncClient,
) -> None:
    first, other = [(await uploaded(acme))["links"]["image"] for _ in range(2)]
    await acme.delete(first, headers={"Idempotency-Key": "mine"})

    answer = await acme.delete(other, headers={"Idempotency-Key": "mine"})

    is_problem(answer, 422, "idempotency_conflict")
    assert "pending" == (await acme.get(other)).json()["status"]


async def test_it_is_rung_at_once_with_the_jobs_that_cancel(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    await acme.delete((await uploaded(acme))["links"]["image"])

    async def rung() -> bool:
        rows = await owner.fetch("SELECT type FROM rings WHERE sent_at IS NOT NULL")
        return {"process_image", "delete_image", "cancel_job"} == {row["type"] for row in rows}

    await eventually(rung, within=5)


async def test_another_tenants_image_is_not_found_and_not_deleted(
    acme: httpx.AsyncClient, running: Running
) -> None:
    image = (await uploaded(acme))["links"]["image"]

    async with running.client("rival") as rival:
        foreign = await rival.delete(image)
    unknown = await acme.delete("/v1/images/0199a5c2-0000-7000-8000-000000000000")

    is_problem(foreign, 404, "not_found")
    is_problem(unknown, 404, "not_found")
    assert "pending" == (await acme.get(image)).json()["status"]


async def test_the_open_jobs_of_the_image_are_cancelled_with_it(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    accepted = await uploaded(acme)

    deletion = (await acme.delete(accepted["links"]["image"])).json()

    (cancel,) = await owner.fetch("SELECT * FROM jobs WHERE type = 'cancel_job'")
    assert cancel["parent_job_id"] == UUID(deletion["jobId"])
    assert cancel["payload"] == {
        "job_id": accepted["jobId"],
        "code": "image_deleted",
        "reason": "",
    }


async def test_the_receipt_says_what_s3_had_and_when_the_edge_was_dark(
    acme: httpx.AsyncClient, worker: Connection, owner: Connection
) -> None:
    accepted = await uploaded(acme)
    deletion = (await acme.delete(accepted["links"]["image"])).json()
    image_id = UUID(accepted["imageId"])
    emptied = Emptied(
        image_id=image_id, tenant_id=ACME, deleted=1, not_there=2, errors=3, keys=("o/1",)
    )
    job = await claimed(worker, deletion["jobId"])
    await settle_job(worker, job, Completed(emptied=emptied))
    await owner.execute(
        "UPDATE image_tombstones SET dark_at = requested_at + interval '1500 milliseconds'"
    )

    receipt = (await acme.get(accepted["links"]["image"])).json()["deletion"]

    expected = {"deleted": 1, "notThere": 2, "errors": 3, "keys": ["o/1"]}
    assert expected == receipt["objects"]
    assert 1.5 == receipt["secondsToDark"]
    assert {"requestedAt", "objectsDeletedAt", "invalidationId", "darkAt"} <= receipt.keys()
    listed = (await acme.get("/v1/images")).json()["images"]
    assert ["deleted"] == [image["status"] for image in listed]
