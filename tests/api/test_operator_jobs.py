"""Operators and jobs: lists across tenants, everything about one, why it waits, and orders."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.api.operator_schemas import WholeJob
from imagefleet.jobs.model import CancelCode, JobId, JobState, Lane
from imagefleet.store.breakers import force_open, report_failures
from imagefleet.store.control import Pause, PauseScope, cancel_job, pause
from imagefleet.store.database import Connection
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
async def operating(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with running.client("operator") as client:
        yield client


@pytest.fixture
async def key_id(running: Running, operating: httpx.AsyncClient, operator: Connection) -> str:
    found = await operator.fetchval("SELECT id FROM api_keys WHERE scopes = '{operate}'")
    return str(found)


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
    is_problem(
        await operating.get(f"/v1/operator/jobs?status=queued&target={IMAGE}"),
        422,
        "invalid_filter",
    )


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


# Why a job waits: how to make it wait, and what is said about it.

Make: TypeAlias = Callable[[Connection, Connection], Awaitable[JobId]]


async def finished(worker: Connection, superuser: Connection) -> JobId:
    return (await a_job(worker, superuser, state=COMPLETED)).job_id


async def not_due(worker: Connection, superuser: Connection) -> JobId:
    return (await a_job(worker, superuser, due=False)).job_id


async def in_backoff(worker: Connection, superuser: Connection) -> JobId:
    return (await a_job(worker, superuser, state=FAILED_RETRYABLE, due=False)).job_id


async def behind_another(worker: Connection, superuser: Connection) -> JobId:
    await a_job(worker, superuser, state=PROCESSING, submission=a_submission(target=IMAGE))
    return (await a_job(worker, superuser, submission=a_submission(target=IMAGE))).job_id


def paused(what: Pause) -> Make:
    async def make(worker: Connection, superuser: Connection) -> JobId:
        await pause(superuser, what, by="somebody", reason="a bad day")
        return (await a_job(worker, superuser, submission=a_submission(target=IMAGE))).job_id

    return make


async def behind_a_breaker(worker: Connection, superuser: Connection) -> JobId:
    await report_failures(worker, "s3", 5)
    return (await a_job(worker, superuser, submission=a_submission(services=("s3",)))).job_id


async def behind_a_forced_breaker(worker: Connection, superuser: Connection) -> JobId:
    await force_open(superuser, "s3", by="somebody")
    return (await a_job(worker, superuser, submission=a_submission(services=("s3",)))).job_id


async def saturated(worker: Connection, superuser: Connection) -> JobId:
    job = await a_job(worker, superuser)
    await a_job(worker, superuser, state=PROCESSING)
    await superuser.execute(
        "UPDATE workers SET draining_since = now() WHERE id = $1", job.worker_id
    )
    await superuser.execute("UPDATE workers SET slots = 1")
    return job.job_id


async def without_a_lane(worker: Connection, superuser: Connection) -> JobId:
    job = await a_job(worker, superuser)
    await superuser.execute("UPDATE workers SET lanes = '{general}'")
    return job.job_id


async def without_a_type(worker: Connection, superuser: Connection) -> JobId:
    job = await a_job(worker, superuser)
    await superuser.execute("UPDATE workers SET types = '{process_image}'")
    return job.job_id


async def without_both_in_one(worker: Connection, superuser: Connection) -> JobId:
    job = await a_job(worker, superuser)
    await superuser.execute("UPDATE workers SET dead_at = now(), dead_why = 'stopped'")
    await a_worker(worker, lanes=(Lane.FAST,), types=("process_image",))
    await a_worker(worker, lanes=(Lane.GENERAL,), types=("noop",))
    return job.job_id


async def held(worker: Connection, superuser: Connection) -> JobId:
    return (await a_job(worker, superuser, state=PROCESSING)).job_id


async def held_too_long(worker: Connection, superuser: Connection) -> JobId:
    job = await a_job(worker, superuser, state=PROCESSING, lock_expired=True)
    await superuser.execute("UPDATE workers SET lanes = '{general}'")
    return job.job_id


async def flagged(worker: Connection, superuser: Connection) -> JobId:
    return (await a_job(worker, superuser, flag=CancelCode.CANCELLED)).job_id


async def exhausted(worker: Connection, superuser: Connection) -> JobId:
    job = await a_job(
        worker, superuser, state=PROCESSING, lock_expired=True,
        submission=a_submission(max_attempts=1),
    )  # fmt: skip
    return job.job_id


async def ready(worker: Connection, superuser: Connection) -> JobId:
    return (await a_job(worker, superuser)).job_id


REASONS: dict[str, tuple[Make, str, str]] = {
    "finished": (finished, "finished", "It is over: completed."),
    "not due": (not_due, "not_due", "It is not due before 2"),
    "backoff": (in_backoff, "not_due", "1 of 5 attempts did not work; the next one is due at 2"),
    "target busy": (behind_another, "target_busy", f"comes first on its target {IMAGE}."),
    "target paused": (
        paused(Pause(scope=PauseScope.TARGET, name=IMAGE, tenant_id="acme")),
        "target_paused",
        f"The target {IMAGE} is paused since 2",
    ),
    "type paused": (
        paused(Pause(scope=PauseScope.TYPE, name="noop")),
        "type_paused",
        "by somebody: a bad day",
    ),
    "lane paused": (
        paused(Pause(scope=PauseScope.LANE, name="fast")),
        "lane_paused",
        "The lane fast is paused since 2",
    ),
    "all paused": (
        paused(Pause(scope=PauseScope.ALL)),
        "all_paused",
        "Everything is paused since 2",
    ),
    "breaker": (behind_a_breaker, "breaker_open", "The circuit breaker of s3 is open until 2"),
    "forced breaker": (behind_a_forced_breaker, "breaker_open", "was forced open by somebody"),
    "saturated": (
        saturated,
        "lane_saturated",
        "All 1 slots of the 1 living workers for it are busy, 1 with its lane.",
    ),
    "no lane": (
        without_a_lane,
        "no_worker_for_lane",
        "No living worker takes anything from the lane fast.",
    ),
    "no type": (
        without_a_type,
        "no_worker_for_type",
        "No living worker takes jobs of the type noop.",
    ),
    "no worker of both": (
        without_both_in_one,
        "no_worker_for_lane_and_type",
        "No living worker takes jobs of the type noop from the lane fast.",
    ),
    "held": (held, "lease_held", "holds it by claim 1; its lease ends at 2"),
    "held too long": (held_too_long, "lease_expired", "no living worker takes the lane fast."),
    "flagged": (flagged, "cancelled", "It was asked to stop"),
    "exhausted": (exhausted, "exhausted", "the next claim fails it."),
    "ready": (ready, "ready", "Nothing holds it back: 0 of 8 slots are busy; it was rung 0 times"),
}


@pytest.mark.parametrize("name", REASONS)
async def test_explain_says_why_in_a_sentence(
    name: str, operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    make, reason, words = REASONS[name]
    job_id = await make(worker, superuser)

    answer = await operating.get(f"/v1/operator/jobs/{job_id}/explain")

    assert answer.status_code == 200, answer.text
    explained = answer.json()
    assert reason == explained["reason"], explained
    assert words in explained["sentence"]


async def test_a_lease_is_said_to_be_whose(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=PROCESSING)

    explained = (await operating.get(f"/v1/operator/jobs/{job.job_id}/explain")).json()

    assert str(job.worker_id) in explained["sentence"]
    until = datetime.fromisoformat(explained["until"])
    assert timedelta(minutes=9) < until - datetime.now(UTC) < timedelta(minutes=11)
    is_problem(await operating.get(f"/v1/operator/jobs/{uuid4()}/explain"), 404, "not_found")


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
