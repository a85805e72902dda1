"""Operators and tenants: what each has open, its limits, its pauses, an end to all of its jobs."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from imagefleet.api.operators import queues
from imagefleet.api.operators.queues import Look
from imagefleet.errors import Unavailable
from imagefleet.jobs.kinds import CancelJobs
from imagefleet.jobs.limits import LIMITS
from imagefleet.jobs.model import JobId, JobState, TenantId
from imagefleet.store.database import Connection, unavailable
from imagefleet.store.fleet import tenants
from imagefleet.store.jobs import cancelling
from imagefleet.store.jobs.cancelling import FlaggedPage
from imagefleet.store.jobs.rings import URGENT
from imagefleet.worker.handlers import cancelling as handlers
from imagefleet.worker.handlers.cancelling import CANCEL_JOBS
from tests.support.api import Running
from tests.support.bench import a_bench
from tests.support.database import Database
from tests.support.eventually import eventually
from tests.support.factories import a_job, a_submission, claim_job
from tests.support.http import is_problem, submitted
from tests.support.rows import job_row, ring_row

TENANTS = "/v1/operator/tenants"
PAUSES = "/v1/operator/pauses"
QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState


@dataclass
class Clock:
    """The one of a process, ahead of itself."""

    ahead: float = 0.0

    def now(self) -> float:
        return time.monotonic() + self.ahead


async def asked(client: httpx.AsyncClient, path: str) -> Any:  # noqa: ANN401 - JSON
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def limits_of(client: httpx.AsyncClient, tenant: str) -> dict[str, dict[str, object]]:
    tenant_view = await asked(client, f"{TENANTS}/{tenant}")
    return {limit["name"]: limit for limit in tenant_view["limits"]}


async def test_the_list_has_every_tenant_with_what_it_has_open(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    for state in JobState:
        await a_job(worker, superuser, state=state)
    for what in ({}, {"name": "noop"}):
        body = {"scope": "tenant", "tenant": "rival", "reason": "x"} | what
        assert (await operating.put(PAUSES, json=body)).status_code == 200

    page = await asked(operating, TENANTS)

    shown = {tenant["tenant"]: tenant for tenant in page["tenants"]}
    assert (3, False, 1, 1_000_000, False) == tuple(
        shown["acme"][name]
        for name in ("openJobs", "openJobsIsAtLeast", "weight", "maxOpenJobs", "paused")
    )
    assert (True, ["noop"]) == (shown["rival"]["paused"], shown["rival"]["pausedTypes"])


async def test_the_list_goes_on_behind_its_last_tenant(operating: httpx.AsyncClient) -> None:
    everybody = [tenant["tenant"] for tenant in (await asked(operating, TENANTS))["tenants"]]
    met: list[str] = []
    cursor = ""
    while True:
        page = await asked(operating, f"{TENANTS}?limit=1{cursor}")
        met += [tenant["tenant"] for tenant in page["tenants"]]
        if "nextCursor" not in page:
            break
        cursor = f"&cursor={page['nextCursor']}"

    assert len(everybody) > 1
    assert sorted(everybody) == met == everybody


async def test_a_list_counts_no_further_than_it_says(
    operating: httpx.AsyncClient,
    worker: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tenants, "MOST_OPEN_LISTED", 2)
    for _ in range(3):
        await a_job(worker, superuser)

    page = await asked(operating, TENANTS)

    (acme,) = [tenant for tenant in page["tenants"] if tenant["tenant"] == "acme"]
    assert (2, True) == (acme["openJobs"], acme["openJobsIsAtLeast"])


async def test_one_tenant_is_shown_with_its_jobs_by_state_and_its_limits(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    for state in JobState:
        await a_job(worker, superuser, state=state)

    tenant = await asked(operating, f"{TENANTS}/acme")

    assert (1, 1, 1) == (tenant["queued"], tenant["processing"], tenant["failedRetryable"])
    assert {
        "open_jobs": (1_000_000, 1_000_000, 3),
        "weight": (1, 1, None),
        **{
            name: (limit.default, limit.default, None)
            for name, limit in LIMITS.items()
            if name != "open_jobs"
        },
    } == {
        limit["name"]: (limit.get("default"), limit.get("value"), limit.get("used"))
        for limit in tenant["limits"]
    }


async def test_the_defaults_are_those_of_the_columns(superuser: Connection) -> None:
    rows = await superuser.fetch(
        "SELECT column_name, column_default FROM information_schema.columns "
        "WHERE table_name = 'tenants' AND column_name IN ('max_open_jobs', 'weight')"
    )

    columns = {row["column_name"]: int(row["column_default"]) for row in rows}
    assert {"max_open_jobs": tenants.DEFAULTS["open_jobs"], "weight": 1} == columns


async def test_what_was_turned_for_all_is_the_default_of_a_tenant(
    operating: httpx.AsyncClient,
) -> None:
    setting = "/v1/operator/settings/limits.uploads"
    turned = await operating.put(setting, json={"value": 5, "reason": "many pilots"})
    assert turned.status_code == 200, turned.text

    async def is_shown() -> bool:
        uploads = (await limits_of(operating, "acme"))["uploads"]
        return (5, 5) == (uploads["default"], uploads["value"])

    await eventually(is_shown, within=10)


async def test_limits_are_set_and_undone_one_by_one(
    operating: httpx.AsyncClient, superuser: Connection
) -> None:
    path = f"{TENANTS}/acme/limits"
    first = {"open_jobs": 5, "weight": 3, "requests": 10, "uploads": 0}
    body = {"limits": first, "reason": "a flood"}

    put = await operating.put(path, json=body)

    assert put.status_code == 200, put.text
    assert put.json() == await asked(operating, f"{TENANTS}/acme")
    limits = await limits_of(operating, "acme")
    assert first == {name: limits[name]["value"] for name in first}
    key_id = await superuser.fetchval("SELECT id FROM api_keys WHERE scopes = '{operate}'")
    assert (f"of tests ({key_id})", "a flood") == (
        limits["uploads"]["setBy"],
        limits["uploads"]["reason"],
    )
    body = {"limits": {"open_jobs": None, "requests": None, "uploads": 7}, "reason": "over"}
    assert (await operating.put(path, json=body)).status_code == 200
    limits = await limits_of(operating, "acme")
    assert (1_000_000, 3, LIMITS["requests"].default, 7) == tuple(
        limits[name].get("value") for name in ("open_jobs", "weight", "requests", "uploads")
    )
    assert 1_000_000 == (await limits_of(operating, "rival"))["open_jobs"]["value"]


async def test_a_quota_that_was_set_is_kept(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient
) -> None:
    body = {"limits": {"open_jobs": 1}, "reason": "a flood"}
    await operating.put(f"{TENANTS}/acme/limits", json=body)
    await submitted(acme)

    is_problem(await acme.post("/v1/jobs", json={"jobType": "noop"}), 429, "too_many_open_jobs")


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"open_jobs": 0},
        {"weight": 0},
        {"weight": 101},
        {"requests": -1},
        {"bytes": 100 * 2**30 + 1},
        {"operator_requests": 9},
        {"unknown": 1},
        {"open_jobs": "5"},
        {"open_jobs": 1.5},
        {"open_jobs": True},
    ],
    ids=str,
)
async def test_a_limit_that_is_none_is_refused(
    operating: httpx.AsyncClient, limits: dict[str, object]
) -> None:
    body = {"limits": limits, "reason": "x"}

    is_problem(await operating.put(f"{TENANTS}/acme/limits", json=body), 422, "invalid_request")


async def test_there_are_no_more_limits_than_everybody_reads(
    operating: httpx.AsyncClient, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "MOST_LIMITS", 2)

    async def put(tenant: str, **limits: int | None) -> httpx.Response:
        body = {"limits": limits, "reason": "x"}
        return await operating.put(f"{TENANTS}/{tenant}/limits", json=body)

    assert 200 == (await put("acme", requests=5, uploads=5)).status_code
    is_problem(await put("rival", requests=5), 422, "invalid_setting")
    assert 2 == await superuser.fetchval("SELECT count(*) FROM tenant_limits")
    assert 200 == (await put("acme", requests=6)).status_code
    assert 200 == (await put("rival", weight=2)).status_code
    assert 200 == (await put("acme", requests=None, streams=5)).status_code


async def test_a_tenant_that_does_not_exist_is_not_found(operating: httpx.AsyncClient) -> None:
    pause = {"scope": "tenant", "tenant": "nobody", "reason": "x"}
    for answer in (
        await operating.get(f"{TENANTS}/nobody"),
        await operating.put(
            f"{TENANTS}/nobody/limits", json={"limits": {"weight": 2}, "reason": "x"}
        ),
        await operating.post(f"{TENANTS}/nobody/cancel", json={"reason": "x"}),
        await operating.put(PAUSES, json=pause),
    ):
        is_problem(answer, 404, "not_found")


async def test_a_paused_tenant_can_be_refused_what_is_new(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient, running: Running
) -> None:
    body = {"scope": "tenant", "tenant": "acme", "name": "noop", "reason": "x", "refuseNew": True}
    put = await operating.put(PAUSES, json=body)

    assert True is put.json()["known"]
    is_problem(await acme.post("/v1/jobs", json={"jobType": "noop"}), 503, "submits_paused")
    async with running.client("rival") as rival:
        await submitted(rival)
    await operating.delete(PAUSES, params={"scope": "tenant", "tenant": "acme", "name": "noop"})
    await submitted(acme)


async def test_all_that_a_tenant_has_is_cancelled_by_one_job(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient, superuser: Connection
) -> None:
    for _ in range(3):
        await submitted(acme)
    path, body = f"{TENANTS}/acme/cancel", {"reason": "asked for"}

    dry = await operating.post(path, json=body | {"dryRun": True})
    first = await operating.post(path, json=body)
    other = await operating.post(path, json=body | {"jobType": "process_image"})

    assert (200, {"jobs": 3, "jobsIsAtLeast": False}) == (dry.status_code, dry.json())
    assert (202, 3) == (first.status_code, first.json()["jobs"])
    assert first.json()["jobId"] != other.json()["jobId"]
    assert (202, 0) == (other.status_code, other.json()["jobs"])
    assert first.headers["location"] == first.json()["links"]["self"]
    row = await job_row(superuser, first.json()["jobId"])
    assert ("cancel_jobs", "acme", {"reason": "asked for"}) == (
        row["type"],
        row["tenant_id"],
        row["payload"],
    )
    assert 2 == await superuser.fetchval("SELECT count(*) FROM jobs WHERE type = 'cancel_jobs'")


async def test_what_was_submitted_after_a_walk_began_is_cancelled_by_ordering_again(
    operating: httpx.AsyncClient,
    acme: httpx.AsyncClient,
    worker: Connection,
    superuser: Connection,
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The walk that has begun passes it over, and must not be the answer to the second order."""
    body = {"reason": "a flood", "jobType": "noop"}
    order = partial(operating.post, f"{TENANTS}/acme/cancel", json=body)
    old, since = await submitted(acme), list[JobId]()
    walks = [(await order()).json()]

    async def flag_page(*arguments: Any) -> FlaggedPage:  # noqa: ANN401
        if not since:  # the first walk has begun
            since.append(await submitted(acme))
            walks.append((await order()).json())
        return await cancelling.flag_page(*arguments)

    monkeypatch.setattr(handlers, "flag_page", flag_page)
    flagged = []
    async with a_bench(database, worker, tmp_path) as bench:
        for number in range(2):
            walk = JobId(UUID(walks[number]["jobId"]))
            claim = (await claim_job(worker, walk, bench.worker_id)).claim
            assert claim is not None
            await bench.attempt(claim, CANCEL_JOBS.run, CANCEL_JOBS.kind).work()
            rows = [await job_row(superuser, job_id) for job_id in (old, *since)]
            flagged.append([row["cancel_requested_at"] is not None for row in rows])

    assert [[True, False], [True, True]] == flagged
    assert walks[0]["jobId"] != walks[1]["jobId"]


