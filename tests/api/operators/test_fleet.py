"""Operators and the fleet: pauses, breakers, workers, queues, the ledger, what is pruned."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from imagefleet.embedded.machine import free_port
from imagefleet.jobs.model import JobState, Lane
from imagefleet.maintenance.pruner import PERIOD
from imagefleet.store.database import Connection
from imagefleet.store.fleet.elections import begin_period, finish_period
from tests.support.api import Serve
from tests.support.eventually import eventually
from tests.support.factories import (
    a_job,
    a_submission,
    a_worker,
    age_finished_jobs,
    announce,
    open_breaker,
)
from tests.support.http import is_problem, submitted
from tests.support.rows import ring_row

QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState
PAUSES = "/v1/operator/pauses"


async def asked(client: httpx.AsyncClient, path: str) -> Any:  # noqa: ANN401 - JSON
    answer = await client.get(f"/v1/operator/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_pause_says_who_and_why_and_what_still_runs(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    await a_job(worker, superuser, state=PROCESSING)
    await a_job(worker, superuser, state=PROCESSING, submission=a_submission(preempts=True))
    body = {"scope": "type", "name": "noop", "reason": "a bad day"}

    put = await operating.put(PAUSES, json=body)
    again = await operating.put(PAUSES, json=body | {"reason": "a worse one"})

    assert 200 == put.status_code, put.text
    key_id = await superuser.fetchval("SELECT id FROM api_keys WHERE scopes = '{operate}'")
    assert (f"of tests ({key_id})", "a bad day", 1) == (
        put.json()["pausedBy"],
        put.json()["reason"],
        put.json()["running"],
    )
    assert {"pauses": [again.json()]} == await asked(operating, "pauses")
    assert "a worse one" == again.json()["reason"]


@pytest.mark.parametrize(
    ("what", "still"),
    [
        ({"scope": "all"}, 1),
        ({"scope": "lane", "name": "fast"}, 1),
        ({"scope": "lane", "name": "general"}, 0),
        ({"scope": "type", "name": "other"}, 0),
        ({"scope": "target", "name": "image:1", "tenant": "acme"}, 1),
        ({"scope": "target", "name": "image:1", "tenant": "rival"}, 0),
        ({"scope": "tenant", "tenant": "acme"}, 1),
        ({"scope": "tenant", "tenant": "acme", "name": "noop"}, 1),
        ({"scope": "tenant", "tenant": "acme", "name": "other"}, 0),
        ({"scope": "tenant", "tenant": "rival"}, 0),
    ],
)
async def test_every_scope_counts_its_own(
    operating: httpx.AsyncClient,
    worker: Connection,
    superuser: Connection,
    what: dict[str, str],
    still: int,
) -> None:
    await a_job(worker, superuser, state=PROCESSING, submission=a_submission(target="image:1"))

    put = await operating.put(PAUSES, json=what | {"reason": "x"})
    lifted = await operating.delete(PAUSES, params=what)

    assert still == put.json()["running"]
    assert what == lifted.json()
    is_problem(await operating.delete(PAUSES, params=what), 404, "not_found")


async def test_resuming_lets_go_what_was_held_back_and_rings_the_first_of_a_target(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    target = {"scope": "target", "name": "image:1", "tenant": "acme"}
    for what in ({"scope": "all"}, target):
        await operating.put(PAUSES, json=what | {"reason": "x"})
    jobs = [
        await a_job(worker, superuser, submission=a_submission(target="image:1")) for _ in range(2)
    ]

    for what in ({"scope": "all"}, target):
        assert what == (await operating.delete(PAUSES, params=what)).json()

    assert {"pauses": []} == (await operating.get(PAUSES)).json()
    rings = [await ring_row(superuser, job.job_id) for job in jobs]
    assert [False, True] == [ring["parked"] for ring in rings if ring is not None]


async def test_a_pause_can_refuse_what_is_new(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient
) -> None:
    body = {"scope": "type", "name": "noop", "reason": "x", "refuseNew": True}
    await operating.put(PAUSES, json=body)

    is_problem(await acme.post("/v1/jobs", json={"jobType": "noop"}), 503, "submits_paused")
    await operating.delete(f"{PAUSES}?scope=type&name=noop")
    await submitted(acme)


@pytest.mark.parametrize(
    "what",
    [
        {"scope": "all", "name": "x"},
        {"scope": "type"},
        {"scope": "lane", "name": "slow"},
        {"scope": "target", "name": "image:1"},
        {"scope": "type", "name": "noop", "tenant": "acme"},
    ],
)
async def test_a_pause_names_one_thing(operating: httpx.AsyncClient, what: dict[str, str]) -> None:
    is_problem(await operating.put(PAUSES, json=what | {"reason": "x"}), 422, "invalid_request")
    is_problem(await operating.delete(PAUSES, params=what), 422, "invalid_request")


async def test_submits_are_not_refused_by_target(operating: httpx.AsyncClient) -> None:
    target = {"scope": "target", "name": "image:1", "tenant": "acme", "reason": "x"}

    is_problem(
        await operating.put(PAUSES, json=target | {"refuseNew": True}), 422, "invalid_request"
    )


async def test_a_breaker_is_opened_and_reset_by_somebody(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    is_problem(await operating.post("/v1/operator/breakers/s3/reset"), 404, "not_found")

    opened = (await operating.post("/v1/operator/breakers/s3/open")).json()
    reset = (await operating.post("/v1/operator/breakers/s3/reset")).json()

    assert ("open", True, 1) == (opened["state"], opened["forced"], opened["trips"])
    assert opened["updatedBy"].startswith("of tests (")
    assert ("closed", False) == (reset["state"], reset["forced"])
    assert {"breakers": [reset]} == await asked(operating, "breakers")


async def test_a_breaker_whose_time_has_come_is_half_open(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    await open_breaker(worker)
    await superuser.execute("UPDATE circuit_breakers SET retry_at = now()")

    (breaker,) = (await asked(operating, "breakers"))["breakers"]

    assert "half_open" == breaker["state"]


async def test_workers_tell_what_they_hold(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=PROCESSING)
    gone = await a_worker(worker)
    await superuser.execute(
        "UPDATE workers SET dead_at = now(), dead_why = 'silent' WHERE id = $1", gone
    )
    await superuser.execute("UPDATE workers SET beat_at = now() - interval '7 s'")

    (living,) = (await asked(operating, "workers"))["workers"]
    both = (await asked(operating, "workers?all=true"))["workers"]

    assert str(job.worker_id) == living["workerId"]
    assert [str(job.job_id)] == [held["jobId"] for held in living["held"]]
    assert 7 <= living["silentFor"] < 30
    assert "drainingSince" not in living
    assert [None, "silent"] == [each.get("deadWhy") for each in both]


async def test_a_worker_is_asked_to_drain_once_and_who_is_gone_is_not(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    living, gone = await a_worker(worker), await a_worker(worker)
    await superuser.execute(
        "UPDATE workers SET dead_at = now(), dead_why = 'silent' WHERE id = $1", gone
    )

    async def drained(worker_id: object) -> httpx.Response:
        path = f"/v1/operator/workers/{worker_id}/drain"
        return await operating.post(path, json={"reason": "why"})

    first, again, late = await drained(living), await drained(living), await drained(gone)

    assert "drainRequestedAt" in first.json()
    assert first.json()["drainRequestedAt"] == again.json()["drainRequestedAt"]
    assert ("silent", None) == (late.json()["deadWhy"], late.json().get("drainRequestedAt"))
    is_problem(await drained(uuid4()), 404, "not_found")
    assert 1 == await superuser.fetchval("SELECT count(*) FROM audit WHERE action = 'drain'")


async def test_queues_tell_depths_flow_failures_and_what_is_stuck(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    await announce(worker, (await a_job(worker, superuser)).job_id)
    stuck = await a_job(worker, superuser, state=PROCESSING)
    await superuser.execute(
        "UPDATE lanes SET window_size = 7, oldest_at = now() - interval '1 minute' "
        "WHERE lane = 'fast'"
    )
    await a_job(worker, superuser, state=COMPLETED)
    await a_job(worker, superuser, state=FAILED)
    old = await a_job(worker, superuser, state=FAILED)
    async with superuser.transaction():
        await superuser.execute("SET LOCAL session_replication_role = replica")
        await superuser.execute(
            "UPDATE jobs SET finished_at = now() - interval '2 hours' WHERE id = $1", old.job_id
        )
        await superuser.execute(
            "UPDATE attempts SET ended_at = now() - interval '2 hours' WHERE job_id = $1",
            old.job_id,
        )
        await superuser.execute(
            "UPDATE jobs SET claimed_at = now() - interval '2 hours' WHERE id = $1", stuck.job_id
        )

    stats = await asked(operating, "queues")

    assert list(Lane) == [lane["lane"] for lane in stats["lanes"]]
    fast = stats["lanes"][0]
    assert (5, 40, 1, 1, 1) == tuple(
        fast[name] for name in ("workers", "slots", "busy", "processing", "waiting")
    )
    assert (1, 7) == (fast["announced"], fast["window"])
    assert datetime.fromisoformat(fast["oldestDueRing"]) < datetime.now(UTC) - timedelta(seconds=50)
    assert all("oldestDueRing" not in lane for lane in stats["lanes"][1:])
    assert {"visible", "inFlight", "delayed"} == set(fast["messages"])
    assert {("noop", "queued", 1), ("noop", "processing", 1)} == {
        (depth["jobType"], depth["status"], depth["jobs"]) for depth in stats["depths"]
    }
    assert {("completed", 1), ("failed", 1)} == {
        (flow["outcome"], flow["attempts"]) for flow in stats["throughput"]
    }
    assert [("corrupt", 1)] == [(group["code"], group["failures"]) for group in stats["failures"]]
    assert [(str(stuck.job_id), "tests")] == [(job["jobId"], job["host"]) for job in stats["stuck"]]
    assert 2 == stats["unacknowledged"]


async def test_many_that_ask_at_once_are_answered_with_one_look(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient
) -> None:
    first = await asked(operating, "queues")
    await submitted(acme)
    second = await asked(operating, "queues")

    assert first == second

    async def one_more() -> bool:
        return bool((await asked(operating, "queues"))["depths"])

    assert await eventually(one_more, within=10)


async def test_queues_are_shown_though_sqs_does_not_answer(serve: Serve) -> None:
    async with (
        serve(aws_url=f"http://127.0.0.1:{free_port()}") as running,
        running.client("operator") as operating,
    ):
        stats = await asked(operating, "queues")

    assert all("messages" not in lane for lane in stats["lanes"])


async def test_the_ledger_balances_and_tells_of_drift(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    jobs = {state: await a_job(worker, superuser, state=state) for state in JobState}
    await announce(worker, jobs[FAILED_RETRYABLE].job_id)

    ledger = await asked(operating, "ledger")

    names = ("accepted", "open", "completed", "failed", "pruned", "missing")
    assert [5, 3, 1, 1, 0, 0] == [ledger[name] for name in names]
    assert [2, 0, 0] == [lane["waiting"] for lane in ledger["drift"]]
    # What was announced should have a message, and what runs; the other waits for its turn.
    assert [2, 0, 0] == [lane["expected"] for lane in ledger["drift"]]
    assert all(
        lane["drift"] == lane["expected"] - sum(lane["messages"].values())
        for lane in ledger["drift"]
    )


async def test_prune_tells_what_is_left_and_what_was_done(
    operating: httpx.AsyncClient,
    worker: Connection,
    superuser: Connection,
    maintenance: Connection,
) -> None:
    await a_job(worker, superuser, state=COMPLETED)
    await a_job(worker, superuser, state=FAILED)  # kept: its letter is open
    await age_finished_jobs(superuser)
    start = await begin_period(maintenance, "prune", PERIOD, uuid4())
    assert start is not None
    await finish_period(maintenance, "prune", start, {"taken": True, "jobs": 7})

    prune = await asked(operating, "prune")

    assert (30, 1, False) == (
        prune["retentionDays"],
        prune["prunable"],
        prune["prunableIsAtLeast"],
    )
    assert [7] == [run["jobs"] for run in prune["runs"]]
