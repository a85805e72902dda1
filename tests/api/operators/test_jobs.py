"""Operators and jobs: lists across tenants, everything about one, and orders."""

from datetime import UTC, datetime, timedelta
from urllib.parse import quote
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.jobs.model import CancelCode, JobId, JobState, TenantId
from imagefleet.jobs.shapes.jobs import WholeJob
from imagefleet.store.database import Connection
from imagefleet.store.jobs import overseeing
from imagefleet.store.jobs.cancelling import cancel_job
from tests.support.api import Running
from tests.support.factories import (
    a_job,
    a_submission,
    a_worker,
    claim_job,
)
from tests.support.http import is_problem, submitted
from tests.support.rows import job_row, ring_row

QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState
IMAGE = "image:1"


@pytest.fixture
async def key_id(running: Running, operating: httpx.AsyncClient, operator: Connection) -> str:
    key = await operator.fetchval("SELECT id FROM api_keys WHERE scopes = '{operate}'")
    return str(key)


async def listed(client: httpx.AsyncClient, query: str = "") -> list[str]:
    answer = await client.get(f"/v1/operator/jobs?{query}")
    assert answer.status_code == 200, answer.text
    return [job["jobId"] for job in answer.json()["jobs"]]


async def test_lists_hold_the_jobs_of_all_tenants_newest_first(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient, rival: httpx.AsyncClient
) -> None:
    jobs = [await submitted(client) for client in (acme, rival, acme)]
    expected = [str(job_id) for job_id in sorted(jobs, reverse=True)]

    for query in ("", "status=queued", "jobType=noop", "status=queued&jobType=noop"):
        assert expected == await listed(operating, query)
    assert expected[:1] == await listed(operating, "limit=1")
    assert expected[1:] == await listed(operating, f"status=queued&cursor={expected[0]}")
    assert [str(jobs[1])] == await listed(operating, "tenant=rival")
    assert [str(jobs[1])] == await listed(operating, "tenant=rival&status=queued")
    assert [] == await listed(operating, "status=failed")


async def test_a_list_may_be_of_what_belongs_together(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    parent = await submitted(acme, correlationId="request-1")
    child = await submitted(acme, parentJobId=str(parent))
    of_target = await a_job(worker, superuser, submission=a_submission(target=IMAGE))

    assert [str(parent)] == await listed(operating, "correlationId=request-1")
    assert [str(child)] == await listed(operating, f"parentJobId={parent}")
    assert [str(of_target.job_id)] == await listed(operating, f"target={IMAGE}")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("code=corrupt", "gone other"),
        ("code=unavailable", "again"),
        ("code=corrupt&tenant=acme", "gone"),
        ("code=corrupt&tenant=acme&status=failed_retryable", ""),
        ("code=unavailable&status=failed_retryable&jobType=noop", "again"),
        ("code=corrupt&tenant=rival&jobType=noop", "other"),
        (f"target={IMAGE}&code=corrupt", "gone"),
        (f"target={IMAGE}&status=queued", "waits"),
        ("correlationId=tests&jobType=noop&status=queued", "waits"),
        (f"correlationId=tests&target={IMAGE}&tenant=rival", ""),
        ("code=poison", ""),
    ],
)
async def test_a_list_is_of_those_of_which_all_is_true(
    operating: httpx.AsyncClient,
    rival: httpx.AsyncClient,
    worker: Connection,
    superuser: Connection,
    query: str,
    expected: str,
) -> None:
    about, theirs = a_submission(target=IMAGE), a_submission(tenant_id=TenantId("rival"))
    jobs = {
        "gone": await a_job(worker, superuser, state=FAILED, submission=about),
        "again": await a_job(worker, superuser, state=FAILED_RETRYABLE),
        "other": await a_job(worker, superuser, state=FAILED, submission=theirs),
        "waits": await a_job(worker, superuser, submission=a_submission(target=IMAGE)),
    }
    names = {str(job.job_id): name for name, job in jobs.items()}

    assert sorted(expected.split()) == sorted(names[id_] for id_ in await listed(operating, query))


