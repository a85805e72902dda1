"""Focal points over HTTP: moved by PATCH."""

from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from tests.support.api import JPEG, published, uploaded
from tests.support.http import a_png, is_problem, told
from tests.support.image_rows import bury
from tests.support.rows import job_row

HERE = {"x": 0.3, "y": 0.7}


async def payload_of(owner: Connection, accepted: dict[str, Any]) -> dict[str, Any]:
    row = await job_row(owner, JobId(UUID(accepted["jobId"])))
    payload: dict[str, Any] = row["payload"]
    return payload


async def point_of(client: httpx.AsyncClient, image: dict[str, Any]) -> object:
    return (await client.get(image["links"]["image"])).json().get("focalPoint")


async def moved(
    client: httpx.AsyncClient, image: dict[str, Any], point: object, **headers: str
) -> httpx.Response:
    return await client.patch(image["links"]["image"], json={"focalPoint": point}, headers=headers)


async def test_a_move_is_a_job_and_is_shown_once_that_is_done(
    acme: httpx.AsyncClient, worker: Connection, owner: Connection
) -> None:
    image = await uploaded(acme, recipe="avif")
    await published(worker, image)

    answer = await moved(acme, image, HERE)

    assert answer.status_code == 202, answer.text
    accepted = answer.json()
    assert answer.headers["Location"] == accepted["links"]["self"]
    assert (image["imageId"], "queued") == (accepted["imageId"], accepted["status"])
    added = {"focal": [0.3, 0.7], "crops_only": True, "source_seq": 1, "recipe": "default"}
    told, before = await payload_of(owner, accepted), await payload_of(owner, image)
    assert told == before | added | {
        "recipe_hash": told["recipe_hash"],
        "slow": "unknown_recipe",  # of another release, as the fixture published it
    }
    row = await job_row(owner, JobId(UUID(accepted["jobId"])))
    assert (row["target_seq"], row["services"]) == (2, ["s3"])
    assert await point_of(acme, image) is None


async def test_what_changes_nothing_is_answered_with_the_image(
    acme: httpx.AsyncClient, worker: Connection, owner: Connection
) -> None:
    image = await uploaded(acme)
    await published(worker, image)

    answer = await moved(acme, image, None)

    assert answer.status_code == 200
    assert answer.json() == (await acme.get(image["links"]["image"])).json()
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 1


async def test_a_repeat_gets_the_same_answer_and_another_request_none(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    image = await uploaded(acme)
    header = {"Idempotency-Key": "move-1"}

    first = await moved(acme, image, HERE, **header)
    in_the_body = await acme.patch(
        image["links"]["image"], json={"focalPoint": HERE, "idempotencyKey": "move-1"}
    )
    other = await moved(acme, image, None, **header)

    assert (202, first.content) == (first.status_code, in_the_body.content)
    is_problem(other, 422, "idempotency_conflict")
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 2


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"focalPoint": {"x": 0.5}},
        {"focalPoint": {"x": 0.5, "y": 1.01}},
        {"focalPoint": {"x": -0.01, "y": 0.5}},
        {"focalPoint": {"x": "0.5", "y": 0.5}},
        {"focalPoint": {"x": True, "y": 0.5}},
        {"focalPoint": {"x": None, "y": None}},
        {"focalPoint": [0.5, 0.5]},
        {"focalPoint": {**HERE, "z": 0}},
        {"focalPoint": HERE, "reference": "another"},
    ],
)
async def test_only_points_are_taken(
    acme: httpx.AsyncClient, owner: Connection, document: dict[str, object]
) -> None:
    image = await uploaded(acme)

    answer = await acme.patch(image["links"]["image"], json=document)

    is_problem(answer, 422, "invalid_request")
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 1


async def test_what_is_no_json_is_refused(acme: httpx.AsyncClient) -> None:
    image = await uploaded(acme)

    is_problem(
        await acme.patch(image["links"]["image"], content=a_png(), headers=JPEG),
        *(415, "unsupported_media_type"),
    )
    not_json = {"Content-Type": "application/json"}
    body = b'{"focalPoint": {"x": NaN, "y": 0}}'
    is_problem(
        await acme.patch(image["links"]["image"], content=body, headers=not_json),
        *(400, "invalid_json"),
    )


async def test_a_deleted_image_and_that_of_another_are_not_moved(
    acme: httpx.AsyncClient, rival: httpx.AsyncClient, api: Connection
) -> None:
    image, theirs = await uploaded(acme), await uploaded(rival)
    nobodys = {"links": {"image": f"/v1/images/{uuid4()}"}}
    before = await moved(acme, image, HERE, **{"Idempotency-Key": "before"})
    await bury(api, UUID(image["imageId"]))

    answers = [await moved(acme, each, HERE) for each in (image, theirs, nobodys)]

    assert [(409, "image_deleted"), (404, "not_found"), (404, "not_found")] == [
        told(answer) for answer in answers
    ]
    again = await moved(acme, image, HERE, **{"Idempotency-Key": "before"})
    assert again.content == before.content


async def test_a_move_is_taken_where_other_new_jobs_are(
    acme: httpx.AsyncClient, superuser: Connection
) -> None:
    await superuser.execute("UPDATE tenants SET max_open_jobs = 1 WHERE id = 'acme'")
    image = await uploaded(acme)

    full = await moved(acme, image, HERE)
    await superuser.execute(
        "INSERT INTO pauses (scope, name, refuse_new, paused_by, reason)"
        " VALUES ('type', 'process_image', true, 'tests', 'why')"
    )
    paused = await moved(acme, image, HERE)

    is_problem(full, 429, "too_many_open_jobs")
    is_problem(paused, 503, "submits_paused")
