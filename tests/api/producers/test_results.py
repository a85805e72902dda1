"""What its producer reads of a job that is over: what it came to, who asked for it, and no more."""

from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.jobs.kinds import BUILT_IN, JobKind, Kinds, Noop, VisibleResult
from imagefleet.jobs.lifecycle import Completed, ResultReason
from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import find_key
from tests.support.api import Running, app_of, published, uploaded
from tests.support.factories import UNAVAILABLE, settle_job
from tests.support.http import claimed, is_problem, submitted, told


class Counted(VisibleResult):
    """All that a producer may know of it."""

    things_found: int


def knowing(running: Running, kinds: Kinds) -> None:
    """The API that runs knows these types."""
    tools = app_of(running).state.tools
    object.__setattr__(tools, "known_kinds", kinds)


async def completed(
    client: httpx.AsyncClient,
    worker: Connection,
    result: dict[str, object],
    reason: ResultReason = ResultReason.DONE,
) -> dict[str, Any]:
    job_id = await submitted(client)
    await settle_job(worker, await claimed(worker, job_id), Completed(result=result, reason=reason))
    shown: dict[str, Any] = (await client.get(f"/v1/jobs/{job_id}")).json()
    return shown


async def test_a_rendering_tells_what_it_made(acme: httpx.AsyncClient, worker: Connection) -> None:
    image = await uploaded(acme)
    running = (await acme.get(image["links"]["self"])).json()
    await published(worker, image)

    shown = (await acme.get(image["links"]["self"])).json()

    assert "result" not in running
    assert shown["result"]["reason"] == "done"


@pytest.mark.parametrize(
    ("job_type", "result"),
    [
        ("process_image", {"imageId": str(uuid4()), "revision": 2, "variants": 10}),
        ("process_image", {"imageId": str(uuid4()), "revision": 2}),  # of the release before
        ("delete_image", {"imageId": str(uuid4()), "deleted": 21}),
        ("reprocess_images", {"submitted": 5, "skipped": 1}),
        ("cancel_jobs", {"flagged": 7}),
    ],
)
async def test_every_type_of_ours_tells_its_counts(
    running: Running,
    acme: httpx.AsyncClient,
    worker: Connection,
    job_type: str,
    result: dict[str, object],
) -> None:
    of_that_type = BUILT_IN[job_type].result_visible
    knowing(running, Kinds([JobKind(name="noop", payload=Noop, result_visible=of_that_type)]))

    shown = await completed(acme, worker, result, ResultReason.TARGET_REACHED)

    assert shown["result"] == result | {"reason": "target_reached"}


async def test_of_a_result_only_what_the_kind_names_is_seen(
    running: Running, acme: httpx.AsyncClient, worker: Connection
) -> None:
    kind = JobKind(name="noop", payload=Noop, result_visible=Counted)
    knowing(running, Kinds([kind]))

    shown = await completed(acme, worker, {"thingsFound": 3, "reason": "SECRET", "key": "SECRET"})
    unfit = await completed(acme, worker, {"thingsFound": "SECRET"})

    assert shown["result"] == {"reason": "done", "thingsFound": 3}
    assert unfit["result"] == {"reason": "done"}


async def test_a_type_of_others_keeps_its_result_for_operators(
    running: Running, acme: httpx.AsyncClient, worker: Connection
) -> None:
    knowing(running, Kinds([JobKind(name="noop", payload=Noop)]))

    shown = await completed(acme, worker, {"key": "SECRET"})
    events = await acme.get(f"{shown['links']['self']}/events")

    assert "result" not in shown
    async with running.client("operator") as operator:
        whole = (await operator.get(f"/v1/operator/jobs/{shown['jobId']}")).json()
    assert whole["result"] == {"key": "SECRET"}
    for answer in (events, await acme.get("/v1/jobs")):
        assert answer.status_code == 200
        assert "SECRET" not in answer.text


async def test_a_list_has_no_results(acme: httpx.AsyncClient, worker: Connection) -> None:
    await completed(acme, worker, {})

    (job,) = (await acme.get("/v1/jobs?status=completed")).json()["jobs"]

    assert "result" not in job


