"""Whose turn it is: what is held or behind hides nobody, and tenants share by their weights."""

import pytest

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import CancelCode, JobId, Lane, PauseScope, TenantId, WorkerId
from imagefleet.maintenance.dispatcher import Dispatcher
from imagefleet.store.database import Connection, Pool
from imagefleet.store.fleet.breakers import force_open
from imagefleet.store.fleet.pauses import Pause, pause, resume
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.submissions import submit_jobs
from tests.maintenance.dispatching import a_dispatcher, rung, submitted
from tests.support.factories import (
    SLOTS,
    TENANT,
    MadeJob,
    a_submission,
    a_worker,
    claim_job,
    settle_job,
)
from tests.support.queues import FakeQueue


async def test_of_a_flood_and_a_newcomer_the_newcomer_is_next(
    api: Connection, worker: Connection, fast: FakeQueue, dispatcher: Dispatcher, me: WorkerId
) -> None:
    await submitted(api, 300, tenant_id=TenantId("flood"))
    await dispatcher.run_once()
    (newcomer,) = await submitted(api, tenant_id=TenantId("new"), priority=900)
    await claim_and_complete(worker, rung(fast)[0], me)

    fast.sent.clear()
    await dispatcher.run_once()

    assert newcomer == rung(fast)[0]


async def claim_and_complete(worker: Connection, job_id: JobId, me: WorkerId) -> None:
    await claim_job(worker, job_id, me)
    await settle_job(worker, MadeJob(job_id=job_id, claim_no=1, worker_id=me), Completed())


async def test_tenants_share_the_room_by_their_weights(
    api: Connection,
    worker: Connection,
    superuser: Connection,
    pool: Pool,
    lanes: dict[Lane, FakeQueue],
) -> None:
    await superuser.execute(
        "INSERT INTO tenants (id, name, weight) VALUES ('heavy', 'x', 4), ('light', 'x', 1)"
    )
    for _ in range(10):
        await a_worker(worker)
    heavy = await submitted(api, 100, tenant_id=TenantId("heavy"))
    await submitted(api, 100, tenant_id=TenantId("light"))

    sent = await a_dispatcher(pool, lanes).run_once()

    of_heavy = len(set(heavy) & set(rung(lanes[Lane.FAST])))
    assert sent == 10 * SLOTS[Lane.FAST], (
        "those to spare are no whole request, and for the next look"
    )
    assert of_heavy / (sent - of_heavy) == pytest.approx(4, rel=0.2)


async def test_within_a_tenant_the_most_urgent_goes_first_and_then_the_oldest(
    api: Connection, fast: FakeQueue, dispatcher: Dispatcher
) -> None:
    late = await submitted(api, 3, priority=700)
    middle = [*(await submitted(api, type="cancel_job")), *(await submitted(api))]
    urgent = await submitted(api, priority=10)

    await dispatcher.run_once()

    order = rung(fast)
    assert ([*urgent, *middle], {*late}) == (order[:3], {*order[3:]})


async def test_what_was_announced_hides_nothing_that_was_not(
    api: Connection, superuser: Connection, fast: FakeQueue, dispatcher: Dispatcher
) -> None:
    """Thousands that nobody hears of, long enough ago to take no room; and one that is due."""
    await superuser.execute(
        "INSERT INTO rings (job_id, lane, tenant_id, type, priority, next_at, sent_at, sends)"
        " SELECT gen_random_uuid(), 'fast', 'acme', 'noop', 0, now(), now() - interval '2 days', 8"
        "   FROM generate_series(1, 20000)"
    )
    (fresh,) = await submitted(api)
    await dispatcher.run_once()

    assert fresh in rung(fast)
    await superuser.execute("DELETE FROM rings WHERE job_id <> $1", fresh)


@pytest.mark.parametrize(
    "what",
    [
        Pause(scope=PauseScope.TYPE, name="noop"),
        Pause(scope=PauseScope.LANE, name="fast"),
        Pause(scope=PauseScope.ALL),
        Pause(scope=PauseScope.TENANT, tenant_id=TENANT),
        Pause(scope=PauseScope.TENANT, tenant_id=TENANT, name="noop"),
    ],
    ids=str,
)
async def test_what_is_paused_is_not_sent_and_is_after_its_resume(
    api: Connection, operator: Connection, fast: FakeQueue, dispatcher: Dispatcher, what: Pause
) -> None:
    await pause(operator, what, by="tests", reason="why")
    held = await submitted(api, 3)
    ignores_it = await submitted(api, type="delete_image", preempts=True, target="image:1")

    await dispatcher.run_once()
    assert ignores_it == rung(fast)

    assert await resume(operator, what)
    await dispatcher.run_once()

    assert {*held, *ignores_it} == {*rung(fast)}


