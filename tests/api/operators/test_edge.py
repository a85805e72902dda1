"""Operators and the edge: what is owed and what it costs, and an invalidation by hand."""

from datetime import timedelta
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.maintenance.flusher import OFFICE
from imagefleet.store.database import Connection
from imagefleet.store.edge.invalidations import (
    Accepted,
    BatchLimits,
    accept_batch,
    begin_send,
    commit_batch,
    complete_batch,
    look_at_owed,
    send_again,
)
from imagefleet.store.fleet.elections import hold_election
from tests.support.api import uploaded
from tests.support.http import is_problem

EDGE = "/v1/operator/edge"
INVALIDATIONS = f"{EDGE}/invalidations"
ROOMY = BatchLimits(paths=3000, wildcards=15)


async def image_of(client: httpx.AsyncClient) -> str:
    return str((await uploaded(client))["imageId"])


async def frozen(maintenance: Connection) -> UUID:
    debts = [owed.debt for owed in await look_at_owed(maintenance, limit=10)]
    batch = await commit_batch(maintenance, debts, lambda debt: f"#img-{debt}", within=ROOMY)
    assert batch is not None
    return batch.id


async def test_images_of_any_tenant_are_owed_with_who_and_why(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient, rival: httpx.AsyncClient
) -> None:
    images = [await image_of(acme), await image_of(rival)]

    owed = await operating.post(
        INVALIDATIONS, json={"imageIds": [*images, images[0]], "reason": "a takedown"}
    )
    again = await operating.post(INVALIDATIONS, json={"imageIds": images[:1]})

    assert (202, 202) == (owed.status_code, again.status_code), owed.text + again.text
    shown = owed.json()["invalidations"]
    assert sorted(images) == [debt["imageId"] for debt in shown]
    assert {"acme", "rival"} == {debt["tenant"] for debt in shown}
    assert {("operator", "a takedown", 1)} == {
        (debt["reason"], debt["requestReason"], debt["debts"]) for debt in shown
    }
    assert all(debt["requestedBy"].startswith("of tests (") for debt in shown)
    (merged,) = again.json()["invalidations"]
    assert 2 == merged["debts"]
    assert merged["invalidationId"] in {debt["invalidationId"] for debt in shown}


async def test_with_one_unknown_image_nothing_is_owed(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient, superuser: Connection
) -> None:
    known = await image_of(acme)

    answer = await operating.post(INVALIDATIONS, json={"imageIds": [known, str(uuid4())]})

    is_problem(answer, 404, "not_found")
    assert 0 == await superuser.fetchval("SELECT count(*) FROM invalidations")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"imageIds": []},
        {"imageIds": ["x"]},
        {"imageIds": [str(UUID(int=n)) for n in range(101)]},
        {"imageIds": [str(UUID(int=1))], "reason": ""},
        {"imageIds": [str(UUID(int=1))], "reason": "x" * 501},
    ],
    ids=["empty", "none", "no-id", "too-many", "no-reason", "long-reason"],
)
async def test_what_cannot_be_meant_is_refused(
    operating: httpx.AsyncClient, body: dict[str, object]
) -> None:
    is_problem(await operating.post(INVALIDATIONS, json=body), 422, "invalid_request")


async def test_an_invalidation_is_shown_from_debt_to_agreement(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient, maintenance: Connection
) -> None:
    answer = await operating.post(INVALIDATIONS, json={"imageIds": [await image_of(acme)]})
    path = f"{INVALIDATIONS}/{answer.json()['invalidations'][0]['invalidationId']}"

    owed = (await operating.get(path)).json()
    batch_id = await frozen(maintenance)
    await begin_send(maintenance, batch_id)
    await accept_batch(maintenance, batch_id, "I1")
    accepted = (await operating.get(path)).json()
    await complete_batch(maintenance, Accepted(batch_id, "I1"))
    complete = (await operating.get(path)).json()

    assert not {"batchId", "acceptedAt", "completedAt"} & set(owed)
    assert (str(batch_id), "I1", 1) == (
        accepted["batchId"],
        accepted["cloudfrontId"],
        accepted["sends"],
    )
    assert "completedAt" not in accepted
    assert accepted["acceptedAt"] <= complete["completedAt"]
    is_problem(await operating.get(f"{INVALIDATIONS}/{uuid4()}"), 404, "not_found")


async def test_the_status_tells_what_is_owed_sent_and_billed(
    operating: httpx.AsyncClient,
    acme: httpx.AsyncClient,
    maintenance: Connection,
    superuser: Connection,
) -> None:
    nothing = (await operating.get(EDGE)).json()
    assert (0, 0, 0, []) == (
        nothing["owed"],
        nothing["oldestOwedFor"],
        nothing["pathsInFlight"],
        nothing["batches"],
    )
    assert "flusher" not in nothing
    holder = uuid4()
    await hold_election(maintenance, OFFICE, holder)
    ids = []
    for _ in range(3):
        await operating.post(INVALIDATIONS, json={"imageIds": [await image_of(acme)]})
        ids.append(await frozen(maintenance))
    await operating.post(INVALIDATIONS, json={"imageIds": [await image_of(acme)]})
    for batch_id in ids[:2]:
        await accept_batch(maintenance, batch_id, f"I-{batch_id}")
    await complete_batch(maintenance, Accepted(ids[0], f"I-{ids[0]}"))
    await send_again(maintenance, ids[2], "cloudfront_too_many: wait")
    await superuser.execute("UPDATE invalidations SET owed_at = owed_at - interval '1 hour'")

    status = (await operating.get(EDGE)).json()

    assert (3, 1) == (status["owed"], status["pathsInFlight"])
    assert status["oldestOwedFor"] >= timedelta(hours=1).total_seconds()
    assert [str(ids[1]), str(ids[2]), str(ids[0])] == [
        batch["batchId"] for batch in status["batches"]
    ]
    assert "cloudfront_too_many: wait" == status["lastError"]
    assert (str(holder), True) == (status["flusher"]["holder"], status["flusher"]["holds"])
    month = status["month"]
    assert (2, 2, 2, 1000, False) == (
        month["paths"],
        month["debts"],
        month["batches"],
        month["budget"],
        month["overBudget"],
    )


async def test_the_status_tells_when_a_budget_is_used_up_and_when_nobody_flushes(
    operating: httpx.AsyncClient, maintenance: Connection, superuser: Connection
) -> None:
    await hold_election(maintenance, OFFICE, uuid4())
    await superuser.execute("UPDATE elections SET until = now() - interval '1 second'")
    await superuser.execute(
        "INSERT INTO invalidation_months (month, paths, debts, batches)"
        " VALUES (date_trunc('month', now() AT TIME ZONE 'UTC')::date, 1001, 2000, 3)"
    )

    status = (await operating.get(EDGE)).json()

    assert status["month"]["overBudget"]
    assert not status["flusher"]["holds"]
