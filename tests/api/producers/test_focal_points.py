"""Focal points over HTTP: given with an upload, shown with the image."""

from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from tests.api.producers.test_presigned import posted, prepared
from tests.support.api import JPEG, uploaded
from tests.support.http import a_jpeg, is_problem
from tests.support.rows import job_row

HERE = {"x": 0.3, "y": 0.7}


async def payload_of(owner: Connection, accepted: dict[str, Any]) -> dict[str, Any]:
    row = await job_row(owner, JobId(UUID(accepted["jobId"])))
    payload: dict[str, Any] = row["payload"]
    return payload


async def point_of(client: httpx.AsyncClient, image: dict[str, Any]) -> object:
    return (await client.get(image["links"]["image"])).json().get("focalPoint")


@pytest.mark.parametrize("how", ["raw", "form", "presigned", "replacement"])
async def test_a_point_comes_with_the_picture(
    acme: httpx.AsyncClient, owner: Connection, how: str
) -> None:
    query = {"focal": "0.3,0.7"}
    match how:
        case "raw":
            answer = await acme.post("/v1/images", content=a_jpeg(), headers=JPEG, params=query)
        case "form":
            file = {"file": ("a.jpg", a_jpeg(), "image/jpeg")}
            answer = await acme.post("/v1/images", files=file, params=query)
        case "presigned":
            upload = await prepared(acme)
            await posted(upload, a_jpeg())
            asked = {"uploadId": upload["uploadId"], "focalPoint": HERE}
            answer = await acme.post("/v1/images", json=asked)
        case _:
            path = (await uploaded(acme))["links"]["image"]
            answer = await acme.put(path, content=a_jpeg(), headers=JPEG, params=query)

    assert answer.status_code == 202, answer.text
    assert (await payload_of(owner, answer.json()))["focal"] == [0.3, 0.7]
    assert await point_of(acme, answer.json()) == HERE


async def test_without_one_nothing_is_said_of_it(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    image = await uploaded(acme)

    assert "focal" not in await payload_of(owner, image)
    assert await point_of(acme, image) is None


async def test_a_replacement_without_one_has_none(acme: httpx.AsyncClient) -> None:
    image = await uploaded(acme, focal="0.3,0.7")

    await acme.put(image["links"]["image"], content=a_jpeg(), headers=JPEG)

    assert await point_of(acme, image) is None


BROKEN = [
    *("", "0.3", "0.3,", "0.3,0.7,0.1", "0.3;0.7", "-0.1,0.5", "1.1,0.5", "0.5,1.01", "nan,0"),
    *("1e-1,0", "0.3, 0.7", " 0.3,0.7", ".3,.7", "a,b", "\u0660,\u0660", "0." + "3" * 99 + ",0"),
]


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_what_is_no_point_is_refused_by_name_before_the_picture_is_read(
    acme: httpx.AsyncClient, owner: Connection, method: str
) -> None:
    path = (await uploaded(acme))["links"]["image"] if method == "PUT" else "/v1/images"
    for focal in BROKEN:
        answer = await acme.request(
            method, path, content=b"no image", headers=JPEG, params={"focal": focal}
        )
        is_problem(answer, 422, "invalid_request")
        assert "focal" in str(answer.json()["errors"])
    assert await owner.fetchval("SELECT count(*) FROM jobs") == (method == "PUT")


async def test_with_json_the_point_belongs_into_the_body(acme: httpx.AsyncClient) -> None:
    answer = await acme.post("/v1/images?focal=0,0", json={"uploadId": str(uuid4())})

    is_problem(answer, 422, "invalid_request")


async def test_the_point_is_part_of_what_is_asked(acme: httpx.AsyncClient) -> None:
    header = JPEG | {"Idempotency-Key": "one"}

    answers = [
        await acme.post("/v1/images", content=a_jpeg(), headers=header, params=query)
        for query in ({"focal": "0.3,0.7"}, {"focal": "0.30,0.7"}, {"focal": "0.3,0.8"}, {})
    ]

    assert [202, 202, 422, 422] == [answer.status_code for answer in answers]
