"""Jobs over HTTP: accepted, looked at, listed, cancelled, waited for."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.api.http.bodies import BYTES_OF_A_REQUEST, MOST_CONTAINERS
from imagefleet.api.http.limiting import Limiting
from imagefleet.api.producers.schemas import NewJob
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, JobState
from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import ApiKey
from tests.support.api import Running, app_of
from tests.support.eventually import eventually
from tests.support.factories import UNAVAILABLE, settle_job
from tests.support.http import claimed, is_problem, submitted, told
from tests.support.rows import job_row, ring_row


async def test_a_job_is_accepted_with_its_ring(acme: httpx.AsyncClient, owner: Connection) -> None:
    answer = await acme.post(
        "/v1/jobs",
        json={
            "jobType": "noop",
            "payload": {"milliseconds": 5},
            "priority": 10,
            "dedupKey": "täglich",
            "maxAttempts": 7,
        },
    )

    body = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/jobs/{body['jobId']}"
    assert {"jobId", "jobType", "status", "links"} == set(body)
    row = await job_row(owner, JobId(UUID(body["jobId"])))
    assert row["payload"] == {"milliseconds": 5}
    assert (row["priority"], row["dedup_key"], row["max_attempts"]) == (10, "täglich", 7)
    assert (row["tenant_id"], row["lane"]) == ("acme", "fast")
    assert await ring_row(owner, row["id"]) is not None


async def test_a_job_says_who_submitted_it_and_to_which_request_it_belongs(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    trace = f"00-{uuid4().hex}-{'a' * 16}-01"

    job_id = JobId(
        UUID(
            (
                await acme.post(
                    "/v1/jobs",
                    json={"jobType": "noop"},
                    headers={"X-Correlation-Id": "order-7", "traceparent": trace},
                )
            ).json()["jobId"]
        )
    )

    row = await job_row(owner, job_id)
    assert row["correlation_id"] == "order-7"
    assert row["traceparent"][:35] == trace[:35]
    assert str(UUID(row["created_by"])) == row["created_by"]


async def test_a_new_job_is_rung_at_once(acme: httpx.AsyncClient, owner: Connection) -> None:
    job_id = await submitted(acme)

    async def is_confirmed() -> bool:
        row = await ring_row(owner, job_id)
        assert row is not None
        return bool(row["sends"] == 1 and row["sent_at"])

    await eventually(is_confirmed, within=5)


async def test_a_job_for_later_is_not_rung_and_says_when(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)

    job_id = await submitted(acme, runAt=later.isoformat())

    shown = (await acme.get(f"/v1/jobs/{job_id}")).json()
    assert datetime.fromisoformat(shown["nextAttemptAt"]) == later
    row = await ring_row(owner, job_id)
    assert row is not None
    assert (row["sends"], row["sent_at"], row["next_at"]) == (0, None, later)


NO_JOBS: list[tuple[dict[str, object], int, str]] = [
    ({}, 422, "invalid_request"),
    ({"jobType": 5}, 422, "invalid_request"),
    ({"jobType": "nothing_of_ours"}, 422, "unknown_job_type"),
    ({"jobType": "process_image"}, 422, "use_another_route"),
    ({"jobType": "delete_image"}, 422, "use_another_route"),
    ({"jobType": "cancel_job"}, 422, "use_another_route"),
    ({"jobType": "noop", "payload": {"milliseconds": "5"}}, 422, "invalid_payload"),
    ({"jobType": "noop", "payload": {"note": "a\x00b"}}, 422, "invalid_payload"),
    ({"jobType": "noop", "payload": []}, 422, "invalid_request"),
    ({"jobType": "noop", "payload": {"note": "x" * 65_536}}, 413, "payload_too_large"),
    ({"jobType": "noop", "payload": {"note": "x" * 90_000}}, 413, "payload_too_large"),
    ({"jobType": "noop", "priority": 1001}, 422, "invalid_request"),
    ({"jobType": "noop", "priority": -1}, 422, "invalid_request"),
    ({"jobType": "noop", "priority": "5"}, 422, "invalid_request"),
    ({"jobType": "noop", "priority": True}, 422, "invalid_request"),
    ({"jobType": "noop", "maxAttempts": 0}, 422, "invalid_request"),
    ({"jobType": "noop", "maxAttempts": 101}, 422, "invalid_request"),
    ({"jobType": "noop", "runAt": "2030-01-01T00:00:00"}, 422, "invalid_request"),
    ({"jobType": "noop", "runAt": "9999-12-31T23:59:59-12:00"}, 422, "invalid_request"),
    ({"jobType": "noop", "runAt": 1900000000}, 422, "invalid_request"),
    ({"jobType": "noop", "dedupKey": ""}, 422, "invalid_request"),
    ({"jobType": "noop", "dedupKey": "a\x00"}, 422, "invalid_request"),
    ({"jobType": "noop", "dedupKey": "x" * 256}, 422, "invalid_request"),
    ({"jobType": "noop", "correlationId": "two words"}, 422, "invalid_request"),
    ({"jobType": "noop", "idempotencyKey": "two words"}, 422, "invalid_request"),
    ({"jobType": "noop", "parentJobId": "no"}, 422, "invalid_request"),
    ({"jobType": "noop", "parentJobId": str(uuid4())}, 404, "not_found"),
    ({"jobType": "noop", "state": "completed"}, 422, "invalid_request"),
]


async def test_what_is_no_job_is_refused(acme: httpx.AsyncClient) -> None:
    refusals = [(job, *told(await acme.post("/v1/jobs", json=job))) for job, _, _ in NO_JOBS]

    assert refusals == NO_JOBS


NO_JSON = [
    (b"{", "application/json", 400, "invalid_json"),
    (b"", "application/json", 400, "invalid_json"),
    (b'{"jobType": "noop", "priority": NaN}', "application/json", 400, "invalid_json"),
    (b'"\\ud800"', "application/json", 400, "invalid_json"),
    (b"\xff\xfe", "application/json", 400, "invalid_json"),
    (b"[" * 20_000, "application/json", 400, "invalid_json"),
    (b"[" * 20_001, "application/json", 413, "payload_too_large"),
    (b"[]", "application/json", 422, "invalid_request"),
    (b"jobType=noop", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
    (b"{}", "", 415, "unsupported_media_type"),
]


async def test_what_is_no_json_is_refused(acme: httpx.AsyncClient) -> None:
    refusals = []
    for body, content_type, _, _ in NO_JSON:
        header = {"Content-Type": content_type}
        answer = await acme.post("/v1/jobs", content=body, headers=header)
        refusals.append((body, content_type, *told(answer)))

    assert refusals == NO_JSON


async def test_a_compressed_body_is_refused(acme: httpx.AsyncClient) -> None:
    answer = await acme.post("/v1/jobs", json={}, headers={"Content-Encoding": "gzip"})

    is_problem(answer, 415, "unsupported_media_type")


async def test_a_refusal_names_fields_and_echoes_no_value(acme: httpx.AsyncClient) -> None:
    answer = await acme.post(
        "/v1/jobs",
        json={
            "jobType": "noop",
            "payload": {"milliseconds": "CANARY-1", "CANARY-2!": 1},
            "CANARY 3": 1,
            "priority": "CANARY-4",
        },
    )

    assert "CANARY" not in answer.text
    assert {"priority", "?"} == {fault["field"] for fault in answer.json()["errors"]}


async def test_an_unknown_type_is_told_the_known_ones(acme: httpx.AsyncClient) -> None:
    answer = await acme.post("/v1/jobs", json={"jobType": "sing"})

    known = "There is no such job type; known are: noop, reprocess_images."
    assert answer.json()["detail"] == known


async def test_another_tenants_job_is_no_parent(
    acme: httpx.AsyncClient, rival: httpx.AsyncClient
) -> None:
    parent = await submitted(rival)

    answer = await acme.post("/v1/jobs", json={"jobType": "noop", "parentJobId": str(parent)})

    is_problem(answer, 404, "not_found")


async def test_the_public_sees_outcomes_and_nothing_else(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    job_id = await submitted(acme, payload={"note": "CANARY"}, correlationId="CANARY")
    await settle_job(worker, await claimed(worker, job_id), UNAVAILABLE)

    answer = await acme.get(f"/v1/jobs/{job_id}")

    shown = answer.json()
    assert "CANARY" not in answer.text
    assert shown.pop("failure") == {
        "code": UNAVAILABLE.code,
        "message": UNAVAILABLE.message,
    }
    assert {
        "jobId",
        "jobType",
        "status",
        "createdAt",
        "createdBy",
        "updatedAt",
        "nextAttemptAt",
        "links",
    } == set(shown)
    assert shown["status"] == "failed_retryable"


async def test_a_batch_answers_each_job_by_itself(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    answer = await acme.post(
        "/v1/jobs:batch",
        json={
            "jobs": [
                {"jobType": "noop", "idempotencyKey": "one"},
                {"jobType": "nothing_of_ours"},
                {"jobType": "noop", "idempotencyKey": "one"},
                {"jobType": "noop", "idempotencyKey": "one", "priority": 5},
                {"jobType": "noop", "surplus": 1},
                {"jobType": "noop", "parentJobId": str(uuid4())},
            ]
        },
    )

    answers = answer.json()["answers"]
    assert answer.status_code == 200
    assert [202, 422, 202, 422, 422, 404] == [each["status"] for each in answers]
    assert answers[0]["job"] == answers[2]["job"]
    codes = [each.get("problem", {}).get("code") for each in answers]
    assert [None, "unknown_job_type", None, "idempotency_conflict", "invalid_request"] == codes[:5]
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 1


async def test_a_job_of_a_batch_may_be_repeated_alone(acme: httpx.AsyncClient) -> None:
    job = {"jobType": "noop", "idempotencyKey": "k"}
    in_batch = (await acme.post("/v1/jobs:batch", json={"jobs": [job]})).json()["answers"][0]

    alone = await acme.post("/v1/jobs", json=job)

    assert alone.json() == in_batch["job"]


async def test_a_batch_has_one_to_a_hundred_jobs(acme: httpx.AsyncClient) -> None:
    for jobs in ([], [{"jobType": "noop"}] * 101, "none", [1]):
        answer = await acme.post("/v1/jobs:batch", json={"jobs": jobs})

        is_problem(answer, 422, "invalid_request")


async def test_a_batch_of_a_hundred_is_taken(acme: httpx.AsyncClient) -> None:
    answer = await acme.post("/v1/jobs:batch", json={"jobs": [{"jobType": "noop"}] * 100})

    assert [202] * 100 == [each["status"] for each in answer.json()["answers"]]


async def test_a_batch_takes_no_key_for_all(acme: httpx.AsyncClient) -> None:
    answer = await acme.post(
        "/v1/jobs:batch", json={"jobs": [{"jobType": "noop"}]}, headers={"Idempotency-Key": "k"}
    )

    is_problem(answer, 400, "invalid_idempotency_key")


async def test_pages_join_without_gap_or_overlap(acme: httpx.AsyncClient) -> None:
    made = [str(await submitted(acme)) for _ in range(7)]

    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await acme.get("/v1/jobs", params={"limit": "3"} | cursor)).json()
        seen += [job["jobId"] for job in page["jobs"]]
        if "nextCursor" not in page:
            break
        cursor = {"cursor": page["nextCursor"]}

    assert made[::-1] == seen


async def test_jobs_are_found_by_what_is_known_of_them(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    parent = await submitted(acme, correlationId="order-1")
    child = await submitted(acme, parentJobId=str(parent))
    await settle_job(worker, await claimed(worker, child), Completed())

    async def found(**params: str) -> list[str]:
        answer = await acme.get("/v1/jobs", params=params)
        return [job["jobId"] for job in answer.json()["jobs"]]

    assert [str(parent)] == await found(correlationId="order-1")
    assert [str(child)] == await found(parentJobId=str(parent))
    assert [str(child)] == await found(status="completed")
    assert [str(parent)] == await found(status="queued", jobType="noop")
    assert [str(child), str(parent)] == await found(jobType="noop")
    assert [] == await found(jobType="process_image")
    assert [] == await found(imageId=str(uuid4()))


async def test_a_filter_that_cannot_be_is_refused(acme: httpx.AsyncClient) -> None:
    for params in (
        {"limit": "0"},
        {"limit": "101"},
        {"limit": "x"},
        {"cursor": "x"},
        {"status": "done"},
        {"jobType": "a\x00"},
        {"correlationId": "\x00"},
    ):
        is_problem(await acme.get("/v1/jobs", params=params), 422, "invalid_request")


async def test_filters_that_exclude_each_other_are_refused(acme: httpx.AsyncClient) -> None:
    answer = await acme.get("/v1/jobs?status=queued&correlationId=x")

    is_problem(answer, 422, "invalid_filter")


async def test_cancelling_is_a_job_about_the_job(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    job_id = await submitted(acme, runAt="2099-01-01T00:00:00Z")

    first = await acme.post(f"/v1/jobs/{job_id}/cancel", json={"reason": "changed my mind"})
    again = await acme.post(f"/v1/jobs/{job_id}/cancel")

    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()
    row = await job_row(owner, JobId(UUID(first.json()["jobId"])))
    assert (row["type"], row["dedup_key"], row["target"]) == ("cancel_job", str(job_id), None)
    assert row["payload"] == {
        "job_id": str(job_id),
        "code": "cancelled",
        "reason": "changed my mind",
    }


async def test_only_a_job_of_ones_own_is_cancelled(
    acme: httpx.AsyncClient, rival: httpx.AsyncClient
) -> None:
    job_id = await submitted(rival)

    is_problem(await acme.post(f"/v1/jobs/{job_id}/cancel"), 404, "not_found")
    is_problem(await acme.post(f"/v1/jobs/{uuid4()}/cancel"), 404, "not_found")


async def test_waiting_ends_with_the_job(acme: httpx.AsyncClient, worker: Connection) -> None:
    job_id = await submitted(acme)
    job = await claimed(worker, job_id)

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waiting = group.create_task(acme.get(f"/v1/jobs/{job_id}?wait=20"))
        await settle_job(worker, job, Completed())

    assert waiting.result().json()["status"] == JobState.COMPLETED


async def test_waiting_in_vain_shows_the_job_as_it_is(acme: httpx.AsyncClient) -> None:
    job_id = await submitted(acme)

    answer = await acme.get(f"/v1/jobs/{job_id}?wait=1")

    assert answer.json()["status"] == "queued"


async def test_nobody_waits_for_what_is_over(acme: httpx.AsyncClient, worker: Connection) -> None:
    job_id = await submitted(acme)
    await settle_job(worker, await claimed(worker, job_id), Completed())

    async with asyncio.timeout(5):
        answer = await acme.get(f"/v1/jobs/{job_id}?wait=20")

    assert answer.json()["finishedAt"]


async def test_nobody_waits_longer_than_proxies_do(acme: httpx.AsyncClient) -> None:
    job_id = await submitted(acme)

    for wait in ("21", "-1", "x"):
        is_problem(await acme.get(f"/v1/jobs/{job_id}?wait={wait}"), 422, "invalid_request")


async def test_a_body_of_nothing_but_arrays_is_refused_before_it_is_read(
    acme: httpx.AsyncClient,
) -> None:
    many: list[list[object]] = [[] for _ in range(MOST_CONTAINERS)]
    batch = {"jobs": [{"jobType": "noop", "payload": {"a": many}}]}

    is_problem(await acme.post("/v1/jobs:batch", json=batch), 413, "payload_too_large")


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs:batch"])
async def test_of_many_unknown_fields_one_error_is_told(acme: httpx.AsyncClient, path: str) -> None:
    answer = await acme.post(path, json={f"field{number}": 1 for number in range(1_000)})

    is_problem(answer, 422, "invalid_request")
    (fault,) = answer.json()["errors"]
    assert (fault["field"], fault["problem"]) == ("body", "too_many_fields")


async def test_one_job_of_many_unknown_fields_costs_no_other_its_answer(
    acme: httpx.AsyncClient,
) -> None:
    jobs = [{f"field{number}": 1 for number in range(1_000)}, {"jobType": "noop"}]

    answer = await acme.post("/v1/jobs:batch", json={"jobs": jobs})

    assert [each["status"] for each in answer.json()["answers"]] == [422, 202]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Each job as it was read by its model."""
    judged: list[bytes] = []
    usual = NewJob.model_validate_json

    def noting(document: bytes, *, strict: bool) -> NewJob:
        judged.append(document)
        return usual(document, strict=strict)

    monkeypatch.setattr(NewJob, "model_validate_json", noting)
    return judged