async def test_what_waits_for_a_job_and_what_follows_it_hear_its_result(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    shown = await completed(acme, worker, {})

    waited = await acme.get(f"{shown['links']['self']}?wait=5")
    events = await acme.get(f"{shown['links']['self']}/events")

    assert waited.json()["result"] == {"reason": "done"}
    assert '"result":{"reason":"done"}' in events.text


async def test_a_job_says_by_the_name_of_its_key_who_submitted_it(
    running: Running, acme: httpx.AsyncClient, admin: Connection
) -> None:
    key = await find_key(admin, running.secrets["acme"])
    assert key is not None
    job_id = await submitted(acme)

    shown = await acme.get(f"/v1/jobs/{job_id}")
    (listed,) = (await acme.get("/v1/jobs?jobType=noop")).json()["jobs"]

    assert shown.json()["createdBy"] == listed["createdBy"] == key.name
    assert str(key.id) not in shown.text


async def test_who_is_no_key_of_the_tenant_has_no_name_there(
    running: Running, rival: httpx.AsyncClient
) -> None:
    job_id = await submitted(rival)
    async with running.client("operator") as operator:
        order = await operator.post(f"/v1/operator/jobs/{job_id}/cancel", json={"reason": "x"})

    shown = (await rival.get(f"/v1/jobs/{order.json()['jobId']}")).json()

    assert "createdBy" not in shown


async def test_a_finished_job_is_the_answer_to_its_cancellation(
    acme: httpx.AsyncClient, worker: Connection, owner: Connection
) -> None:
    over = await completed(acme, worker, {})
    lost = await submitted(acme, maxAttempts=1)
    await settle_job(worker, await claimed(worker, lost), UNAVAILABLE)

    answers = [await acme.post(over["links"]["cancel"]) for _ in range(2)]
    failed = await acme.post(f"/v1/jobs/{lost}/cancel", headers={"Idempotency-Key": "late"})

    assert [(answer.status_code, answer.json()) for answer in answers] == [(200, over)] * 2
    assert (failed.status_code, failed.json()["status"]) == (200, "failed")
    assert failed.json()["failure"]["code"] == UNAVAILABLE.code
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 2


async def test_a_cancellation_that_was_accepted_gets_its_answer_again(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    job_id, other = await submitted(acme), await submitted(acme)
    cancel, key = f"/v1/jobs/{job_id}/cancel", {"Idempotency-Key": "stop"}
    accepted = await acme.post(cancel, headers=key)
    await settle_job(worker, await claimed(worker, job_id), Completed())

    while_open = await acme.post(cancel)
    order = JobId(UUID(accepted.json()["jobId"]))
    await settle_job(worker, await claimed(worker, order), Completed())
    again = await acme.post(cancel, headers=key)
    for_another = await acme.post(f"/v1/jobs/{other}/cancel", headers=key)

    assert while_open.json() == accepted.json()
    assert told(for_another) == (422, "idempotency_conflict")
    assert again.status_code == 202
    assert again.json() == accepted.json() | {"status": "completed"}
    assert (await acme.post(cancel)).status_code == 200, "without its key it is a new request"


@pytest.mark.parametrize("verb", ["cancel", "fail"])
async def test_operators_are_told_that_a_job_is_over(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient, worker: Connection, verb: str
) -> None:
    over = await completed(acme, worker, {})

    answer = await operating.post(
        f"/v1/operator/jobs/{over['jobId']}/{verb}", json={"reason": "it blocks"}
    )

    assert (answer.status_code, answer.json()["status"]) == (200, "completed")
    audited = (await operating.get("/v1/operator/audit", params={"on": "job"})).json()
    assert audited == {"lines": []}


async def test_types_tell_the_schema_of_what_is_seen(
    running: Running, acme: httpx.AsyncClient
) -> None:
    knowing(running, BUILT_IN.adding(JobKind(name="sing", payload=Noop)))

    types = {each["jobType"]: each for each in (await acme.get("/v1/job-types")).json()["jobTypes"]}

    assert {"submitted", "skipped"} == set(types["reprocess_images"]["result"]["properties"])
    assert "result" not in types["sing"]
    is_problem(await acme.post("/v1/jobs", json={"jobType": "dance"}), 422, "unknown_job_type")
