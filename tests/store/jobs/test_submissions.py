"""Accepting jobs: one request, one job, whoever asks beside it and however often."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from imagefleet.errors import IdempotencyConflict, StoreRejected
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, JobState, Submission, Submitted, TenantId, new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.jobs.submissions import submit_job, submit_jobs
from tests.conftest import OpenConnection
from tests.support.database import Database, driver_of
from tests.support.factories import (
    CORRUPT,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    settle_job,
)
from tests.support.races import all_at_once, many_connections, meanwhile, no_deadlocks

CLIENTS = 100
GLOBEX = TenantId("globex")
BATCH = 100
FAILURES: list[JobId] = [new_job_id() for _ in range(BATCH)]


def ids(answers: Sequence[object]) -> set[JobId]:
    assert all(isinstance(answer, Submitted) for answer in answers), answers
    return {answer.job_id for answer in answers if isinstance(answer, Submitted)}


@pytest.mark.parametrize(
    "request_again",
    [
        pytest.param(
            lambda n: a_submission(idempotency_key="k", fingerprint="f", target="photo"), id="key"
        ),
        pytest.param(
            lambda n: a_submission(idempotency_key="k", fingerprint="f", dedup_key="d"),
            id="both keys",
        ),
        pytest.param(lambda n: a_submission(dedup_key="d"), id="dedup key"),
        pytest.param(
            lambda n: a_submission(idempotency_key=f"k{n}", dedup_key="d"), id="dedup, other keys"
        ),
        pytest.param(lambda n: a_submission(replay_of=FAILURES[0]), id="replay"),
        pytest.param(
            lambda n: a_submission(
                idempotency_key=f"k{n % 3}", dedup_key="d", replay_of=FAILURES[0]
            ),
            id="all three",
        ),
    ],
)
async def test_a_hundred_concurrent_requests_for_one_job_make_one_job(
    database: Database, request_again: Callable[[int], Submission]
) -> None:
    async with many_connections(database, "api", CLIENTS) as clients:
        requests = [request_again(n) for n in range(CLIENTS)]

        answers = await all_at_once(
            [partial(submit_job, one, wish) for one, wish in zip(clients, requests, strict=True)]
        )
        later = [
            await submit_job(clients[0], replace(request, job_id=new_job_id()))
            for request in requests
        ]

        rows = await clients[0].fetch("SELECT id FROM jobs")
        rings = await clients[0].fetch("SELECT job_id FROM rings")
    assert len(rows) == 1
    assert ids(answers) == ids(later) == {rows[0]["id"]}
    assert [ring["job_id"] for ring in rings] == [rows[0]["id"]]
    assert sum(answer.created for answer in answers) == 1
    assert not any(answer.created for answer in later)


async def test_a_request_waits_for_its_twin_in_flight_and_gives_its_answer(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection
) -> None:
    first, second = [a_submission(idempotency_key="k") for _ in range(2)]

    transaction = driver_of(worker).transaction()
    await transaction.start()
    await submit_job(worker, first)
    async with meanwhile(superuser, worker, api, submit_job(api, second)) as task:
        await transaction.commit()

    assert task.result().job_id == first.job_id


async def test_a_request_whose_twin_is_rolled_back_takes_its_place(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection
) -> None:
    first, second = [a_submission(idempotency_key="k") for _ in range(2)]

    transaction = driver_of(worker).transaction()
    await transaction.start()
    await submit_job(worker, first)
    async with meanwhile(superuser, worker, api, submit_job(api, second)) as task:
        await transaction.rollback()

    assert (task.result().job_id, task.result().created) == (second.job_id, True)


async def test_another_request_under_the_same_key_is_refused(api: OpenConnection) -> None:
    first = a_submission(idempotency_key="k", fingerprint="a cat")
    await submit_job(api, first)
    before = await api.fetch("SELECT * FROM jobs")

    with pytest.raises(IdempotencyConflict):
        await submit_job(api, a_submission(idempotency_key="k", fingerprint="a dog"))

    assert before == await api.fetch("SELECT * FROM jobs")


async def test_of_two_requests_under_one_key_at_once_one_is_refused(database: Database) -> None:
    async with many_connections(database, "api", 20) as clients:
        wishes = [
            a_submission(idempotency_key="k", fingerprint="cat" if n % 2 else "dog")
            for n in range(20)
        ]

        answers = await all_at_once(
            [partial(submit_jobs, one, [wish]) for one, wish in zip(clients, wishes, strict=True)]
        )

        row = await clients[0].fetchrow("SELECT id, fingerprint FROM jobs")
    assert row is not None
    for wish, (answer,) in zip(wishes, answers, strict=True):
        if wish.fingerprint == row["fingerprint"]:
            assert isinstance(answer, Submitted)
            assert answer.job_id == row["id"]
        else:
            assert isinstance(answer, IdempotencyConflict)


async def test_two_tenants_may_use_the_same_keys(api: OpenConnection) -> None:
    ours = await submit_job(api, a_submission(idempotency_key="k", dedup_key="d"))
    theirs = await submit_job(
        api, a_submission(idempotency_key="k", dedup_key="d", tenant_id=GLOBEX)
    )

    assert ours.job_id != theirs.job_id
    assert (ours.created, theirs.created) == (True, True)


async def test_a_dedup_key_is_answered_with_the_living_job_and_free_after_its_end(
    worker: OpenConnection,
) -> None:
    me = await a_worker(worker)
    first, second, third = [a_submission(dedup_key="d") for _ in range(3)]
    await submit_job(worker, first)
    await claim_job(worker, first.job_id, me)

    while_running = await submit_job(worker, second)
    await settle_job(worker, MadeJob(job_id=first.job_id, claim_no=1, worker_id=me), Completed())
    afterwards = await submit_job(worker, third)

    assert (while_running.job_id, while_running.state) == (first.job_id, JobState.PROCESSING)
    assert (afterwards.job_id, afterwards.created) == (third.job_id, True)


async def test_the_same_dedup_key_of_another_type_is_another_key(api: OpenConnection) -> None:
    await submit_job(api, a_submission(dedup_key="d"))

    other = await submit_job(api, a_submission(dedup_key="d", type="delete_image"))

    assert other.created


async def test_a_key_that_was_answered_with_a_living_job_keeps_that_answer_for_good(
    worker: OpenConnection,
) -> None:
    """Else the repeat of a request would run it again, once the job it was merged into is over."""
    me = await a_worker(worker)
    living = a_submission(dedup_key="d")
    await submit_job(worker, living)
    merged = a_submission(idempotency_key="k", fingerprint="f", dedup_key="d")

    first = await submit_job(worker, merged)
    await claim_job(worker, living.job_id, me)
    await settle_job(worker, MadeJob(job_id=living.job_id, claim_no=1, worker_id=me), CORRUPT)
    again = await submit_job(worker, replace(merged, job_id=new_job_id()))

    assert (first.job_id, again.job_id) == (living.job_id, living.job_id)
    assert (again.state, again.created) == (JobState.FAILED, False)
    with pytest.raises(IdempotencyConflict):
        await submit_job(worker, replace(merged, job_id=new_job_id(), fingerprint="other"))


async def test_a_failure_is_replayed_once(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    failed = await a_job(worker, superuser, state=JobState.FAILED)
    first, second = [a_submission(replay_of=failed.job_id) for _ in range(2)]

    answers = [await submit_job(worker, first), await submit_job(worker, second)]

    assert [answer.job_id for answer in answers] == [first.job_id, first.job_id]
    assert [answer.created for answer in answers] == [True, False]


async def test_one_batch_may_hold_the_same_request_twice(api: OpenConnection) -> None:
    wishes = [a_submission(idempotency_key="k", target="photo") for _ in range(3)]

    answers = await submit_jobs(api, wishes)

    assert len(ids(answers)) == 1


@pytest.mark.parametrize(
    "request_of",
    [
        pytest.param(lambda _, n: a_submission(idempotency_key=f"k{n}"), id="idempotency keys"),
        pytest.param(lambda _, n: a_submission(dedup_key=f"d{n}"), id="dedup keys"),
        pytest.param(lambda _, n: a_submission(replay_of=FAILURES[n]), id="replays"),
        pytest.param(
            lambda _, n: a_submission(idempotency_key=f"k{n}", dedup_key=f"d{n}"), id="both keys"
        ),
        pytest.param(
            lambda _, n: a_submission(idempotency_key=f"k{n}", target=f"photo-{BATCH - n}"),
            id="keys and targets",
        ),
    ],
)
async def test_batches_that_meet_the_same_keys_in_opposite_order_meet_no_deadlock(
    database: Database, request_of: Callable[[int, int], Submission]
) -> None:
    async with no_deadlocks(database), many_connections(database, "api", 8) as clients:
        batches = [
            [request_of(batch, n) for n in (range(BATCH) if batch % 2 else reversed(range(BATCH)))]
            for batch in range(8)
        ]

        answers = await all_at_once(
            [
                partial(submit_jobs, client, batch)
                for client, batch in zip(clients, batches, strict=True)
            ]
        )

    assert len({job_id for batch in answers for job_id in ids(batch)}) == BATCH


async def test_batches_whose_two_keys_cross_meet_no_deadlock(
    database: Database,
) -> None:
    """By their idempotency keys one would write a, m, b and the other b, m, a."""
    crossing = [
        [a_submission(idempotency_key=f"{name}-{n}", dedup_key=key) for n, key in enumerate(keys)]
        for name, keys in [("one", "amb"), ("other", "bma")]
    ]
    async with no_deadlocks(database), many_connections(database, "superuser", 4) as opened:
        watcher, between, one, other = opened
        transaction = driver_of(between).transaction()
        await transaction.start()
        middle = await submit_job(between, a_submission(dedup_key="m"))

        async with (
            meanwhile(watcher, between, one, submit_jobs(one, crossing[0])) as first,
            meanwhile(watcher, one, other, submit_jobs(other, crossing[1])) as second,
        ):
            await transaction.commit()

    assert ids(first.result()) == ids(second.result())
    assert middle.job_id in ids(first.result())


async def test_whom_postgres_ends_in_a_deadlock_goes_again_by_itself(
    database: Database, superuser: OpenConnection
) -> None:
    async with (
        database.connect("superuser") as victim,
        database.connect("superuser") as other,
    ):
        await victim.execute("SET deadlock_timeout = '300ms'")
        await other.execute("SET deadlock_timeout = '30s'")
        transaction = driver_of(other).transaction()
        await transaction.start()
        b = await submit_job(other, a_submission(dedup_key="b"))
        batch = [a_submission(dedup_key="a"), a_submission(dedup_key="b")]

        async with meanwhile(superuser, other, victim, submit_jobs(victim, batch)) as task:
            a = await submit_job(other, a_submission(dedup_key="a"))  # until the victim is ended
            await transaction.commit()

    assert (a.created, b.created) == (True, True)
    answers = task.result()
    assert ids(answers) == {a.job_id, b.job_id}


async def test_target_sequences_are_the_order_of_commits_without_gaps(database: Database) -> None:
    """A number is given under the lock of the target, which is held until the commit."""
    seen: list[list[int]] = []
    async with (
        many_connections(database, "api", 8) as clients,
        database.connect("superuser") as watcher,
    ):

        async def submit_some(client: Connection) -> None:
            for n in range(15):
                await submit_jobs(client, [a_submission(target="photo") for _ in range(1 + n % 3)])

        async def watch() -> None:
            """What is committed is at any moment a beginning of the sequence."""
            while not done.is_set():
                rows = await watcher.fetch("SELECT target_seq FROM jobs ORDER BY target_seq")
                seen.append([row["target_seq"] for row in rows])

        done = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            await all_at_once([partial(submit_some, client) for client in clients])
            done.set()
        rows = await watcher.fetch("SELECT target_seq FROM jobs ORDER BY target_seq")
        seen.append([row["target_seq"] for row in rows])
    assert len(seen) > 3
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in seen)
    assert len(seen[-1]) == 8 * 30


async def test_a_refused_batch_leaves_nothing(api: OpenConnection) -> None:
    wishes = [a_submission(target="photo"), replace(a_submission(), priority=-1)]

    with pytest.raises(StoreRejected):
        await submit_jobs(api, wishes)

    assert await api.fetchval("SELECT count(*) FROM jobs") == 0
    assert await api.fetchval("SELECT count(*) FROM rings") == 0
