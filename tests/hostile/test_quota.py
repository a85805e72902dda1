"""At a full quota: whatever is tried leaves no object and no job behind."""

import asyncio
from datetime import UTC, datetime, timedelta

import httpx

from tests.faults.crowding import another_tenant
from tests.support.eventually import eventually
from tests.support.images import quadrants, saved
from tests.support.journal import listing
from tests.support.stack import Producer, Stack

LATER = timedelta(hours=1)
JPEG = {"Content-Type": "image/jpeg"}


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


FULL = (429, "too_many_open_jobs")


async def left(stack: Stack, tenant: str) -> tuple[set[str], int, int, int]:
    """What costs: originals of everybody, and the tenant's jobs, forms and remembered keys."""
    place = stack.place

    def keys() -> set[str]:
        return {key for key, _ in listing(place.client("s3"), place.originals)}

    async with stack.database() as owner:
        jobs = await owner.fetchval("SELECT count(*) FROM jobs WHERE tenant_id = $1", tenant)
        forms = await owner.fetchval("SELECT count(*) FROM uploads WHERE tenant_id = $1", tenant)
        aliases = await owner.fetchval(
            "SELECT count(*) FROM idempotency_aliases WHERE tenant_id = $1", tenant
        )
    return await asyncio.to_thread(keys), jobs, forms, aliases


async def set_quota(stack: Stack, tenant: str, jobs: int) -> None:
    async with stack.database() as owner:
        await owner.execute("UPDATE tenants SET max_open_jobs = $2 WHERE id = $1", tenant, jobs)


MERGED = {
    "jobType": "noop",
    "runAt": (datetime.now(UTC) + LATER).isoformat(),
    "dedupKey": "the first one",
}


async def waiting_job(full: Producer, dedup_key: str) -> str:
    body = MERGED | {"dedupKey": dedup_key}
    answer = await full.post("/v1/jobs", None, "later", json=body)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["jobId"]
    return job_id


async def test_a_full_quota_cannot_be_passed_by(stack: Stack) -> None:
    async with another_tenant(stack, "full") as full:
        key = {"Idempotency-Key": "first"} | JPEG
        body, other = saved(quadrants(64, 40)), saved(quadrants(40, 64))
        first = await full.upload(body, key="first")
        over = first.json()["jobId"]
        image = f"/v1/images/{first.json()['imageId']}"
        await full.ended(over)
        jobs = [await waiting_job(full, key) for key in ("the first one", "another")]
        await set_quota(stack, "full", 2)
        await until_full(full)
        before = await left(stack, "full")

        async def post(path: str, content: bytes, **headers: str) -> httpx.Response:
            return await full.http.post(path, content=content, headers=JPEG | headers)

        for _ in range(3):
            again = await full.upload(body, key="first")
            assert (202, over) == (again.status_code, again.json()["jobId"])
            differs = await full.http.post("/v1/images", content=other, headers=key)
            assert problem(differs) == (422, "idempotency_conflict")
            replaced = await full.http.put(image, content=other, headers=key)
            assert problem(replaced) == (422, "idempotency_conflict")
        assert problem(await post("/v1/images", other)) == FULL
        assert problem(await full.http.put(image, content=other, headers=JPEG)) == FULL
        form = await full.http.post("/v1/uploads", json={"contentType": "image/jpeg"})
        assert problem(form) == FULL
        assert form.json()["limit"] == "open_jobs"
        assert problem(await full.http.post(f"{image}/reprocess")) == FULL
        everything = {"jobType": "reprocess_images", "payload": {"all_images": True}}
        assert problem(await full.http.post("/v1/jobs", json=everything)) == FULL
        assert (await full.http.post(f"/v1/jobs/{over}/cancel")).status_code == 200  # it is over
        for number in range(3):
            fresh = {"Idempotency-Key": f"merged-{number}"}
            merged = await full.http.post("/v1/jobs", json=MERGED, headers=fresh)
            assert (202, jobs[0]) == (merged.status_code, merged.json()["jobId"])
        batch = {"jobs": [{**MERGED, "idempotencyKey": f"batch-{n}"} for n in range(9)]}
        batched = (await full.http.post("/v1/jobs:batch", json=batch)).json()["answers"]
        assert {(202, jobs[0])} == {
            (answered["status"], answered["job"]["jobId"]) for answered in batched
        }
        assert before == await left(stack, "full")

        # What is open may always be cancelled.
        orders = [await full.post(f"/v1/jobs/{job}/cancel", None, f"cancel {job}") for job in jobs]
        assert [202, 202] == [order.status_code for order in orders]
        for job in jobs:
            await full.ended(job)


async def until_full(full: Producer) -> None:
    """A count of the room is good for five seconds."""

    async def is_full() -> bool:
        form = await full.http.post("/v1/uploads", json={"contentType": "image/png"})
        assert form.status_code == 429
        return True

    await eventually(is_full, within=20)


async def test_forms_that_nobody_uses_are_counted(stack: Stack) -> None:
    async with another_tenant(stack, "forms") as forms:
        asked = {"contentType": "image/jpeg", "maxBytes": 50 * 2**20}
        async with stack.database() as owner:
            await owner.execute(
                "INSERT INTO uploads (id, tenant_id, image_id, key, content_type, max_bytes,"
                " created_by, expires_at) SELECT gen_random_uuid(), 'forms', gen_random_uuid(),"
                " 'o/' || gen_random_uuid(), 'image/jpeg', 1, 'tests', now()"
                " FROM generate_series(1, 1999)"
            )
        answers = await asyncio.gather(
            *(forms.http.post("/v1/uploads", json=asked) for _ in range(30))
        )
        made = [answer for answer in answers if answer.status_code == 201]
        refused = {
            (answer.status_code, answer.json().get("limit"))
            for answer in answers
            if answer not in made
        }
        assert 1 <= len(made) <= 10  # as many statements as its pool has under way at once
        assert refused == {(429, "forms")}