async def test_a_job_that_is_too_large_is_judged_no_further_and_costs_no_other_its_answer(
    acme: httpx.AsyncClient, judged: list[bytes]
) -> None:
    large = {"jobType": "noop", "payload": {"a": [0] * 200_000}}

    answer = await acme.post("/v1/jobs:batch", json={"jobs": [large, {"jobType": "noop"}]})

    told = answer.json()["answers"]
    assert [each["status"] for each in told] == [413, 202]
    assert told[0]["problem"]["code"] == "payload_too_large"
    assert judged == [b'{"jobType":"noop"}']


async def test_others_are_answered_between_the_jobs_of_a_batch(
    acme: httpx.AsyncClient, judged: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagefleet.api.producers.jobs.LONGEST_PIECE", 0)
    between: set[int] = set()

    async def somebody_else() -> None:
        while len(judged) < 3:
            between.add(len(judged))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(somebody_else())
        await acme.post("/v1/jobs:batch", json={"jobs": [{"jobType": "noop"}] * 3})

    assert between == {0, 1, 2}


async def test_a_large_body_counts_as_many_requests(
    running: Running, acme: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiting: Limiting = app_of(running).state.limiting
    usual, weighed = limiting.weigh, []

    def weigh(key: ApiKey, requests: float) -> None:
        weighed.append(requests)
        usual(key, requests)

    monkeypatch.setattr(limiting, "weigh", weigh)
    job = {"jobType": "noop", "payload": {"note": "x" * 60_000}}

    await acme.post("/v1/jobs:batch", json={"jobs": [job] * 16})
    in_a_batch = sum(weighed)
    weighed.clear()
    await acme.post("/v1/jobs", json=job)

    assert in_a_batch >= 16 * 60_000 / BYTES_OF_A_REQUEST
    assert sum(weighed) == 4