async def test_a_pause_of_a_type_hides_no_other_type(
    api: Connection, operator: Connection, fast: FakeQueue, dispatcher: Dispatcher
) -> None:
    what = Pause(scope=PauseScope.TYPE, name="noop")
    await pause(operator, what, by="tests", reason="why")
    await submitted(api, 500, priority=0)
    (other,) = await submitted(api, type="reprocess_images")

    await dispatcher.run_once()

    assert [other] == rung(fast)


@pytest.mark.parametrize("job_type", ["", "noop"])
async def test_a_pause_of_a_tenant_hides_no_other_tenant_and_takes_none_of_its_turns(
    api: Connection, operator: Connection, fast: FakeQueue, dispatcher: Dispatcher, job_type: str
) -> None:
    what = Pause(scope=PauseScope.TENANT, tenant_id=TENANT, name=job_type)
    await pause(operator, what, by="tests", reason="why")
    await submitted(api, 500, priority=0)
    others = await submitted(api, 20, tenant_id=TenantId("rival"))

    first = await dispatcher.run_once()

    assert first == len(rung(fast)) > 0
    assert {*rung(fast)} <= {*others}


async def test_other_types_of_a_tenant_go_on_when_one_is_paused(
    api: Connection, operator: Connection, fast: FakeQueue, dispatcher: Dispatcher
) -> None:
    what = Pause(scope=PauseScope.TENANT, tenant_id=TENANT, name="noop")
    await pause(operator, what, by="tests", reason="why")
    await submitted(api, 500, priority=0)
    (other,) = await submitted(api, type="reprocess_images")

    await dispatcher.run_once()

    assert [other] == rung(fast)


async def test_a_flagged_job_is_sent_whatever_holds_it(
    api: Connection,
    worker: Connection,
    operator: Connection,
    fast: FakeQueue,
    dispatcher: Dispatcher,
) -> None:
    await pause(operator, Pause(scope=PauseScope.ALL), by="tests", reason="why")
    of_tenant = Pause(scope=PauseScope.TENANT, tenant_id=TENANT)
    await pause(operator, of_tenant, by="tests", reason="why")
    await force_open(operator, "s3", by="tests")
    _, flagged, of_nobody = (
        await submitted(api, services=("s3",)),
        *(await submitted(api, services=("s3",))),
        *(await submitted(api, type="unheard_of")),
    )
    for job_id in (flagged, of_nobody):
        await cancel_job(worker, job_id, code=CancelCode.CANCELLED, detail=None)

    await dispatcher.run_once()

    assert {flagged, of_nobody} == {*rung(fast)}


async def test_a_type_that_no_living_worker_takes_waits_until_one_does(
    api: Connection, worker: Connection, fast: FakeQueue, dispatcher: Dispatcher
) -> None:
    (rare,) = await submitted(api, type="rare")
    (common,) = await submitted(api)

    await dispatcher.run_once()
    assert [common] == rung(fast)

    await a_worker(worker, types=["rare"])
    await dispatcher.run_once()

    assert [common, rare] == rung(fast)


async def test_a_half_open_breaker_is_tried_by_one_job_a_look(
    api: Connection, superuser: Connection, dispatcher: Dispatcher
) -> None:
    await superuser.execute(
        "INSERT INTO circuit_breakers (service, state, opened_at, retry_at)"
        " VALUES ('s3', 'open', now(), now())"
    )
    for tenant in ("left", "right"):
        await submitted(api, 3, services=("s3",), tenant_id=TenantId(tenant))

    assert [1] * 2 == [await dispatcher.run_once() for _ in range(2)]


async def test_a_flood_behind_one_target_sends_no_more_than_its_head(
    api: Connection, fast: FakeQueue, dispatcher: Dispatcher
) -> None:
    head, *_ = await submitted(api, 200, target="image:7")
    (free,) = await submitted(api)

    assert 2 == await dispatcher.run_once()

    assert {head, free} == {*rung(fast)}


@pytest.mark.breaks_invariants
async def test_thousands_of_tenants_with_something_waiting_hide_nobody(
    api: Connection, superuser: Connection, fast: FakeQueue, dispatcher: Dispatcher
) -> None:
    crowd = [a_submission(tenant_id=TenantId(f"crowd-{n}"), priority=0) for n in range(3000)]
    await submit_jobs(api, crowd)
    await dispatcher.run_once()
    for _ in range(2):
        await superuser.execute("DELETE FROM rings WHERE sent_at IS NOT NULL")  # are claimed
        await dispatcher.run_once()
    await submitted(api, 20, tenant_id=TenantId("zz-flood"))
    (newcomer,) = await submitted(api, tenant_id=TenantId("zzz"), priority=900)
    await superuser.execute("DELETE FROM rings WHERE sent_at IS NOT NULL")
    fast.sent.clear()
    await dispatcher.run_once()

    assert newcomer in rung(fast)
