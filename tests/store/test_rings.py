"""Doorbells: pushed by whoever sent them, taken once, never forgotten."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from imagefleet.jobs.lifecycle import Outcome, Released
from imagefleet.jobs.model import JobId, Lane, Ring
from imagefleet.store.database import Connection
from imagefleet.store.rings import confirm_rings, take_due_rings
from imagefleet.store.submissions import submit_job, submit_jobs
from tests.conftest import OpenConnection
from tests.support.database import Database
from tests.support.factories import (
    TENANT,
    UNAVAILABLE,
    MadeJob,
    a_submission,
    a_worker,
    claim_job,
    settle_job,
)
from tests.support.races import all_at_once, many_connections, meanwhile, no_deadlocks
from tests.support.rows import ring_row

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
MOMENT = timedelta(seconds=5)  # between the statement and our look at what it did

MAKE_DUE = "UPDATE rings SET due_at = now() - interval '1 second'"


async def due_jobs(api: Connection, superuser: Connection, count: int = 1) -> list[JobId]:
    jobs = [a_submission() for _ in range(count)]
    ids = [job.job_id for job in jobs]
    await submit_jobs(api, jobs)
    await superuser.execute(f"{MAKE_DUE} WHERE job_id = ANY ($1)", ids)
    return ids


async def take(
    connection: Connection, lane: Lane = Lane.FAST, *, limit: int = 100, repeats: bool = True
) -> list[Ring]:
    return await take_due_rings(connection, lane, limit=limit, repeats=repeats)


async def test_submit_leaves_a_ring_for_the_case_that_nobody_rings_after_it(
    api: OpenConnection,
) -> None:
    later = datetime.now(UTC) + HOUR
    now, then = (
        await submit_job(api, a_submission()),
        await submit_job(api, a_submission(run_at=later)),
    )

    soon, late = await ring_row(api, now.job_id), await ring_row(api, then.job_id)
    assert soon is not None
    assert late is not None
    assert timedelta(0) < soon["due_in"] <= timedelta(seconds=5)
    assert now.due_at == soon["due_at"]
    assert (late["due_at"], then.due_at) == (later, None)


async def test_a_confirmed_ring_is_due_again_in_a_minute(api: OpenConnection) -> None:
    submitted = await submit_job(api, a_submission())
    assert submitted.due_at is not None
    sent = Ring(job_id=submitted.job_id, lane=Lane.FAST, due_at=submitted.due_at, tenant_id=TENANT)

    await confirm_rings(api, [sent])

    ring = await ring_row(api, submitted.job_id)
    assert ring is not None
    assert ring["rings"] == 1
    assert MINUTE - MOMENT < ring["due_in"] <= MINUTE


async def test_confirm_pushes_only_the_row_that_was_sent(
    api: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    """It has been made due again since: that ring is still owed."""
    (job_id,) = await due_jobs(api, superuser)
    (sent,) = await take(maintenance)
    await superuser.execute(MAKE_DUE)
    before = await api.fetch("SELECT * FROM rings")

    await confirm_rings(api, [sent, replace(sent, due_at=sent.due_at + MOMENT)])

    assert before == await api.fetch("SELECT * FROM rings WHERE job_id = $1", job_id)


async def test_a_ring_that_moves_while_confirm_waits_for_it_is_left_alone(
    api: OpenConnection, superuser: OpenConnection, maintenance: OpenConnection
) -> None:
    await due_jobs(api, superuser)
    (sent,) = await take(maintenance)

    transaction = superuser.transaction()
    await transaction.start()
    await superuser.execute(MAKE_DUE)
    async with meanwhile(maintenance, superuser, api, confirm_rings(api, [sent])):
        await transaction.commit()

    (ring,) = await api.fetch("SELECT rings, due_at < now() AS is_due FROM rings")
    assert tuple(ring) == (1, True)


@pytest.mark.parametrize(
    ("rings", "wait"),
    [
        (0, MINUTE),
        (1, 2 * MINUTE),
        (5, 32 * MINUTE),
        (8, 256 * MINUTE),
        (9, 6 * HOUR),
        (500, 6 * HOUR),
    ],
)
@pytest.mark.parametrize("by", ["dispatcher", "submitter"])
async def test_the_waits_between_rings_double_up_to_six_hours(
    api: OpenConnection,
    maintenance: OpenConnection,
    superuser: OpenConnection,
    rings: int,
    wait: timedelta,
    by: str,
) -> None:
    (job_id,) = await due_jobs(api, superuser)
    await superuser.execute("UPDATE rings SET rings = $1", rings)

    if by == "dispatcher":
        assert len(await take(maintenance)) == 1
    else:
        due_at = await api.fetchval("SELECT due_at FROM rings")
        sent = Ring(job_id=job_id, lane=Lane.FAST, due_at=due_at, tenant_id=TENANT)
        await confirm_rings(api, [sent])

    ring = await ring_row(api, job_id)
    assert ring is not None
    assert ring["rings"] == rings + 1
    assert wait - MOMENT < ring["due_in"] <= wait


async def test_only_due_rings_of_the_lane_are_taken(
    api: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    fast, general, late = (
        a_submission(),
        a_submission(lane=Lane.GENERAL),
        a_submission(run_at=datetime.now(UTC) + HOUR),
    )
    await submit_jobs(api, [fast, general, late])
    await superuser.execute(f"{MAKE_DUE} WHERE job_id <> $1", late.job_id)

    taken = await take(maintenance)

    assert [ring.job_id for ring in taken] == [fast.job_id]
    assert [ring.job_id for ring in await take(maintenance, Lane.GENERAL)] == [general.job_id]
    assert await take(maintenance) == []


async def test_urgent_jobs_are_rung_first(
    api: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    priorities = [100, 0, 700, 50, 100, 0]
    jobs = [a_submission(priority=priority) for priority in priorities]
    await submit_jobs(api, jobs)
    await superuser.execute(MAKE_DUE)
    of = {job.job_id: job.priority for job in jobs}

    taken = [await take(maintenance, limit=2) for _ in range(4)]

    assert [[of[ring.job_id] for ring in few] for few in taken] == [
        [0, 0],
        [50, 100],
        [100, 700],
        [],
    ]


async def test_eight_dispatchers_never_take_the_same_ring(database: Database) -> None:
    async with (
        no_deadlocks(database),
        many_connections(database, "maintenance", 8) as connections,
        database.connect("api") as api,
        database.connect("superuser") as superuser,
    ):
        for _ in range(5):
            wanted = await due_jobs(api, superuser, 300)

            taken = await all_at_once([partial(take_all, one) for one in connections])

            rung = [ring.job_id for some in taken for ring in some]
            assert sorted(rung) == sorted(wanted)


async def take_all(connection: Connection) -> Sequence[Ring]:
    taken: list[Ring] = []
    while some := await take(connection, limit=20):
        taken += some
    return taken


async def test_a_ring_that_another_dispatcher_is_taking_is_not_waited_for(
    api: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    wanted = await due_jobs(api, superuser, 4)

    async with superuser.transaction():
        first = await take(superuser, limit=2)
        others = await take(maintenance)

    assert len(first) == 2
    assert {ring.job_id for ring in [*first, *others]} == set(wanted)
    assert len(others) == 2


async def test_repeats_wait_while_messages_are_visible_and_first_rings_do_not(
    api: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    never, before = await due_jobs(api, superuser, 2)
    await superuser.execute("UPDATE rings SET rings = 3 WHERE job_id = $1", before)

    taken = await take(maintenance, repeats=False)

    assert [ring.job_id for ring in taken] == [never]
    waits = await ring_row(api, before)
    assert waits is not None
    assert waits["rings"] == 3  # it was not rung, so its waits do not grow
    assert MINUTE - MOMENT < waits["due_in"] <= MINUTE


async def test_a_repeat_waits_twelve_hours_at_most(
    api: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    old, young = await due_jobs(api, superuser, 2)
    for job_id, age in (old, timedelta(hours=12, seconds=1)), (young, timedelta(hours=11)):
        await superuser.execute(
            "UPDATE rings SET rings = 3, since = now() - $2::interval WHERE job_id = $1",
            job_id,
            age,
        )

    taken = await take(maintenance, repeats=False)

    assert [ring.job_id for ring in taken] == [old]


@pytest.mark.parametrize("outcome", [UNAVAILABLE, Released(why="drain")], ids=["retry", "release"])
async def test_a_retry_starts_a_new_ring(
    worker: OpenConnection, superuser: OpenConnection, outcome: Outcome
) -> None:
    """Its age counts from there: what waited for twelve hours has been heard of since."""
    submission = a_submission()
    await submit_job(worker, submission)
    await superuser.execute("UPDATE rings SET since = now() - interval '1 day', rings = 7")
    me = await a_worker(worker)
    await claim_job(worker, submission.job_id, me)

    await settle_job(worker, MadeJob(job_id=submission.job_id, claim_no=1, worker_id=me), outcome)

    (ring,) = await worker.fetch("SELECT rings, now() - since AS age FROM rings")
    assert ring["rings"] == 0
    assert ring["age"] < MOMENT