async def test_what_is_cancelled_may_be_chosen_as_a_list_is(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient, superuser: Connection
) -> None:
    await submitted(acme, correlationId="request-1")
    await submitted(acme)
    chosen = {"correlationId": "request-1", "status": "queued", "reason": "asked for"}
    chosen |= {"submittedAfter": "2020-01-01T00:00:00Z"}
    path = f"{TENANTS}/acme/cancel"

    counted = await operating.post(path, json=chosen | {"dryRun": True})
    ordered = await operating.post(path, json=chosen)

    assert (200, 1) == (counted.status_code, counted.json()["jobs"])
    job = await job_row(superuser, JobId(UUID(ordered.json()["jobId"])))
    assert ("request-1", "queued") == (job["payload"]["correlation_id"], job["payload"]["status"])
    for nonsense in (
        {"status": "completed"},
        {"code": "No Code"},
        {"submittedAfter": "now"},
        {"target": "\0"},
    ):
        is_problem(await operating.post(path, json=chosen | nonsense), 422, "invalid_request")


async def test_only_operators_stop_what_cancels_a_tenants_jobs(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient, superuser: Connection
) -> None:
    """It is the tenant's job, which its keys see, and would have stopped."""
    walk = (await operating.post(f"{TENANTS}/acme/cancel", json={"reason": "a flood"})).json()

    seen = await acme.get(f"/v1/jobs/{walk['jobId']}")
    refused = await acme.post(f"/v1/jobs/{walk['jobId']}/cancel")
    count = "SELECT count(*) FROM jobs WHERE type = 'cancel_job'"
    ordered = await superuser.fetchval(count)
    by_operator = await operating.post(
        f"/v1/operator/jobs/{walk['jobId']}/cancel", json={"reason": "a mistake"}
    )

    assert 200 == seen.status_code
    is_problem(refused, 403, "forbidden")
    assert (0, 202) == (ordered, by_operator.status_code)
    assert 1 == await superuser.fetchval(count)


