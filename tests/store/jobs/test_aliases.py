"""Idempotency keys of requests that were answered with a job of another key: they stand as well."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import asyncpg
import pytest

from imagefleet.errors import IdempotencyConflict, LimitReached
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobState, Submission, Submitted, TenantId, new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.jobs import submissions
from imagefleet.store.jobs.submissions import (
    INSERT_JOBS,
    MOST_KEYS,
    TAKE_PLACES,
    Answer,
    submit_job,
    submit_jobs,
)
from tests.conftest import OpenConnection
from tests.support.database import Database, driver_of
from tests.support.factories import (
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    settle_job,
)
from tests.support.races import all_at_once, many_connections, meanwhile

LIVING = a_submission(dedup_key="d")
MERGED = a_submission(idempotency_key="k", fingerprint="merged", dedup_key="d")
ALONE = a_submission(idempotency_key="k", fingerprint="alone", target="photo")


def once_more(submission: Submission) -> Submission:
    return replace(submission, job_id=new_job_id())


async def test_a_key_that_was_answered_with_a_living_job_is_refused_to_another_request(
    api: OpenConnection,
) -> None:
    """Which names that key alone, so that no second key leads to the job."""
    await submit_job(api, LIVING)
    merged = await submit_job(api, MERGED)

    with pytest.raises(IdempotencyConflict):
        await submit_job(api, ALONE)

    again = await submit_job(api, once_more(MERGED))
    assert (merged.job_id, again.job_id) == (LIVING.job_id, LIVING.job_id)
    assert await api.fetchval("SELECT count(*) FROM jobs") == 1


async def test_the_same_holds_once_that_job_is_over(worker: OpenConnection) -> None:
    me = await a_worker(worker)
    await submit_job(worker, LIVING)
    await submit_job(worker, MERGED)
    await claim_job(worker, LIVING.job_id, me)
    await settle_job(worker, MadeJob(job_id=LIVING.job_id, claim_no=1, worker_id=me), Completed())

    with pytest.raises(IdempotencyConflict):
        await submit_job(worker, ALONE)

    again = await submit_job(worker, once_more(MERGED))
    assert (again.job_id, again.state) == (LIVING.job_id, JobState.COMPLETED)


async def test_a_batch_is_answered_one_by_one(api: OpenConnection) -> None:
    await submit_job(api, LIVING)
    await submit_job(api, MERGED)
    fresh = a_submission(idempotency_key="k2", target="photo")

    conflict, new, same = await submit_jobs(api, [ALONE, fresh, once_more(MERGED)])

    assert isinstance(conflict, IdempotencyConflict)
    assert isinstance(new, Submitted)
    assert isinstance(same, Submitted)
    assert (new.created, same.job_id) == (True, LIVING.job_id)


async def test_of_two_requests_under_one_key_in_a_batch_one_is_refused(api: OpenConnection) -> None:
    await submit_job(api, LIVING)

    first, other = await submit_jobs(api, [MERGED, replace(once_more(MERGED), fingerprint="other")])

    assert isinstance(first, Submitted)
    assert isinstance(other, IdempotencyConflict)


async def test_a_key_that_was_answered_with_a_replay_is_refused_to_another_request(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    failed = await a_job(worker, superuser, state=JobState.FAILED)
    replay = await submit_job(worker, a_submission(replay_of=failed.job_id))
    asked = a_submission(idempotency_key="k", fingerprint="replay", replay_of=failed.job_id)

    answer = await submit_job(worker, asked)

    assert answer.job_id == replay.job_id
    with pytest.raises(IdempotencyConflict):
        await submit_job(worker, ALONE)
    assert (await submit_job(worker, once_more(asked))).job_id == replay.job_id


async def test_a_request_waits_for_its_key_to_be_answered_with_a_living_job(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection
) -> None:
    await submit_job(api, LIVING)

    transaction = driver_of(worker).transaction()
    await transaction.start()
    await submit_job(worker, MERGED)
    async with meanwhile(superuser, worker, api, submit_jobs(api, [ALONE])) as task:
        await transaction.commit()

    (answer,) = task.result()
    assert isinstance(answer, IdempotencyConflict)
    assert await api.fetchval("SELECT count(*) FROM jobs") == 1


async def test_a_request_that_may_be_merged_waits_for_the_one_that_has_its_key(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection
) -> None:
    await submit_job(api, LIVING)

    transaction = driver_of(worker).transaction()
    await transaction.start()
    await submit_job(worker, ALONE)
    async with meanwhile(superuser, worker, api, submit_jobs(api, [MERGED])) as task:
        await transaction.commit()

    (answer,) = task.result()
    assert isinstance(answer, IdempotencyConflict)
    assert await api.fetchval("SELECT count(*) FROM idempotency_aliases") == 0


@pytest.mark.parametrize("attempt", range(3))
async def test_a_hundred_requests_under_one_key_at_once_are_one_request_or_refused(
    database: Database, attempt: int
) -> None:
    """Some name the living job's dedup key, some do not: the key belongs to one kind of them."""
    async with many_connections(database, "api", 100) as clients:
        await submit_job(clients[0], LIVING)
        wishes = [once_more(MERGED if n % 2 else ALONE) for n in range(100)]

        answers = await all_at_once(
            [partial(submit_jobs, one, [wish]) for one, wish in zip(clients, wishes, strict=True)]
        )
        later = [(await submit_jobs(clients[0], [once_more(wish)]))[0] for wish in wishes]

        rows = await clients[0].fetch("SELECT id FROM jobs WHERE id <> $1", LIVING.job_id)
        aliases = await clients[0].fetch("SELECT job_id FROM idempotency_aliases")
    winner = "alone" if rows else "merged"
    (standing,) = {row["id"] for row in rows} or {LIVING.job_id}
    assert len(aliases) == (0 if rows else 1)
    for wish, (answer,), again in zip(wishes, answers, later, strict=True):
        for one in (answer, again):
            assert _holds(one) == (standing if wish.fingerprint == winner else None)


