"""What a producer asks for and is told, from outside: by HTTP, of workers that do the work."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import httpx

from tests.support.images import GREEN, png_claiming
from tests.support.published import a_picture, publish
from tests.support.stack import Producer, Stack

NO_PICTURE = png_claiming(600, 400)
JPEG = {"Content-Type": "image/jpeg"}


async def listed(producer: Producer, **filters: str) -> list[str]:
    answer = await producer.http.get("/v1/images", params=filters)
    assert answer.status_code == 200, answer.text
    return [image["imageId"] for image in answer.json()["images"]]


async def rendered_again(producer: Producer, image_id: str, **terms: object) -> str:
    path = f"/v1/images/{image_id}/reprocess"
    answer = await producer.post(path, None, f"{path} {uuid4()}", json=terms)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["jobId"]
    return job_id


async def test_a_picture_that_nobody_can_make_says_why_wherever_it_is_looked_for(
    producer: Producer,
) -> None:
    begun = datetime.now(UTC)
    good = await producer.upload(a_picture(GREEN))
    bad = await producer.upload(NO_PICTURE, "image/png")
    made, failed = [await producer.ended(one.json()["jobId"]) for one in (good, bad)]
    image = await producer.image(bad.json()["imageId"])

    reason = {"code": "corrupt", "message": "The image is damaged and cannot be read."}
    assert reason == failed["failure"] == image["failure"]
    assert "result" not in failed
    assert (failed["jobId"], "default") == (image["jobId"], image["recipe"])
    assert begun < datetime.fromisoformat(image["createdAt"]) < datetime.now(UTC)
    assert {"reason": "done", "imageId": made["imageId"], "revision": 1} == {
        name: value for name, value in made["result"].items() if name != "variants"
    }
    shown = await producer.image(made["imageId"])
    assert len(shown["variants"]) == made["result"]["variants"]
    assert made["createdBy"] == failed["createdBy"] == "api-key"

    since = {"createdAfter": begun.isoformat()}
    assert [image["imageId"]] == await listed(producer, status="failed", **since)
    assert [made["imageId"]] == await listed(producer, status="ready", **since)
    assert image["imageId"] not in await listed(producer, createdBefore=begun.isoformat())


async def test_an_upload_takes_the_terms_of_a_job(producer: Producer) -> None:
    """Not before its time, once however often it is asked for, and found by its name."""
    due = datetime.now(UTC) + timedelta(seconds=3)
    terms = f"dedupKey={uuid4()}&correlationId={uuid4()}&priority=7&runAt={due:%Y-%m-%dT%H:%M:%SZ}"
    path = f"/v1/images?{terms}"

    answers = [
        await producer.post(path, None, path, JPEG, content=a_picture(GREEN)) for _ in range(2)
    ]
    waiting = (await producer.http.get(f"/v1/jobs/{answers[0].json()['jobId']}")).json()
    ended = await producer.ended(waiting["jobId"])

    assert [202, 202] == [answer.status_code for answer in answers]
    first, second = (answer.json() for answer in answers)
    assert (first["jobId"], first["imageId"]) == (second["jobId"], second["imageId"])
    assert ("queued", f"{due:%Y-%m-%dT%H:%M:%SZ}") == (waiting["status"], waiting["nextAttemptAt"])
    assert "completed" == ended["status"]
    assert datetime.fromisoformat(ended["finishedAt"]) >= due.replace(microsecond=0)


async def test_a_producer_holds_back_looks_at_and_cancels_what_waits_at_an_image(
    producer: Producer,
) -> None:
    image = await publish(producer, GREEN)
    path = f"/v1/targets/image:{image.image_id}"

    paused = await producer.http.put(f"{path}/pause", json={"reason": "the originals are checked"})
    waits = [await rendered_again(producer, image.image_id) for _ in range(3)]
    seen = (await producer.http.get(path)).json()

    assert paused.status_code == 200, paused.text
    assert waits == [job["jobId"] for job in seen["jobs"]]
    assert {"queued"} == {job["status"] for job in seen["jobs"]}
    assert ("tenant", "the originals are checked") == (seen["pause"]["by"], seen["pause"]["reason"])

    order = await producer.post(f"{path}/cancel", None, f"cancel {path}", json={})
    cancelled = await producer.ended(order.json()["jobId"])
    ends = [await producer.ended(job_id) for job_id in waits]

    assert {"reason": "done", "flagged": 3} == cancelled["result"]
    assert ["cancelled"] * 3 == [end["failure"]["code"] for end in ends]

    again = await rendered_again(producer, image.image_id)
    resumed = await producer.http.delete(f"{path}/pause")

    assert resumed.status_code == 200, resumed.text
    assert "completed" == (await producer.ended(again))["status"]


async def test_an_original_is_read_back_as_it_was_sent_by_who_has_leave(stack: Stack) -> None:
    picture = a_picture(GREEN)
    async with stack.producer() as producer, stack.producer(key="operator_key") as trusted:
        answer = await producer.upload(picture)
        await producer.ended(answer.json()["jobId"])
        path = f"/v1/images/{answer.json()['imageId']}/original"

        refused = await producer.http.get(path)
        told = (await trusted.http.get(path)).json()

    async with httpx.AsyncClient(timeout=20) as anybody:
        original = await anybody.get(told["url"])

    assert (403, "forbidden") == (refused.status_code, refused.json()["code"])
    assert picture == original.content
    assert original.headers["content-disposition"].startswith("attachment")
