"""A preview of an original: rendered by a worker, passed on by the API, and seen by nobody else."""

from io import BytesIO
from typing import Any
from urllib.parse import urlencode

import pytest
from PIL import Image

from imagefleet.worker.handlers.preview_original import SIDE
from tests.support.http import is_problem
from tests.support.images import CANARY, quadrants, saved, talkative
from tests.support.stack import Producer, Stack


async def ordered(operator: Producer, path: str, **asked: int) -> dict[str, Any]:
    query = urlencode({"reason": "a test", **asked})
    answer = await operator.post(f"{path}?{query}", None, f"preview {query}")
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


async def ended(operator: Producer, job: dict[str, Any]) -> dict[str, Any]:
    """The whole job, once it is over; its tenant is the demo's, whose key can wait for it."""
    await operator.ended(job["jobId"])
    whole: dict[str, Any] = (await operator.http.get(job["links"]["self"])).json()
    return whole


async def test_operators_see_a_small_picture_with_nothing_else_in_it(
    stack: Stack, producer: Producer
) -> None:
    image = (await producer.upload(talkative("JPEG"))).json()
    path = f"/v1/operator/images/{image['imageId']}/preview"

    async with stack.producer(key="operator_key") as operator:
        is_problem(await operator.http.get(path), 404, "not_found")
        job = await ended(operator, await ordered(operator, path))
        shown = await operator.http.get(path)
        is_problem(await producer.http.get(path), 403, "forbidden")
        is_problem(await operator.http.get(path, params={"sourceSeq": 77}), 404, "not_found")

    assert ("completed", "preview_original", 10) == (
        job["status"],
        job["jobType"],
        job["priority"],
    )
    assert (200, "image/webp", "no-store") == (
        shown.status_code,
        shown.headers["content-type"],
        shown.headers["cache-control"],
    )
    assert {"bytes": len(shown.content)} == job["result"]
    assert CANARY not in shown.content
    with Image.open(BytesIO(shown.content)) as picture:
        assert SIDE == max(picture.size)
        assert not picture.getexif()


async def test_of_what_is_damaged_it_says_so_and_leaves_no_letter(
    stack: Stack, producer: Producer
) -> None:
    whole = saved(quadrants(), "PNG")
    image = (await producer.upload(whole[: len(whole) // 2], "image/png")).json()
    assert "failed" == (await producer.ended(image["jobId"]))["status"]
    path = f"/v1/operator/images/{image['imageId']}/preview"

    async with stack.producer(key="operator_key") as operator:
        letter = (await operator.http.get(f"/v1/operator/dead-letters/{image['jobId']}")).json()
        order = await ordered(operator, path, sourceSeq=letter["sourceSeq"])
        job = await ended(operator, order)
        letters = await operator.http.get(
            "/v1/operator/dead-letters", params={"jobType": "preview_original"}
        )
        is_problem(await operator.http.get(path), 404, "not_found")

    assert image["imageId"] == letter["imageId"]
    assert ("completed", "corrupt") == (job["status"], job["result"]["failure"]["code"])
    assert [] == letters.json()["letters"]


@pytest.mark.parametrize("of", ["an image that was deleted", "nobody's image"])
async def test_of_what_is_not_kept_there_is_none(stack: Stack, producer: Producer, of: str) -> None:
    image_id = "0199a5c2-7d41-7000-8000-000000000000"
    if of != "nobody's image":
        image = (await producer.upload(saved(quadrants(64, 64)))).json()
        image_id = image["imageId"]
        await producer.http.delete(f"/v1/images/{image_id}")
    path = f"/v1/operator/images/{image_id}/preview"

    async with stack.producer(key="operator_key") as operator:
        is_problem(await operator.http.post(path), 404, "not_found")
        is_problem(await operator.http.get(path), 404, "not_found")


async def test_producers_order_none(producer: Producer) -> None:
    payload = {"image_id": "0199a5c2-7d41-7000-8000-000000000000", "source_seq": 1}

    answer = await producer.submit("preview_original", payload)

    is_problem(answer, 422, "use_another_route")
