"""A producer's own order at its targets: what waits there, holding it back, an end to all of it."""

from typing import Any, Final
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, Lane, PauseScope
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import Pause, pause
from imagefleet.store.jobs import targets
from imagefleet.store.jobs.claims import claim_jobs
from tests.support.api import uploaded
from tests.support.factories import a_worker, settle_job
from tests.support.http import claimed, is_problem
from tests.support.rows import job_row, ring_row

TAKES: Final[dict[str, Any]] = {"lanes": list(Lane), "types": ["process_image"]}
WHY: Final = {"reason": "wrong originals"}


async def an_image(client: httpx.AsyncClient, again: int = 2) -> tuple[str, list[str]]:
    """An image with an upload and so many renderings behind it: its target's address, and they."""
    image = await uploaded(client)
    jobs = [image["jobId"]]
    for _ in range(again):
        answer = await client.post(f"{image['links']['image']}/reprocess")
        jobs.append(answer.json()["jobId"])
    return f"/v1/targets/image:{image['imageId']}", jobs


async def at(client: httpx.AsyncClient, target: str, **params: str) -> dict[str, Any]:
    answer = await client.get(target, params=params)
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def test_what_waits_at_a_target_is_listed_in_its_order_page_by_page(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    target, jobs = await an_image(acme, again=4)
    await an_image(acme)
    await settle_job(worker, await claimed(worker, jobs.pop(0)), Completed())

    first = await at(acme, target, limit="3")
    second = await at(acme, target, limit="3", cursor=str(first["nextCursor"]))

    assert jobs == [job["jobId"] for page in (first, second) for job in page["jobs"]]
    assert (target.removeprefix("/v1/targets/"), None) == (first["target"], first.get("pause"))
    assert "nextCursor" not in second


async def test_a_paused_target_runs_nothing_until_it_is_resumed(
    acme: httpx.AsyncClient, worker: Connection, owner: Connection
) -> None:
    target, jobs = await an_image(acme)
    worker_id = await a_worker(worker)
    head = JobId(UUID(jobs[0]))

    paused = await acme.put(f"{target}/pause", json=WHY)

    assert paused.status_code == 200, paused.text
    told = paused.json()["pause"]
    assert ("tenant", "wrong originals") == (told["by"], told["reason"])
    assert told == (await at(acme, target))["pause"]
    (held,) = await claim_jobs(worker, [head], worker_id=worker_id, **TAKES)
    assert "paused" == held.verdict

    resumed = await acme.delete(f"{target}/pause")

    assert {"target": target.removeprefix("/v1/targets/")} == resumed.json()
    assert await owner.fetchval("SELECT next_at <= now() FROM rings WHERE job_id = $1", head)
    (free,) = await claim_jobs(worker, [head], worker_id=worker_id, **TAKES)
    assert "claimed" == free.verdict
    is_problem(await acme.delete(f"{target}/pause"), 404, "not_found")


async def test_the_audit_tells_who_and_why(acme: httpx.AsyncClient, owner: Connection) -> None:
    target, _ = await an_image(acme, again=0)

    await acme.put(f"{target}/pause", json=WHY)
    await acme.delete(f"{target}/pause")

    rows = await owner.fetch("SELECT * FROM audit WHERE kind = 'pause' ORDER BY id")
    name = f"target {target.removeprefix('/v1/targets/')}"
    assert [("pause", "wrong originals"), ("resume", None)] == [
        (row["action"], row["reason"]) for row in rows
    ]
    for row in rows:
        assert (name, "acme", "imagefleet_api") == (row["name"], row["tenant_id"], row["role"])
        assert row["key_id"] is not None
    assert "wrong originals" == rows[1]["before"]["reason"]


async def test_what_operators_have_paused_only_they_resume(
    acme: httpx.AsyncClient, operator: Connection
) -> None:
    target, _ = await an_image(acme, again=0)
    name = target.removeprefix("/v1/targets/")
    what = Pause(scope=PauseScope.TARGET, tenant_id="acme", name=name)

    await acme.put(f"{target}/pause", json=WHY)
    await pause(operator, what, by="anna", reason="they know why")  # takes it over

    told = (await at(acme, target))["pause"]
    assert {"by", "pausedAt"} == set(told)
    assert "operators" == told["by"]
    is_problem(await acme.delete(f"{target}/pause"), 409, "paused_by_operators")
    is_problem(await acme.put(f"{target}/pause", json=WHY), 409, "paused_by_operators")
    assert told == (await at(acme, target))["pause"]


async def test_what_a_failed_job_has_paused_its_tenant_resumes(
    acme: httpx.AsyncClient, superuser: Connection
) -> None:
    target, _ = await an_image(acme, again=0)
    await superuser.execute(
        "INSERT INTO pauses (scope, tenant_id, name, paused_by, reason)"
        " VALUES ('target', 'acme', $1, 'policy', 'job 7 failed')",
        target.removeprefix("/v1/targets/"),
    )

    assert "failure" == (await at(acme, target))["pause"]["by"]
    assert 200 == (await acme.delete(f"{target}/pause")).status_code


async def test_another_tenants_target_does_not_exist(
    acme: httpx.AsyncClient, rival: httpx.AsyncClient, owner: Connection
) -> None:
    theirs, _ = await an_image(rival, again=0)
    await rival.put(f"{theirs}/pause", json=WHY)

    for target in (theirs, f"/v1/targets/image:{uuid4()}"):
        answers = [
            await acme.get(target),
            await acme.put(f"{target}/pause", json=WHY),
            await acme.delete(f"{target}/pause"),
            await acme.post(f"{target}/cancel"),
        ]
        for answer in answers:
            is_problem(answer, 404, "not_found")
    assert 1 == await owner.fetchval("SELECT count(*) FROM pauses")
    assert 0 == await owner.fetchval("SELECT count(*) FROM jobs WHERE type = 'cancel_jobs'")


async def test_a_tenant_has_only_so_many_targets_paused(
    acme: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "MOST_PAUSED", 1)
    (first, _), (second, _) = await an_image(acme, again=0), await an_image(acme, again=0)

    await acme.put(f"{first}/pause", json=WHY)

    is_problem(await acme.put(f"{second}/pause", json=WHY), 429, "limit_reached")
    assert 200 == (await acme.put(f"{first}/pause", json=WHY)).status_code


async def test_a_name_may_have_slashes(acme: httpx.AsyncClient, owner: Connection) -> None:
    await owner.execute("INSERT INTO targets (tenant_id, target) VALUES ('acme', 'order/7')")

    assert "order/7" == (await at(acme, "/v1/targets/order%2F7"))["target"]
    paused = await acme.put("/v1/targets/order/7/pause", json=WHY)
    assert "order/7" == paused.json()["target"]


async def test_all_of_a_target_is_cancelled_by_one_job(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    target, _ = await an_image(acme)

    answer = await acme.post(f"{target}/cancel", json={"reason": "wrong", "jobType": "noop"})

    assert answer.status_code == 202, answer.text
    row = await job_row(owner, JobId(UUID(answer.json()["jobId"])))
    assert ("cancel_jobs", "fast", 0) == (row["type"], row["lane"], row["priority"])
    name = target.removeprefix("/v1/targets/")
    told = {"target": name, "job_type": "noop", "reason": "wrong", "every_tenant": False}
    assert told == row["payload"]
    assert await ring_row(owner, row["id"]) is not None
    again = await acme.post(f"{target}/cancel")
    assert answer.json()["jobId"] != again.json()["jobId"]


async def test_at_a_full_quota_a_target_is_cancelled_by_one_job_at_a_time(
    acme: httpx.AsyncClient, superuser: Connection
) -> None:
    await superuser.execute("UPDATE tenants SET max_open_jobs = 1 WHERE id = 'acme'")
    target, _ = await an_image(acme, again=0)

    answers = [(await acme.post(f"{target}/cancel")).json() for _ in range(3)]

    assert 1 == len({answer["jobId"] for answer in answers})
