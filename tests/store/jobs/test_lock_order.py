"""Whoever ends claims locks the worker, then targets, then jobs, each in order: none meets another.

One transaction sits on a row; who waits for it may hold what comes before that row, and nothing
behind it.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

import pytest

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import Claim, JobId, WorkerId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.store.jobs.submissions import submit_jobs
from imagefleet.store.settling import Settlement, settle_jobs
from tests.conftest import OpenConnection
from tests.support.database import driver_of
from tests.support.factories import ALL_LANES, TYPES, a_submission, a_worker
from tests.support.races import meanwhile

FREE_WORKERS = "SELECT id FROM workers FOR UPDATE SKIP LOCKED"
FREE_TARGETS = "SELECT target FROM targets ORDER BY target FOR UPDATE SKIP LOCKED"
FREE_JOBS = "SELECT id FROM jobs ORDER BY id FOR UPDATE SKIP LOCKED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Two claims of one worker; the older job has the later target."""

    me: WorkerId
    claims: Sequence[Claim]

    @property
    def ids(self) -> list[JobId]:
        return [claim.job_id for claim in self.claims]


async def two_held(
    worker: Connection, targets: Sequence[str | None] = ("photo-b", "photo-a")
) -> Held:
    me = await a_worker(worker)
    jobs = [a_submission(target=target) for target in targets]
    await submit_jobs(worker, jobs)
    ids = sorted(job.job_id for job in jobs)
    answers = await claim_jobs(worker, ids, worker_id=me, lanes=ALL_LANES, types=TYPES)
    return Held(me=me, claims=[answer.claim for answer in answers if answer.claim is not None])


async def settle(connection: Connection, held: Held) -> object:
    outcomes = [Settlement.of(claim, Completed(), RetryPolicy()) for claim in reversed(held.claims)]
    return await settle_jobs(connection, held.me, outcomes)


async def rescue(connection: Connection, held: Held) -> object:
    (seen,) = await look_at_workers(connection)
    return await rescue_worker(connection, seen)


async def free(watcher: Connection, query: str) -> list[object]:
    return [row[0] for row in await watcher.fetch(query)]


EndsClaims = Callable[[Connection, Held], Coroutine[object, object, object]]
BOTH = pytest.mark.parametrize("end", [settle, rescue])


@BOTH
async def test_who_waits_for_the_first_target_has_locked_no_job(
    worker: OpenConnection,
    maintenance: OpenConnection,
    owner: OpenConnection,
    superuser: OpenConnection,
    end: EndsClaims,
) -> None:
    held = await two_held(worker)
    ending = worker if end is settle else maintenance

    transaction = driver_of(owner).transaction()
    await transaction.start()
    await owner.execute("SELECT FROM targets WHERE target = 'photo-a' FOR UPDATE")
    async with meanwhile(superuser, owner, ending, end(ending, held)):
        assert await free(superuser, FREE_TARGETS) == ["photo-b"]
        assert await free(superuser, FREE_JOBS) == held.ids
        await transaction.commit()


@BOTH
async def test_who_waits_for_the_first_job_has_locked_its_targets_and_no_other_job(
    worker: OpenConnection,
    maintenance: OpenConnection,
    owner: OpenConnection,
    superuser: OpenConnection,
    end: EndsClaims,
) -> None:
    held = await two_held(worker)
    ending = worker if end is settle else maintenance

    transaction = driver_of(owner).transaction()
    await transaction.start()
    await owner.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", held.ids[0])
    async with meanwhile(superuser, owner, ending, end(ending, held)):
        assert await free(superuser, FREE_TARGETS) == []
        assert await free(superuser, FREE_JOBS) == held.ids[1:]
        await transaction.commit()


async def test_completions_without_a_target_wait_for_the_first_and_have_locked_no_other(
    worker: OpenConnection, owner: OpenConnection, superuser: OpenConnection
) -> None:
    held = await two_held(worker, (None, None))

    transaction = driver_of(owner).transaction()
    await transaction.start()
    await owner.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", held.ids[0])
    async with meanwhile(superuser, owner, worker, settle(worker, held)):
        assert await free(superuser, FREE_JOBS) == held.ids[1:]
        await transaction.commit()


async def test_a_rescue_that_waits_for_its_worker_has_locked_nothing_else(
    worker: OpenConnection,
    maintenance: OpenConnection,
    owner: OpenConnection,
    superuser: OpenConnection,
) -> None:
    held = await two_held(worker)

    transaction = driver_of(owner).transaction()
    await transaction.start()
    await owner.execute("SELECT FROM workers FOR UPDATE")
    async with meanwhile(superuser, owner, maintenance, rescue(maintenance, held)):
        assert await free(superuser, FREE_WORKERS) == []
        assert await free(superuser, FREE_TARGETS) == ["photo-a", "photo-b"]
        assert await free(superuser, FREE_JOBS) == held.ids
        await transaction.commit()