async def test_a_page_that_found_little_says_where_to_go_on(
    operating: httpx.AsyncClient,
    worker: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rare = await a_job(worker, superuser, state=FAILED, submission=a_submission(target=IMAGE))
    for _ in range(3):
        await a_job(worker, superuser, submission=a_submission(target=IMAGE))
    monkeypatch.setattr(overseeing, "MOST_CANDIDATES", 2)
    query = f"/v1/operator/jobs?target={IMAGE}&code=corrupt"

    first = (await operating.get(query)).json()
    second = (await operating.get(f"{query}&cursor={first['nextCursor']}")).json()

    assert [] == first["jobs"]
    assert [str(rare.job_id)] == [job["jobId"] for job in second["jobs"]]


async def test_a_list_may_begin_and_end_at_a_time(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient, rival: httpx.AsyncClient
) -> None:
    before, job, after = [await submitted(client) for client in (acme, rival, acme)]
    moment = datetime.fromtimestamp((job.int >> 80) / 1000, UTC)
    stamps = [quote((moment + timedelta(milliseconds=n)).isoformat()) for n in (-1, 1)]
    query = f"createdAfter={stamps[0]}&createdBefore={stamps[1]}"

    found = await listed(operating, query)

    assert str(job) in found
    assert {str(job)} == set(await listed(operating, f"{query}&tenant=rival&status=queued"))
    stamp = quote(moment.isoformat())
    assert str(job) not in await listed(operating, f"createdBefore={stamp}")
    assert str(after) not in await listed(operating, f"createdBefore={stamp}")
    assert str(before) not in await listed(operating, f"createdAfter={stamp}&tenant=rival")


async def test_everything_about_a_job_is_every_column(
    operating: httpx.AsyncClient, rival: httpx.AsyncClient, operator: Connection
) -> None:
    job_id = await submitted(rival, payload={"note": "secret"}, idempotencyKey="key-1")
    columns = set(dict(await job_row(operator, job_id)))

    whole = (await operating.get(f"/v1/operator/jobs/{job_id}")).json()

    assert ("rival", "noop", "queued") == (whole["tenant"], whole["jobType"], whole["status"])
    assert ({"note": "secret"}, "key-1") == (whole["payload"], whole["idempotencyKey"])
    renamed = {"id": "job_id", "tenant_id": "tenant", "type": "job_type", "state": "status"}
    assert {renamed.get(column, column) for column in columns} <= set(WholeJob.model_fields)
    is_problem(await operating.get(f"/v1/operator/jobs/{uuid4()}"), 404, "not_found")


async def test_attempts_tell_what_the_public_may_not_know(
    operating: httpx.AsyncClient, running: Running, worker: Connection, superuser: Connection
) -> None:
    failed = await a_job(worker, superuser, state=FAILED)

    (attempt,) = (await operating.get(f"/v1/operator/jobs/{failed.job_id}/attempts")).json()[
        "attempts"
    ]

    assert ("failed", "corrupt", "bad header") == (
        attempt["outcome"],
        attempt["why"],
        attempt["detail"],
    )
    assert str(failed.worker_id) == attempt["workerId"]
    assert attempt["duration"] >= 0
    is_problem(await operating.get(f"/v1/operator/jobs/{uuid4()}/attempts"), 404, "not_found")


@pytest.mark.parametrize(
    ("verb", "code"), [("cancel", "cancelled"), ("fail", "failed_by_operator")]
)
async def test_an_order_to_end_a_job_goes_the_road_of_cancellation(
    operating: httpx.AsyncClient,
    rival: httpx.AsyncClient,
    worker: Connection,
    superuser: Connection,
    key_id: str,
    verb: str,
    code: str,
) -> None:
    victim = await submitted(rival)
    path = f"/v1/operator/jobs/{victim}/{verb}"

    first = await operating.post(path, json={"reason": "it blocks"})
    again = await operating.post(path, json={"reason": "it blocks"})

    assert 202 == first.status_code, first.text
    assert first.json() == again.json()
    order = await job_row(superuser, JobId(UUID(first.json()["jobId"])))
    assert ("rival", "cancel_job", key_id) == (
        order["tenant_id"],
        order["type"],
        order["created_by"],
    )
    assert order["payload"] == {"job_id": str(victim), "code": code, "reason": "it blocks"}
    # As the handler does with it:
    await cancel_job(worker, victim, code=CancelCode(code), detail="it blocks")
    answer = await claim_job(worker, victim, await a_worker(worker))
    assert answer.claim is not None
    assert code == answer.claim.cancel_code
    is_problem(await operating.post(path, json={}), 422, "invalid_request")
    nobody = f"/v1/operator/jobs/{uuid4()}/{verb}"
    is_problem(await operating.post(nobody, json={"reason": "x"}), 404, "not_found")


async def test_retry_now_makes_a_waiting_job_due(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=FAILED_RETRYABLE, due=False)

    answer = await operating.post(f"/v1/operator/jobs/{job.job_id}/retry-now")

    assert {"jobId": str(job.job_id), "status": "failed_retryable", "rung": True} == answer.json()
    row = await job_row(superuser, job.job_id)
    assert row["run_at"] <= datetime.now(UTC)


async def test_retry_now_leaves_a_job_alone_that_does_not_wait(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    done = await a_job(worker, superuser, state=COMPLETED)

    answer = await operating.post(f"/v1/operator/jobs/{done.job_id}/retry-now")

    assert not answer.json()["rung"]
    assert await ring_row(superuser, done.job_id) is None
    is_problem(await operating.post(f"/v1/operator/jobs/{uuid4()}/retry-now"), 404, "not_found")


async def test_outcomes_are_counted(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    jobs = [await a_job(worker, superuser, state=state) for state in (QUEUED, COMPLETED, FAILED)]

    answer = await operating.post(
        "/v1/operator/jobs:outcomes", json={"jobIds": [str(job.job_id) for job in jobs]}
    )

    assert {"open": 1, "completed": 1, "failed": 1, "failureRatio": 0.5} == answer.json()
