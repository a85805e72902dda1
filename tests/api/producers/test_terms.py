"""The terms of a job by every route that takes an image: those of any other job. And its lane."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.aws.objects import Objects
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, Lane, PauseScope
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import Pause, pause
from tests.api.producers.test_presigned import posted, prepared
from tests.support.api import JPEG, uploaded
from tests.support.eventually import eventually
from tests.support.factories import settle_job
from tests.support.http import a_jpeg, a_png, claimed, is_problem, submitted
from tests.support.images import animated, quadrants, saved
from tests.support.rows import job_row

Terms: TypeAlias = Mapping[str, object]
Ask: TypeAlias = Callable[[httpx.AsyncClient, Terms], Awaitable[httpx.Response]]

PNG: Final = {"Content-Type": "image/png"}
WRITERS_HELD: Final = """
SELECT count(*) FROM pg_locks
 WHERE NOT granted AND relation = 'jobs'::regclass AND mode = 'RowExclusiveLock'
"""
OTHER_JPEG: Final = saved(quadrants(48, 48))


async def as_a_body(client: httpx.AsyncClient, terms: Terms) -> httpx.Response:
    return await client.post("/v1/images", content=a_jpeg(), headers=JPEG, params=flat(terms))


async def as_a_form(client: httpx.AsyncClient, terms: Terms) -> httpx.Response:
    return await client.post("/v1/images", files={"file": ("a", a_jpeg())}, params=flat(terms))


async def as_an_upload(client: httpx.AsyncClient, terms: Terms) -> httpx.Response:
    upload = await prepared(client)
    await posted(upload, a_jpeg())
    return await client.post("/v1/images", json={"uploadId": upload["uploadId"], **terms})


async def as_a_replacement(client: httpx.AsyncClient, terms: Terms) -> httpx.Response:
    image = (await uploaded(client))["links"]["image"]
    return await client.put(image, content=a_jpeg(), headers=JPEG, params=flat(terms))


async def as_a_reprocessing(client: httpx.AsyncClient, terms: Terms) -> httpx.Response:
    image = (await uploaded(client))["links"]["image"]
    return await client.post(f"{image}/reprocess", json=terms)


async def as_an_edit(client: httpx.AsyncClient, terms: Terms) -> httpx.Response:
    image = (await uploaded(client))["links"]["image"]
    return await client.patch(image, json={"focalPoint": {"x": 0.1, "y": 0.2}, **terms})


def flat(terms: Terms) -> dict[str, str]:
    return {name: str(value) for name, value in terms.items()}


WAYS: Final[Mapping[str, Ask]] = {
    "a body": as_a_body,
    "a form": as_a_form,
    "an upload": as_an_upload,
    "a replacement": as_a_replacement,
    "a reprocessing": as_a_reprocessing,
    "an edit": as_an_edit,
}
every_way = pytest.mark.parametrize("ask", WAYS.values(), ids=list(WAYS))


@every_way
async def test_an_image_takes_the_terms_of_any_job(
    acme: httpx.AsyncClient, owner: Connection, ask: Ask
) -> None:
    parent = await submitted(acme)
    terms = {
        "priority": 7,
        "runAt": "2030-01-01T06:00:00Z",
        "dedupKey": "front page",
        "correlationId": "order-7",
        "parentJobId": str(parent),
        "maxAttempts": 2,
    }

    answer = await ask(acme, terms)

    assert answer.status_code == 202, answer.text
    job_id = answer.json()["jobId"]
    row = await job_row(owner, JobId(UUID(job_id)))
    told = {
        "priority": row["priority"],
        "runAt": f"{row['run_at']:%Y-%m-%dT%H:%M:%SZ}",
        "dedupKey": row["dedup_key"],
        "correlationId": row["correlation_id"],
        "parentJobId": str(row["parent_job_id"]),
        "maxAttempts": row["max_attempts"],
    }
    assert terms == told
    assert answer.headers["X-Correlation-Id"] == "order-7"
    children = (await acme.get("/v1/jobs", params={"parentJobId": str(parent)})).json()["jobs"]
    assert [job_id] == [job["jobId"] for job in children]
    assert "2030-01-01T06:00:00Z" == children[0]["nextAttemptAt"]


@every_way
@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": -1},
        {"priority": 1001},
        {"runAt": "2030-01-01T06:00:00"},
        {"runAt": "1999-01-01T06:00:00Z"},
        {"dedupKey": ""},
        {"dedupKey": "a\nb"},
        {"correlationId": "no spaces"},
        {"maxAttempts": 0},
        {"maxAttempts": 101},
        {"parentJobId": "1"},
        {"dedupkey": "misspelt"},
    ],
    ids=str,
)
async def test_terms_are_refused_as_those_of_any_job(
    acme: httpx.AsyncClient, ask: Ask, wrong: Terms
) -> None:
    of_a_job = await acme.post("/v1/jobs", json={"jobType": "noop", **wrong})

    answer = await ask(acme, wrong)

    is_problem(answer, 422, "invalid_request")
    [fault], [its] = of_a_job.json()["errors"], answer.json()["errors"]
    assert fault["field"] == its["field"]


@every_way
async def test_a_parent_is_a_job_of_the_tenant(
    acme: httpx.AsyncClient, rival: httpx.AsyncClient, ask: Ask
) -> None:
    for parent in (uuid4(), await submitted(rival)):
        is_problem(await ask(acme, {"parentJobId": str(parent)}), 404, "not_found")


async def test_what_is_refused_by_its_terms_is_not_read(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    for terms in ({"priority": "5000"}, {"parentJobId": str(uuid4())}, {"recip": "avif"}):
        # Its body would be refused, too.
        answer = await acme.post("/v1/images", content=b"no image", headers=JPEG, params=terms)
        assert answer.json()["code"] in {"invalid_request", "not_found"}
    assert 0 == await owner.fetchval("SELECT count(*) FROM jobs")


async def test_terms_of_an_upload_stand_where_the_rest_is_said(acme: httpx.AsyncClient) -> None:
    upload = await prepared(acme)
    await posted(upload, a_jpeg())
    asked = {"uploadId": upload["uploadId"]}

    is_problem(
        await acme.post("/v1/images", json=asked, params={"priority": "7"}), 422, "invalid_request"
    )


@every_way
async def test_who_bears_the_key_of_a_living_job_is_answered_with_that_and_its_image(
    acme: httpx.AsyncClient, worker: Connection, owner: Connection, ask: Ask
) -> None:
    first = await uploaded(acme, dedupKey="front page")
    await uploaded(acme, dedupKey="another page")

    answer = await ask(acme, {"dedupKey": "front page"})

    assert answer.status_code == 202, answer.text
    assert first == answer.json()
    job = await claimed(worker, first["jobId"])
    await settle_job(worker, job, Completed())
    later = (await ask(acme, {"dedupKey": "front page"})).json()
    assert first["jobId"] != later["jobId"]
    assert 1 == await owner.fetchval(
        "SELECT count(*) FROM jobs WHERE dedup_key = 'front page' AND state = 'queued'"
    )


async def test_a_dedup_key_is_the_tenants_own(
    acme: httpx.AsyncClient, rival: httpx.AsyncClient
) -> None:
    theirs = await uploaded(rival, dedupKey="front page")

    assert theirs["jobId"] != (await uploaded(acme, dedupKey="front page"))["jobId"]


async def test_of_a_clash_nothing_is_stored_but_its_own_key(
    acme: httpx.AsyncClient, worker: Connection, owner: Connection, originals: Objects
) -> None:
    first = await uploaded(acme, dedupKey="front page")
    rows, objects = await counted(owner), await keys(originals)

    async def again(body: bytes) -> httpx.Response:
        params, headers = {"dedupKey": "front page"}, JPEG | {"Idempotency-Key": "second"}
        return await acme.post("/v1/images", content=body, headers=headers, params=params)

    second = await again(OTHER_JPEG)

    assert first == second.json()
    assert rows | {"idempotency_aliases": 1} == await counted(owner)
    assert objects == await keys(originals)
    # The key stands for that answer from now on, and for this body.
    await settle_job(worker, await claimed(worker, first["jobId"]), Completed())
    assert second.json() | {"status": "completed"} == (await again(OTHER_JPEG)).json()
    is_problem(await again(a_jpeg()), 422, "idempotency_conflict")
    assert rows | {"idempotency_aliases": 1} == await counted(owner)


async def test_a_crowd_under_one_dedup_key_makes_one_image(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    answers = await asyncio.gather(*(uploaded(acme, dedupKey="front page") for _ in range(12)))

    assert 1 == len({(answer["jobId"], answer["imageId"]) for answer in answers})
    rows = await counted(owner)
    assert {"jobs": 1, "images": 1, "image_sources": 1, "targets": 1} == {
        table: rows[table] for table in ("jobs", "images", "image_sources", "targets")
    }


async def test_a_clash_that_comes_to_light_when_it_is_stored_keeps_the_key_of_its_own(
    acme: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    """Both are let in while nothing bears the dedup key: the locks of the insert find it out."""

    async def asked(key: str) -> httpx.Response:
        params, headers = {"dedupKey": "front page"}, JPEG | {"Idempotency-Key": key}
        return await acme.post("/v1/images", content=a_jpeg(), headers=headers, params=params)

    async def are_held() -> bool:
        return bool(2 == await superuser.fetchval(WRITERS_HELD))

    async with asyncio.TaskGroup() as group, superuser.transaction():
        await superuser.execute("LOCK TABLE jobs IN SHARE MODE")  # may be read, not written
        asking = [group.create_task(asked(key)) for key in ("one", "two")]
        await eventually(are_held, within=10)

    answers = [each.result() for each in asking]
    assert [202, 202] == [answer.status_code for answer in answers]
    [first, second] = [answer.json() for answer in answers]
    assert first == second
    # Once that job is over its dedup key is free, and either key has its answer all the same.
    await settle_job(worker, await claimed(worker, first["jobId"]), Completed())
    for key in ("one", "two"):
        assert first | {"status": "completed"} == (await asked(key)).json()
    assert 1 == await superuser.fetchval("SELECT count(*) FROM jobs")


async def test_an_upload_that_meets_a_living_job_stays_unused(
    acme: httpx.AsyncClient, worker: Connection, owner: Connection
) -> None:
    first = await uploaded(acme, dedupKey="front page")
    upload = await prepared(acme)
    await posted(upload, a_jpeg())
    asked = {"uploadId": upload["uploadId"], "dedupKey": "front page"}
    headers = {"Idempotency-Key": "own"}

    answer = await acme.post("/v1/images", json=asked, headers=headers)

    assert first == answer.json()
    assert await owner.fetchval("SELECT job_id IS NULL FROM uploads")
    await settle_job(worker, await claimed(worker, first["jobId"]), Completed())
    # Under its key it has its answer; under another one it becomes an image.
    repeat = await acme.post("/v1/images", json=asked, headers=headers)
    assert first["jobId"] == repeat.json()["jobId"]
    other = await acme.post("/v1/images", json=asked, headers={"Idempotency-Key": "another"})
    assert upload["imageId"] == other.json()["imageId"]


async def test_terms_are_part_of_what_is_asked(acme: httpx.AsyncClient) -> None:
    async def asked(**terms: object) -> httpx.Response:
        headers = JPEG | {"Idempotency-Key": "one"}
        return await acme.post("/v1/images", content=a_jpeg(), headers=headers, params=flat(terms))

    first = await asked()

    for same in ({"priority": 100}, {"correlationId": "another"}):
        assert first.json() == (await asked(**same)).json()
    for other in ({"priority": 99}, {"dedupKey": "k"}, {"maxAttempts": 3}):
        is_problem(await asked(**other), 422, "idempotency_conflict")


@pytest.mark.parametrize(
    ("body", "terms", "lane", "why"),
    [
        (a_jpeg(), {}, "fast", "small and quick"),
        (a_png(), {"priority": 1000}, "fast", "small and quick"),
        (a_jpeg(), {"recipe": "avif", "priority": 0}, "general", "its recipe makes AVIF"),
        (saved(quadrants(4200, 4100)), {}, "general", "its original is large"),
        (animated("GIF", [(1, 2, 3), (4, 5, 6)]), {}, "general", "its original is animated"),
        (saved(quadrants(32, 32), "AVIF"), {}, "general", "its original is AVIF"),
    ],
    ids=["a small one", "a late one", "to AVIF", "a large one", "an animation", "from AVIF"],
)
async def test_the_header_and_the_recipe_choose_the_lane_and_the_explanation_says_so(
    acme: httpx.AsyncClient,
    operating: httpx.AsyncClient,
    body: bytes,
    terms: Terms,
    lane: str,
    why: str,
) -> None:
    headers = {"Content-Type": "application/octet-stream"}
    answer = await acme.post("/v1/images", content=body, headers=headers, params=flat(terms))

    assert answer.status_code == 202, answer.text
    explained = await operating.get(f"/v1/operator/jobs/{answer.json()['jobId']}/explain")
    assert lane == explained.json()["lane"]
    assert why in explained.json()["laneSentence"]


async def test_what_is_rendered_again_has_its_lane_by_the_original_and_the_new_recipe(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    image = await uploaded(acme)
    again = f"{image['links']['image']}/reprocess"

    answers = [await acme.post(again), await acme.post(again, json={"recipe": "avif"})]

    rows = [await job_row(owner, JobId(UUID(answer.json()["jobId"]))) for answer in answers]
    assert ["fast", "general"] == [row["lane"] for row in rows]


async def test_a_lane_that_takes_nothing_new_refuses_what_would_be_in_it(
    acme: httpx.AsyncClient, operator: Connection, owner: Connection, originals: Objects
) -> None:
    fast, slow = {"recipe": "default"}, {"recipe": "avif"}
    objects = await keys(originals)

    async def codes() -> list[int]:
        upload = await prepared(acme)
        await posted(upload, a_jpeg())
        return [
            (await as_a_body(acme, fast)).status_code,
            (await as_a_body(acme, slow)).status_code,
            (await acme.post("/v1/images", json={"uploadId": upload["uploadId"]})).status_code,
        ]

    await pause(
        operator, Pause(scope=PauseScope.LANE, name=Lane.FAST), by="a", reason="b", refuse_new=True
    )
    assert [503, 202, 503] == await codes()
    image_id = await owner.fetchval("SELECT id FROM images")
    again = f"/v1/images/{image_id}/reprocess"
    is_problem(await acme.post(again, json=fast), 503, "submits_paused")
    assert 202 == (await acme.post(again, json=slow)).status_code
    # What was refused by its header is not in S3: only what was accepted, and what was posted.
    assert 2 == len(await keys(originals) - objects)

    await pause(
        operator,
        Pause(scope=PauseScope.LANE, name=Lane.GENERAL),
        by="a",
        reason="b",
        refuse_new=True,
    )
    assert [503, 503, 503] == await codes()


async def counted(owner: Connection) -> dict[str, Any]:
    tables = ("jobs", "images", "image_sources", "targets", "idempotency_aliases")
    return {
        table: await owner.fetchval(f"SELECT count(*) FROM {table}")  # noqa: S608 - ours
        for table in tables
    }


async def keys(originals: Objects) -> set[str]:
    """What lies in the bucket of originals, of tests before, too."""
    found: set[str] = set()
    while True:
        page = await originals.page("o/", after=max(found, default=""))
        found |= {each.key for each in page.objects}
        if page.is_last:
            return found