async def test_the_job_that_cancels_stands_behind_none_of_the_tenants_others(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient, superuser: Connection
) -> None:
    """A flood may be of the highest priority that there is."""
    await submitted(acme, priority=0)

    ordered = await operating.post(f"{TENANTS}/acme/cancel", json={"reason": "a flood"})

    ring = await ring_row(superuser, ordered.json()["jobId"])
    assert ring is not None
    assert URGENT == ring["priority"]


async def test_producers_cancel_no_tenant(acme: httpx.AsyncClient) -> None:
    answer = await acme.post("/v1/jobs", json={"jobType": "cancel_jobs"})

    is_problem(answer, 422, "use_another_route")


async def test_the_queues_say_who_waits_longest(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    """And of whom something runs or is announced; a pause of the tenant is told."""
    rival, third = TenantId("rival"), TenantId("third")
    old = await a_job(worker, superuser, submission=a_submission(tenant_id=rival))
    await a_job(worker, superuser, submission=a_submission(tenant_id=rival, type="process_image"))
    await a_job(worker, superuser, submission=a_submission(tenant_id=rival), due=False)
    await a_job(worker, superuser)
    await a_job(worker, superuser, state=PROCESSING, submission=a_submission(tenant_id=third))
    sent = await a_job(worker, superuser, submission=a_submission(tenant_id=third))
    await superuser.execute(
        "UPDATE rings SET next_at = now() - interval '1 hour' WHERE job_id = $1", old.job_id
    )
    await superuser.execute(
        "UPDATE rings SET sent_at = now(), sends = 1 WHERE job_id = $1", sent.job_id
    )
    body = {"scope": "tenant", "tenant": "rival", "name": "noop", "reason": "x"}
    await operating.put(PAUSES, json=body)

    stats = await asked(operating, "/v1/operator/queues")

    names = ("tenant", "waiting", "announced", "processing", "paused")
    assert [
        ("rival", 3, 0, 0, True),
        ("acme", 1, 0, 0, False),
        ("third", 0, 1, 1, False),
    ] == [tuple(tenant[name] for name in names) for tenant in stats["tenants"]]
    assert stats["tenantsAreAllRanked"]
    assert [True, True, False] == ["oldestDue" in tenant for tenant in stats["tenants"]]


async def test_who_waits_longest_is_told_as_it_was_seen_and_seen_anew_once_it_was_told(
    operating: httpx.AsyncClient,
    worker: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So nobody waits for it who asks again and again, and nobody hears what is long past."""
    hours = Clock()
    monkeypatch.setattr(queues, "monotonic", hours.now)

    async def ranked() -> list[str]:
        told = await asked(operating, "/v1/operator/queues")
        return [tenant["tenant"] for tenant in told["tenants"]]

    async def comes(name: str) -> None:
        await a_job(worker, superuser, submission=a_submission(tenant_id=TenantId(name)))

    await comes("t-0")
    assert ["t-0"] == await ranked()
    await comes("t-1")
    begun = hours.ahead
    hours.ahead += queues.STATS_ARE_GOOD_FOR + 1
    assert ["t-0"] == await ranked()

    async def seen_anew() -> bool:
        hours.ahead += queues.STATS_ARE_GOOD_FOR + 0.1
        return await ranked() == ["t-0", "t-1"]

    await eventually(seen_anew)
    assert hours.ahead - begun < queues.RANKING_IS_KEPT_FOR, "by whoever waited for it"
    await comes("t-2")
    hours.ahead += queues.RANKING_IS_KEPT_FOR + 1
    assert ["t-0", "t-1", "t-2"] == await ranked()


async def test_nobody_else_hears_of_a_look_that_fails_after_the_answer() -> None:
    """Whoever comes next looks himself, where what was seen is too old by then."""
    look = Look[str](0.0)

    async def sees() -> str:
        return "seen"

    async def fails() -> str:
        raise unavailable("database_unavailable")

    await look.renew(fails, older=0)
    with pytest.raises(Unavailable):
        await look.at(fails)
    assert "seen" == await look.at(sees)


async def test_the_ranking_says_when_it_has_not_seen_everybody(
    superuser: Connection, worker: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "LEVELS_OF_A_LANE", 2)
    for n in range(3):
        await a_job(worker, superuser, submission=a_submission(tenant_id=TenantId(f"t-{n}")))

    ranking = await tenants.rank_tenants(superuser, limit=9)

    assert (["t-0", "t-1"], False) == (
        [tenant.tenant for tenant in ranking.tenants],
        ranking.complete,
    )


async def test_an_explanation_tells_of_the_tenants_turns(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    jobs = [await a_job(worker, superuser) for _ in range(3)]
    await a_job(worker, superuser, submission=a_submission(tenant_id=TenantId("rival")))
    body = {"limits": {"weight": 4, "open_jobs": 9}, "reason": "x"}
    await operating.put(f"{TENANTS}/acme/limits", json=body)

    told = await asked(operating, f"/v1/operator/jobs/{jobs[-1].job_id}/explain")

    assert (2, 4, 9) == (told["ahead"], told["weight"], told["maxOpenJobs"])
    assert "behind 2 of its tenant's own" in told["sentence"]


async def test_what_a_filter_finds_of_every_tenant_is_cancelled_by_one_job_of_the_operators(
    operating: httpx.AsyncClient,
    acme: httpx.AsyncClient,
    rival: httpx.AsyncClient,
    superuser: Connection,
) -> None:
    for client in (acme, rival, rival):
        await submitted(client, correlationId="request-1")
    await submitted(rival)
    path, chosen = "/v1/operator/jobs:cancel", {"correlationId": "request-1", "reason": "why"}

    counted = (await operating.post(path, json=chosen | {"dryRun": True})).json()
    of_one = await operating.post(path, json=chosen | {"dryRun": True, "tenant": "rival"})
    nobodys = await operating.post(path, json=chosen | {"tenant": "nobody"})
    before = await superuser.fetchval("SELECT now()")
    ordered = await operating.post(path, json=chosen)

    assert (3, False, 2) == (counted["jobs"], counted["jobsIsAtLeast"], of_one.json()["jobs"])
    is_problem(nobodys, 404, "not_found")
    job = await job_row(superuser, JobId(UUID(ordered.json()["jobId"])))
    payload = CancelJobs.model_validate(job["payload"], strict=False)
    assert (202, "acme", True) == (ordered.status_code, job["tenant_id"], payload.every_tenant)
    assert payload.submitted_before is not None
    assert before <= payload.submitted_before <= job["created_at"], "what comes later is not meant"
    told = "SELECT name, tenant_id FROM audit WHERE action = 'cancel'"
    assert [("correlation_id=request-1", None)] == [
        tuple(row) for row in await superuser.fetch(told)
    ]