def _holds(answer: Answer) -> object:
    return answer.job_id if isinstance(answer, Submitted) else None


ONE = [INSERT_JOBS]
BOTH = [TAKE_PLACES, INSERT_JOBS]


@pytest.mark.parametrize(
    ("submission", "statements"),
    [
        pytest.param(a_submission(), ONE, id="no key"),
        pytest.param(a_submission(target="photo"), BOTH, id="an image"),
        pytest.param(a_submission(target="photo", idempotency_key="k"), BOTH, id="its key"),
        pytest.param(a_submission(idempotency_key="k", dedup_key="d"), ONE, id="two keys"),
    ],
)
async def test_what_nothing_stands_in_the_way_of_costs_no_look_for_aliases(
    api: OpenConnection, submission: Submission, statements: list[str]
) -> None:
    heard: list[str] = []

    def hear(query: asyncpg.connection.LoggedQuery) -> None:
        heard.append(query.query)

    await submit_job(api, replace(once_more(submission), tenant_id=TenantId("globex")))
    with driver_of(api).query_logger(hear):
        await submit_job(api, submission)

    assert [query for query in heard if query not in {"BEGIN;", "COMMIT;"}] == statements


async def test_a_job_answers_a_hundred_other_keys_and_no_more(api: OpenConnection) -> None:
    await submit_job(api, LIVING)
    others = [
        replace(once_more(MERGED), idempotency_key=f"key-{number}") for number in range(MOST_KEYS)
    ]
    fits = await submit_jobs(api, others)
    beyond = await submit_jobs(
        api, [replace(once_more(MERGED), idempotency_key="beyond"), once_more(others[3])]
    )

    assert {LIVING.job_id} == {fit.job_id for fit in fits if isinstance(fit, Submitted)}
    refused, again = beyond
    assert isinstance(refused, LimitReached)
    assert ("limit_reached", "job_keys") == (refused.code, refused.limit)
    assert isinstance(again, Submitted)
    with pytest.raises(LimitReached):
        await submit_job(api, replace(once_more(MERGED), idempotency_key="one more"))
    assert MOST_KEYS == await api.fetchval("SELECT count(*) FROM idempotency_aliases")


async def test_of_a_batch_as_many_keys_are_remembered_as_fit(api: OpenConnection) -> None:
    await submit_job(api, LIVING)
    others = [replace(once_more(MERGED), idempotency_key=f"{n}") for n in range(MOST_KEYS + 5)]

    answers = await submit_jobs(api, others)

    assert 5 == sum(isinstance(answer, LimitReached) for answer in answers)
    assert MOST_KEYS == await api.fetchval("SELECT count(*) FROM idempotency_aliases")


async def test_who_was_found_between_two_looks_is_not_told_of_a_limit(
    api: OpenConnection, superuser: OpenConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on as what is new, and its key is remembered then."""
    find = submissions._look_for_standing
    looks: list[int] = []

    async def looking(connection: Connection, asked: Sequence[Submission]) -> list[asyncpg.Record]:
        looks.append(len(asked))
        if len(looks) == 2:
            await submit_job(superuser, a_submission(dedup_key="late"))
        return await find(connection, asked)

    monkeypatch.setattr(submissions, "_look_for_standing", looking)
    await submit_job(superuser, LIVING)
    late = a_submission(idempotency_key="late", dedup_key="late")

    answers = await submissions._find_standing(api, [MERGED, late])

    assert len(looks) == 2
    assert [MERGED.job_id] == list(answers)
