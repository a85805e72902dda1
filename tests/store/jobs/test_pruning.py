"""Forgetting: finished jobs past retention with what belongs to them, workers long dead."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import cast

import pytest

from imagefleet.jobs.images import image_target
from imagefleet.jobs.lifecycle import Completed, Released
from imagefleet.jobs.model import CancelCode, JobId, JobState, new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.fleet.ledger import read_ledger
from imagefleet.store.fleet.workers import prune_workers
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.pruning import PRUNE_JOBS, prune_jobs
from imagefleet.store.jobs.rescue import look_at_workers
from imagefleet.store.jobs.submissions import insert_submissions, submit_job, submit_jobs
from imagefleet.store.letters.letters import acknowledge_dead_letters, get_dead_letter
from tests.support.database import Database
from tests.support.factories import (
    ALL_LANES,
    CORRUPT,
    TYPES,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    age_finished_jobs,
    settle_job,
)
from tests.support.races import all_at_once, many_connections

QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState


async def acknowledge(operator: Connection, job: MadeJob) -> None:
    letter = await get_dead_letter(operator, job.job_id)
    await acknowledge_dead_letters(operator, [letter.id], by="tests", note=None)


async def jobs_left(connection: Connection) -> set[JobId]:
    return {row["id"] for row in await connection.fetch("SELECT id FROM jobs")}


async def test_prune_forgets_what_is_finished_and_past_retention_and_nothing_else(
    maintenance: Connection,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    old = {state: await a_job(worker, superuser, state=state) for state in JobState}
    await acknowledge(operator, old[FAILED])
    await age_finished_jobs(superuser)
    young = [await a_job(worker, superuser, state=state) for state in (COMPLETED, FAILED)]

    pruned = (await prune_jobs(maintenance, limit=100)).pruned

    still_open = [old[state].job_id for state in (QUEUED, PROCESSING, FAILED_RETRYABLE)]
    assert 2 == pruned
    assert {*still_open, *(job.job_id for job in young)} == await jobs_left(worker)


async def test_prune_keeps_a_failure_that_nobody_has_acknowledged(
    maintenance: Connection,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    job = await a_job(worker, superuser, state=FAILED)
    await age_finished_jobs(superuser)
    before = (await prune_jobs(maintenance, limit=100)).pruned

    await acknowledge(operator, job)

    assert (0, 1) == (before, (await prune_jobs(maintenance, limit=100)).pruned)


async def test_prune_forgets_a_job_that_was_cancelled(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    await a_cancelled_job(worker, superuser)
    await age_finished_jobs(superuser)

    assert 1 == (await prune_jobs(maintenance, limit=100)).pruned


async def a_cancelled_job(worker: Connection, superuser: Connection) -> MadeJob:
    job = await a_job(worker, superuser, state=PROCESSING, flag=CancelCode.CANCELLED)
    await settle_job(worker, job, Released(why="drain"))
    return job


COMPANIONS = (
    "SELECT count(*) FROM attempts",
    "SELECT count(*) FROM dead_letters",
    "SELECT count(*) FROM dead_letter_sends",
    "SELECT count(*) FROM idempotency_aliases",
)


async def test_prune_takes_what_belongs_to_a_job_with_it(
    maintenance: Connection,
    operator: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    submission = a_submission(dedup_key="d", target="image:1")
    job = await a_job(worker, superuser, state=PROCESSING, submission=submission)
    await submit_job(worker, a_submission(dedup_key="d", idempotency_key="k"))
    await settle_job(worker, job, CORRUPT)
    await acknowledge(operator, job)
    await age_finished_jobs(superuser)
    before = [await worker.fetchval(query) for query in COMPANIONS]

    await prune_jobs(maintenance, limit=100)

    assert [1, 1, 1, 1] == before
    assert [0, 0, 0, 0] == [await worker.fetchval(query) for query in COMPANIONS]


async def test_prune_keeps_the_place_of_a_target_in_its_order(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    for _ in range(2):
        submission = a_submission(target="image:1")
        await a_job(worker, superuser, state=COMPLETED, submission=submission)
    await age_finished_jobs(superuser)
    await prune_jobs(maintenance, limit=100)

    await submit_job(worker, a_submission(target="image:1"))

    assert 3 == await worker.fetchval("SELECT target_seq FROM jobs")


async def test_prune_takes_the_oldest_first_and_no_more_than_it_may(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    jobs = [await a_job(worker, superuser, state=COMPLETED) for _ in range(5)]
    await age_finished_jobs(superuser)

    assert 2 == (await prune_jobs(maintenance, limit=2)).pruned
    assert {job.job_id for job in jobs[2:]} == await jobs_left(worker)


async def test_prunes_beside_each_other_share_the_work(
    database: Database, worker: Connection, superuser: Connection
) -> None:
    worker_id = await a_worker(worker)
    submissions = [a_submission() for _ in range(60)]
    await submit_jobs(worker, submissions)
    ids = [submission.job_id for submission in submissions]
    await claim_jobs(worker, ids, worker_id=worker_id, lanes=ALL_LANES, types=TYPES)
    for job_id in ids:
        await settle_completed(worker, MadeJob(job_id=job_id, claim_no=1, worker_id=worker_id))
    await age_finished_jobs(superuser)

    async with many_connections(database, "maintenance", 6) as connections:
        pages = await all_at_once(
            [partial(prune_jobs, connection, limit=20) for connection in connections]
        )
        pages.append(await prune_jobs(connections[0], limit=100))  # what all had locked and left

    ledger = await read_ledger(superuser)
    assert ledger is not None
    assert [60, 60] == [sum(page.pruned for page in pages), ledger.pruned]


async def settle_completed(worker: Connection, job: MadeJob) -> None:
    await settle_job(worker, job, Completed())


@pytest.mark.parametrize(
    ("dead_for", "left"), [(None, 1), (timedelta(days=6), 1), (timedelta(days=8), 0)], ids=str
)
async def test_only_workers_long_dead_are_forgotten(
    dead_for: timedelta | None,
    left: int,
    maintenance: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    await a_worker(worker)
    if dead_for is not None:
        await superuser.execute(
            "UPDATE workers SET dead_at = now() - $1::interval, dead_why = 'stopped'", dead_for
        )

    await prune_workers(maintenance)

    assert left == await worker.fetchval("SELECT count(*) FROM workers")


async def test_a_look_at_the_workers_sees_the_living_ones(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    dead, living = await a_worker(worker), await a_worker(worker)
    await superuser.execute(
        "UPDATE workers SET dead_at = now(), dead_why = 'silent' WHERE id = $1", dead
    )

    seen = await look_at_workers(maintenance)

    assert [(living, 0)] == [(one.worker_id, one.beats) for one in seen]


# Targets.


PALETTE = "palette:1"
OPEN_PLACES = "SELECT target_seq FROM jobs WHERE state = 'queued'"
OF_A_TARGET = "SELECT next_seq FROM targets WHERE target = $1"


async def a_finished_job_of(target: str, worker: Connection, superuser: Connection) -> MadeJob:
    submission = a_submission(target=target)
    job = await a_job(worker, superuser, state=COMPLETED, submission=submission)
    await age_finished_jobs(superuser)
    return job


async def test_a_target_is_forgotten_with_the_last_of_its_jobs(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    await a_finished_job_of(PALETTE, worker, superuser)
    await a_job(worker, superuser, state=COMPLETED, submission=a_submission(target=PALETTE))

    await prune_jobs(maintenance, limit=100)
    kept = await superuser.fetchval(OF_A_TARGET, PALETTE)
    await age_finished_jobs(superuser)
    await prune_jobs(maintenance, limit=100)

    assert (3, None) == (kept, await superuser.fetchval(OF_A_TARGET, PALETTE))


async def test_the_order_of_an_image_is_never_forgotten_with_its_jobs(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    """Its revisions are numbers of that order: one that came twice would be served from caches."""
    await a_finished_job_of(image_target(new_job_id()), worker, superuser)

    assert 1 == (await prune_jobs(maintenance, limit=100)).pruned

    assert 2 == await superuser.fetchval("SELECT next_seq FROM targets")


async def test_a_target_that_somebody_submits_about_just_now_is_kept(
    maintenance: Connection,
    api: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    await a_finished_job_of(PALETTE, worker, superuser)
    async with api.transaction():
        await insert_submissions(api, [a_submission(target=PALETTE)])
        await prune_jobs(maintenance, limit=100)

    assert 3 == await superuser.fetchval(OF_A_TARGET, PALETTE)
    assert 2 == await superuser.fetchval("SELECT target_seq FROM jobs")


class Interrupted:
    """A connection on which somebody else is faster once the jobs are gone."""

    def __init__(self, connection: Connection, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._connection = connection
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    async def fetch(self, statement: str, *values: object) -> object:
        rows = await self._connection.fetch(statement, *values)
        if statement is PRUNE_JOBS:
            await self._meanwhile()
        return rows


async def test_a_target_that_got_a_job_since_the_prune_began_is_kept(
    maintenance: Connection,
    api: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    await a_finished_job_of(PALETTE, worker, superuser)
    meanwhile = partial(submit_job, api, a_submission(target=PALETTE))

    await prune_jobs(cast("Connection", Interrupted(maintenance, meanwhile)), limit=100)

    assert 3 == await superuser.fetchval(OF_A_TARGET, PALETTE)


async def test_submits_and_prunes_of_one_target_never_leave_a_job_without_its_place(
    database: Database, worker: Connection, superuser: Connection
) -> None:
    async def submit(connection: Connection) -> None:
        for _ in range(10):
            await submit_job(connection, a_submission(target=PALETTE))

    async def prune(connection: Connection) -> None:
        for _ in range(10):
            await prune_jobs(connection, limit=1)

    for _ in range(10):
        await a_job(worker, superuser, state=COMPLETED, submission=a_submission(target=PALETTE))
    await age_finished_jobs(superuser)
    async with many_connections(database, "maintenance", 4) as connections:
        acts = [submit, submit, prune, prune]
        await all_at_once([partial(act, one) for act, one in zip(acts, connections, strict=True)])

    seqs = [row[0] for row in await superuser.fetch(OPEN_PLACES)]
    assert 20 == len(set(seqs))
    assert max(seqs) + 1 == await superuser.fetchval(OF_A_TARGET, PALETTE)


async def test_a_page_goes_on_behind_what_was_seen_and_kept(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    kept = await a_job(worker, superuser, state=FAILED)
    await a_job(worker, superuser, state=COMPLETED)
    await age_finished_jobs(superuser)

    first = await prune_jobs(maintenance, limit=1)
    second = await prune_jobs(maintenance, limit=1, after=first.last)
    third = await prune_jobs(maintenance, limit=1, after=second.last)

    assert [(1, 0), (1, 1), (0, 0)] == [(one.seen, one.pruned) for one in (first, second, third)]
    assert first.last is not None
    assert (kept.job_id, None) == (first.last[1], third.last)
