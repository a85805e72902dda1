"""The same request gets the same answer, however often and however many at once."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import httpx
import pytest

from imagefleet.api.http.limiting import Limiting
from imagefleet.api.producers.submitting import Admission, Admitted
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import Lane, PauseScope, new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import Pause, pause
from imagefleet.store.jobs.admissions import (
    FIND_REFUSALS,
    LIST_PARENTS,
    LIST_STANDING,
    ROOM_FOR_JOBS,
)
from imagefleet.store.jobs.submissions import submit_job
from tests.support.api import a_key
from tests.support.database import driver_of
from tests.support.eventually import eventually
from tests.support.factories import a_submission, settle_job
from tests.support.http import a_jpeg, a_png, claimed, is_problem

KEY = {"Idempotency-Key": "req-1"}
JOB = {"jobType": "noop", "payload": {"milliseconds": 3, "note": "n"}}
JPEG = {"Content-Type": "image/jpeg"}


def without_date(answer: httpx.Response) -> dict[str, str]:
    """The headers that a repeat must have too."""
    return {name: value for name, value in answer.headers.items() if name != "date"}


async def test_a_repeat_is_indistinguishable(acme: httpx.AsyncClient) -> None:
    first = await acme.post("/v1/jobs", json=JOB, headers=KEY)
    again = await acme.post("/v1/jobs", json=JOB, headers=KEY)

    assert first.status_code == again.status_code == 202
    assert first.content == again.content
    assert without_date(first) == without_date(again)


async def test_header_and_body_are_one_key(acme: httpx.AsyncClient) -> None:
    first = await acme.post("/v1/jobs", json=JOB, headers=KEY)
    in_body = await acme.post("/v1/jobs", json=JOB | {"idempotencyKey": "req-1"})
    in_both = await acme.post("/v1/jobs", json=JOB | {"idempotencyKey": "req-1"}, headers=KEY)

    assert first.json() == in_body.json() == in_both.json()


async def test_two_keys_are_refused(acme: httpx.AsyncClient) -> None:
    in_both = await acme.post("/v1/jobs", json=JOB | {"idempotencyKey": "req-2"}, headers=KEY)
    twice = await acme.post(
        "/v1/jobs", json=JOB, headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    )

    is_problem(in_both, 400, "idempotency_keys_differ")
    is_problem(twice, 400, "idempotency_keys_differ")


async def test_a_key_that_is_none_is_refused(acme: httpx.AsyncClient) -> None:
    for key in ("", "two words", "x" * 256, "ä"):
        header = [(b"Idempotency-Key", key.encode())]

        answer = await acme.post("/v1/jobs", json=JOB, headers=header)

        is_problem(answer, 400, "invalid_idempotency_key")


async def test_another_request_under_the_same_key_is_refused(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    await acme.post("/v1/jobs", json=JOB, headers=KEY)
    before = await owner.fetch("SELECT jobs.* FROM jobs")
    others: list[dict[str, object]] = [
        {"payload": {"milliseconds": 4, "note": "n"}},
        {"payload": {}},
        {"priority": 99},
        {"dedupKey": "d"},
        {"maxAttempts": 2},
        {"runAt": "2098-01-01T00:00:00Z"},
    ]

    for other in others:
        answer = await acme.post("/v1/jobs", json=JOB | other, headers=KEY)

        is_problem(answer, 422, "idempotency_conflict")
    assert before == await owner.fetch("SELECT jobs.* FROM jobs")


async def test_a_key_that_was_answered_with_a_living_job_is_as_taken_as_any(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    living = (await acme.post("/v1/jobs", json=JOB | {"dedupKey": "d"})).json()
    merged = await acme.post("/v1/jobs", json=JOB | {"dedupKey": "d"}, headers=KEY)

    other = await acme.post("/v1/jobs", json=JOB, headers=KEY)
    again = await acme.post("/v1/jobs", json=JOB | {"dedupKey": "d"}, headers=KEY)

    assert living == merged.json()
    is_problem(other, 422, "idempotency_conflict")
    assert merged.content == again.content
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 1


async def test_what_says_the_same_in_other_words_is_a_repeat(acme: httpx.AsyncClient) -> None:
    first = await acme.post("/v1/jobs", json=JOB, headers=KEY)
    again = await acme.post(
        "/v1/jobs",
        content=b'{"priority":100, "dedupKey":null,'
        b' "payload":{"note":"\\u006e","milliseconds":3}, "jobType":"noop"}',
        headers=KEY | {"Content-Type": "application/json; charset=utf-8"},
    )

    assert first.content == again.content


async def test_another_correlation_id_makes_no_other_request(acme: httpx.AsyncClient) -> None:
    first = await acme.post("/v1/jobs", json=JOB, headers=KEY | {"X-Correlation-Id": "a"})
    again = await acme.post("/v1/jobs", json=JOB, headers=KEY | {"X-Correlation-Id": "b"})

    assert first.content == again.content
    assert (first.headers["x-correlation-id"], again.headers["x-correlation-id"]) == ("a", "b")


async def test_a_key_belongs_to_its_tenant(
    acme: httpx.AsyncClient, rival: httpx.AsyncClient
) -> None:
    ours = await acme.post("/v1/jobs", json=JOB, headers=KEY)
    theirs = await rival.post("/v1/jobs", json=JOB | {"priority": 1}, headers=KEY)

    assert theirs.status_code == 202
    assert ours.json()["jobId"] != theirs.json()["jobId"]


async def test_a_repeat_shows_the_present_status(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    first = (await acme.post("/v1/jobs", json=JOB, headers=KEY)).json()
    await settle_job(worker, await claimed(worker, first["jobId"]), Completed())

    again = (await acme.post("/v1/jobs", json=JOB, headers=KEY)).json()

    assert again == first | {"status": "completed"}


async def test_fifty_at_once_make_one_job(acme: httpx.AsyncClient, owner: Connection) -> None:
    answers = await asyncio.gather(
        *(acme.post("/v1/jobs", json=JOB, headers=KEY) for _ in range(50))
    )

    assert {202} == {answer.status_code for answer in answers}
    assert len({answer.content for answer in answers}) == 1
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 1


async def test_fifty_uploads_at_once_make_one_image(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    answers = await asyncio.gather(
        *(acme.post("/v1/images", content=a_jpeg(), headers=KEY | JPEG) for _ in range(50))
    )

    assert {202} == {answer.status_code for answer in answers}
    assert len({answer.content for answer in answers}) == 1
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 1
    assert await owner.fetchval("SELECT count(*) FROM images") == 1
    assert await owner.fetchval("SELECT count(*) FROM image_sources") == 1


async def test_an_upload_is_known_by_its_content(acme: httpx.AsyncClient) -> None:
    first = await acme.post("/v1/images?reference=r", content=a_jpeg(), headers=KEY | JPEG)
    as_form = await acme.post(
        "/v1/images?reference=r", files={"file": ("b.jpg", a_jpeg(), "image/jpeg")}, headers=KEY
    )
    other = await acme.post(
        "/v1/images?reference=r", content=a_png(), headers=KEY | {"Content-Type": "image/png"}
    )
    elsewhere = await acme.post("/v1/images?reference=s", content=a_jpeg(), headers=KEY | JPEG)

    assert first.content == as_form.content
    is_problem(other, 422, "idempotency_conflict")
    is_problem(elsewhere, 422, "idempotency_conflict")


async def test_the_key_of_an_upload_is_not_free_for_a_job(acme: httpx.AsyncClient) -> None:
    await acme.post("/v1/images", content=a_jpeg(), headers=KEY | JPEG)

    is_problem(await acme.post("/v1/jobs", json=JOB, headers=KEY), 422, "idempotency_conflict")


async def test_a_living_job_answers_for_its_dedup_key(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    job = JOB | {"dedupKey": "nightly"}
    first = (await acme.post("/v1/jobs", json=job)).json()
    second = (await acme.post("/v1/jobs", json=job, headers=KEY)).json()
    await settle_job(worker, await claimed(worker, first["jobId"]), Completed())
    third = (await acme.post("/v1/jobs", json=job)).json()
    repeat = (await acme.post("/v1/jobs", json=job, headers=KEY)).json()

    assert first == second
    assert third["jobId"] != first["jobId"]
    assert repeat["jobId"] == first["jobId"]


@pytest.mark.parametrize(
    "what",
    [
        Pause(scope=PauseScope.ALL),
        Pause(scope=PauseScope.TYPE, name="noop"),
        Pause(scope=PauseScope.LANE, name=Lane.FAST),
    ],
)
async def test_a_pause_refuses_what_is_new_and_repeats_what_is_not(
    acme: httpx.AsyncClient, operator: Connection, what: Pause
) -> None:
    first = await acme.post("/v1/jobs", json=JOB, headers=KEY)
    await pause(operator, what, by="tests", reason="CANARY", refuse_new=True)

    again = await acme.post("/v1/jobs", json=JOB, headers=KEY)
    new = await acme.post("/v1/jobs", json=JOB)
    cancelled = await acme.post(f"{first.json()['links']['cancel']}")

    assert again.content == first.content
    is_problem(new, 503, "submits_paused")
    assert int(new.headers["retry-after"]) > 0
    assert "CANARY" not in new.text
    assert cancelled.status_code == 202


async def test_a_quota_refuses_what_is_new_and_repeats_what_is_not(
    acme: httpx.AsyncClient, rival: httpx.AsyncClient, superuser: Connection
) -> None:
    await superuser.execute("UPDATE tenants SET max_open_jobs = 2 WHERE id = 'acme'")
    first = await acme.post("/v1/jobs", json=JOB, headers=KEY)
    assert (await acme.post("/v1/jobs", json=JOB)).status_code == 202

    new = await acme.post("/v1/jobs", json=JOB)
    upload = await acme.post("/v1/images", content=a_jpeg(), headers=JPEG)
    again = await acme.post("/v1/jobs", json=JOB, headers=KEY)

    is_problem(new, 429, "too_many_open_jobs")
    is_problem(upload, 429, "too_many_open_jobs")
    assert int(new.headers["retry-after"]) > 0
    assert again.content == first.content
    assert (await rival.post("/v1/jobs", json=JOB)).status_code == 202


async def test_at_a_full_quota_what_a_job_stands_for_is_answered_and_leaves_nothing(
    acme: httpx.AsyncClient, superuser: Connection
) -> None:
    stored = await acme.post("/v1/images", content=a_jpeg(), headers=JPEG)
    image = f"/v1/images/{stored.json()['imageId']}"
    merged = {**JOB, "dedupKey": "d"}
    first = (await acme.post("/v1/jobs", json=merged)).json()["jobId"]
    cancel = f"/v1/jobs/{first}/cancel"
    ends = [(await acme.post(cancel, json={})).json()["jobId"]]
    ends.append((await acme.delete(image)).json()["jobId"])
    await superuser.execute("UPDATE tenants SET max_open_jobs = 1 WHERE id = 'acme'")
    full = await until_full(acme)

    def key(name: str) -> dict[str, str]:
        return {"Idempotency-Key": f"{name}-{uuid4()}"}

    answers = [await acme.post("/v1/jobs", json=merged, headers=key("job")) for _ in range(3)]
    batch = {"jobs": [{**merged, "idempotencyKey": f"batch-{n}"} for n in range(9)]}
    batched = (await acme.post("/v1/jobs:batch", json=batch)).json()["answers"]
    cancels = [await acme.post(cancel, json={}, headers=key("cancel")) for _ in range(3)]
    deletions = [await acme.delete(image, headers=key("delete")) for _ in range(3)]

    assert {(202, first)} == {(each.status_code, each.json()["jobId"]) for each in answers}
    assert {(202, first)} == {(each["status"], each["job"]["jobId"]) for each in batched}
    assert {(202, ends[0])} == {(each.status_code, each.json()["jobId"]) for each in cancels}
    assert {(202, ends[1])} == {(each.status_code, each.json()["jobId"]) for each in deletions}
    assert 0 == await superuser.fetchval("SELECT count(*) FROM idempotency_aliases")
    assert full == await superuser.fetchval("SELECT count(*) FROM jobs")


async def until_full(acme: httpx.AsyncClient) -> int:
    """A count of the room is good for some seconds; how many jobs there are by then."""

    async def is_full() -> bool:
        answer = await acme.post("/v1/uploads", json={"contentType": "image/jpeg"})
        assert answer.status_code == 429
        return True

    await eventually(is_full, within=20)
    jobs = await acme.get("/v1/jobs")
    return len(jobs.json()["jobs"])


async def test_more_keys_than_a_job_answers_are_refused_by_their_limit(
    acme: httpx.AsyncClient,
) -> None:
    merged = {**JOB, "dedupKey": "d"}
    await acme.post("/v1/jobs", json=merged)
    batch = {"jobs": [{**merged, "idempotencyKey": f"batch-{n}"} for n in range(100)]}
    answers = (await acme.post("/v1/jobs:batch", json=batch)).json()["answers"]

    beyond = await acme.post("/v1/jobs", json=merged, headers={"Idempotency-Key": "beyond"})

    assert {202} == {each["status"] for each in answers}
    is_problem(beyond, 429, "limit_reached")
    assert "job_keys" == beyond.json()["limit"]


def newcomer() -> Admission:
    """Of a process that knows nobody yet, and where nothing is turned."""
    return Admission(Limiting(lambda _tenant, _name: None))


async def test_a_batch_is_admitted_for_few_statements_whatever_is_in_it(
    api: Connection, superuser: Connection
) -> None:
    standing = [a_submission(idempotency_key=f"key-{number}") for number in range(3)]
    for job in standing:
        await submit_job(api, job)
    await superuser.execute(
        "INSERT INTO tenants (id, name, max_open_jobs) VALUES ('acme', 'acme', 50)"
    )
    orphans = [replace(a_submission(), parent_job_id=new_job_id()) for _ in range(20)]
    child = replace(a_submission(), parent_job_id=standing[0].job_id)
    others = [a_submission() for _ in range(70)]
    key = a_key()
    batch = [(key, job) for job in [child, *orphans, *others, *standing]]
    await newcomer().admit_batch(api, batch)  # and the driver knows the types of it
    statements: list[str] = []

    with driver_of(api).query_logger(lambda record: statements.append(record.query)):
        verdicts = await newcomer().admit_batch(api, batch)
        await asyncio.sleep(0)  # the last of them is told in the loop's next turn

    codes = [verdict if isinstance(verdict, Admitted) else verdict.code for verdict in verdicts]
    fits = 50 - len(standing) - 1
    assert codes == [
        Admitted.NEW,
        *["not_found"] * len(orphans),
        *[Admitted.NEW] * fits,
        *["too_many_open_jobs"] * (len(others) - fits),
        *[Admitted.STANDS] * len(standing),
    ]
    assert statements == [LIST_PARENTS, FIND_REFUSALS, ROOM_FOR_JOBS, LIST_STANDING]


async def test_a_pause_refuses_what_is_new_in_a_batch_and_repeats_what_is_not(
    acme: httpx.AsyncClient, operator: Connection
) -> None:
    keyed = JOB | {"idempotencyKey": "req-1"}
    folded = {"jobType": "noop", "dedupKey": "one"}
    first = await acme.post("/v1/jobs", json=keyed)
    deduplicated = await acme.post("/v1/jobs", json=folded)
    what = Pause(scope=PauseScope.TYPE, name="noop")
    await pause(operator, what, by="tests", reason="CANARY", refuse_new=True)

    answer = await acme.post("/v1/jobs:batch", json={"jobs": [JOB, keyed, folded, JOB]})

    new, again, same, _ = told = answer.json()["answers"]
    assert [each["status"] for each in told] == [503, 202, 202, 503]
    assert new["problem"]["code"] == "submits_paused"
    assert again["job"] == first.json()
    assert same["job"]["jobId"] == deduplicated.json()["jobId"]
