"""The book is proven against the rows, and opened over those of a release that had none."""

from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest

from imagefleet.errors import Unavailable
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, JobState
from imagefleet.store.database import Connection
from imagefleet.store.fleet.bookkeeping import Proof, fold_entries, prove_hour
from imagefleet.store.fleet.ledger import read_ledger
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.pruning import prune_jobs
from imagefleet.store.jobs.submissions import submit_jobs
from imagefleet.store.schema.migration_files import shipped_migrations
from tests.support.database import Database
from tests.support.factories import (
    ALL_LANES,
    TYPES,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    age_finished_jobs,
    settle_job,
)
from tests.support.races import all_at_once, many_connections

WEEK = timedelta(days=7)
HOUR_IN_MS = 3_600_000


async def nothing() -> None:
    """Between two pages."""


async def prove(connection: Connection, *, page: int = 2) -> list[Proof]:
    """Every hour that is due."""
    proofs = []
    while proof := await prove_hour(connection, every=WEEK, page=page, between=nothing):
        proofs.append(proof)
    return proofs


def born(hours_ago: int, n: int = 0) -> JobId:
    """An id as it was made so long ago."""
    now = a_submission().job_id.int
    return JobId(UUID(int=now + n - (hours_ago * HOUR_IN_MS << 80)))


async def jobs_born(connection: Connection, hours_ago: int, jobs: int) -> list[JobId]:
    ids = [born(hours_ago, n) for n in range(jobs)]
    await submit_jobs(connection, [a_submission(job_id=job_id) for job_id in ids])
    return ids


async def missing(connection: Connection) -> int:
    ledger = await read_ledger(connection)
    assert ledger is not None
    return ledger.missing


async def test_an_hour_is_proven_when_it_is_over_and_agrees_page_by_page(
    maintenance: Connection, worker: Connection
) -> None:
    for hours_ago, jobs in ((0, 3), (5, 5), (9, 4)):
        await jobs_born(worker, hours_ago, jobs)

    proofs = await prove(maintenance)

    assert [(4, {}), (5, {})] == [(proof.jobs, proof.differences) for proof in proofs]
    assert [] == await prove(maintenance), "each once"


async def test_a_proof_is_made_again_after_its_time(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    await jobs_born(worker, 9, 4)
    await jobs_born(worker, 5, 4)
    first = await prove(maintenance)
    before = await prove(maintenance)
    await superuser.execute("UPDATE ledger_proof SET round_began_at = now() - interval '8 days'")

    assert [] == await prove(maintenance), "it only finds that it is time"
    again = await prove(maintenance)

    assert [proof.hour for proof in first] == [proof.hour for proof in again]
    assert 2 == len(first)
    assert [] == before


@pytest.mark.breaks_invariants
async def test_rows_lost_behind_the_triggers_are_found_and_unbalance_the_ledger(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    ids = await jobs_born(worker, 5, 5)
    async with superuser.transaction():
        await superuser.execute("SET LOCAL session_replication_role = replica")
        await superuser.execute("DELETE FROM jobs WHERE id = ANY ($1)", ids[:2])
    before = await missing(maintenance)

    (proof,) = await prove(maintenance)

    assert {("noop", "fast", "queued"): -2} == proof.differences
    assert not proof.opening
    assert (0, 2) == (before, await missing(maintenance)), "for good"


async def test_a_book_with_a_wrong_sum_agrees_with_the_rows_again(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    ids = await jobs_born(worker, 5, 3)
    async with superuser.transaction():
        await superuser.execute("SET LOCAL session_replication_role = replica")
        await superuser.execute("UPDATE jobs SET type = 'other' WHERE id = $1", ids[0])
        await superuser.execute("UPDATE rings SET type = 'other' WHERE job_id = $1", ids[0])

    (proof,) = await prove(maintenance)

    assert {("noop", "fast", "queued"): -1, ("other", "fast", "queued"): 1} == proof.differences
    assert 0 == await missing(maintenance)


async def test_moves_between_two_pages_do_not_disturb_a_proof(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    ids = await jobs_born(worker, 5, 6)
    worker_id = await a_worker(worker)
    await claim_jobs(worker, ids[:2], worker_id=worker_id, lanes=ALL_LANES, types=TYPES)

    async def meanwhile() -> None:
        await jobs_born(worker, 5, 1)
        await claim_jobs(worker, ids[2:3], worker_id=worker_id, lanes=ALL_LANES, types=TYPES)
        for job_id in ids[:3]:
            job = MadeJob(job_id=job_id, claim_no=1, worker_id=worker_id)
            await settle_job(worker, job, Completed())
        await age_finished_jobs(superuser)
        await prune_jobs(superuser, limit=1)
        await fold_entries(superuser, limit=3)

    proof = await prove_hour(maintenance, every=WEEK, page=2, between=meanwhile)

    assert proof is not None
    assert (6, {}) == (proof.jobs, proof.differences)
    assert 0 == await missing(maintenance)


async def test_a_proof_that_is_broken_off_leaves_no_trace(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    await jobs_born(worker, 5, 6)

    async def leave() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await prove_hour(maintenance, every=WEEK, page=2, between=leave)

    assert -1 == await superuser.fetchval("SELECT proven_until FROM ledger_proof")
    assert 1 == len(await prove(maintenance))


@pytest.mark.breaks_invariants
async def test_of_two_proofs_of_one_hour_one_is_refused(
    database: Database,
    maintenance: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    """Both have seen that two rows are missing; two corrections would be two rows too many."""
    ids = await jobs_born(worker, 5, 6)
    async with superuser.transaction():
        await superuser.execute("SET LOCAL session_replication_role = replica")
        await superuser.execute("DELETE FROM jobs WHERE id = ANY ($1)", ids[:2])

    async def beside() -> None:
        async with database.connect("maintenance") as other:
            await prove(other, page=100)

    with pytest.raises(Unavailable, match="database_conflict"):
        await prove_hour(maintenance, every=WEEK, page=2, between=beside)

    assert 2 == await missing(maintenance)


# Opening.


# The schema as it was before 0010, with the trigger of 0005 alone; all else is today's.
WITHOUT_A_BOOK = """
DROP TRIGGER jobs_moves_are_counted ON jobs;
DROP TRIGGER jobs_exits_are_counted ON jobs;
DROP VIEW ledger_book;
DROP TABLE ledger_entries, ledger_counts, ledger_proof;
DROP FUNCTION count_moved(), count_gone(), hour_of(uuid);
CREATE OR REPLACE FUNCTION count_accepted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
BEGIN
    INSERT INTO public.ledger (accepted) SELECT count(*) FROM accepted HAVING count(*) > 0;
    RETURN NULL;
END
$$;
"""
(THE_MIGRATION,) = (file.sql for file in shipped_migrations() if file.name == "ledger")


async def a_fleet_of_the_release_before(database: Database) -> None:
    """Jobs of some hours in every state, and then the migration."""
    async with (
        database.connect("owner") as owner,
        database.connect("worker") as worker,
        database.connect("superuser") as superuser,
    ):
        await owner.execute(WITHOUT_A_BOOK)
        for hours_ago in (700, 30, 5, 0):
            await jobs_born(worker, hours_ago, 3)
        for state in JobState:
            await a_job(worker, superuser, state=state)
        async with owner.transaction():
            await owner.execute(THE_MIGRATION)


async def test_jobs_of_a_release_without_a_book_are_counted_after_the_migration(
    database: Database,
) -> None:
    await a_fleet_of_the_release_before(database)
    async with database.connect("maintenance") as maintenance:
        before = await read_ledger(maintenance)

        proofs = await prove(maintenance)

        ledger = await read_ledger(maintenance)
        assert None is before
        assert {True} == {proof.opening for proof in proofs}
        assert 17 == sum(proof.jobs for proof in proofs)
        assert ledger is not None
        assert (17, 15, 0) == (ledger.accepted, ledger.open, ledger.missing)


async def test_a_book_is_opened_exactly_while_the_fleet_works(database: Database) -> None:
    """Claimed, settled, pruned and folded between the pages: a difference of one snapshot stays."""
    await a_fleet_of_the_release_before(database)

    async def work(connection: Connection) -> None:
        worker_id = await a_worker(connection)
        for row in await connection.fetch("SELECT id FROM jobs WHERE state = 'queued' ORDER BY id"):
            job_id = JobId(row["id"])
            (answer,) = await claim_jobs(
                connection, [job_id], worker_id=worker_id, lanes=ALL_LANES, types=TYPES
            )
            if answer.claim is not None:
                job = MadeJob(job_id=job_id, claim_no=1, worker_id=worker_id)
                await settle_job(connection, job, Completed())
            await jobs_born(connection, 5, 1)

    async def forget(connection: Connection) -> None:
        for _ in range(10):
            await prune_jobs(connection, limit=1)
            await fold_entries(connection, limit=3)

    async def prove_beside(connection: Connection) -> None:
        await prove(connection)

    async with database.connect("superuser") as superuser:
        await age_finished_jobs(superuser)
    async with (
        many_connections(database, "worker", 2) as workers,
        many_connections(database, "maintenance", 2) as (one, other),
    ):
        await all_at_once(
            [
                *(partial(work, each) for each in workers),
                partial(forget, one),
                partial(prove_beside, other),
            ]
        )
        await prove(other)

        assert 0 == await missing(other)


# Statements of release 0.2.0, which runs beside this one during a rollout.
PRUNE_OF_0_2_0 = """
WITH old AS MATERIALIZED (
    SELECT jobs.id
      FROM jobs
     WHERE jobs.state IN ('completed', 'failed')
       AND jobs.finished_at < now() - (SELECT fleet.retention FROM fleet)
       AND (SELECT count(*) FROM dead_letters
             WHERE dead_letters.job_id = jobs.id AND dead_letters.acknowledged_at IS NULL) = 0
     ORDER BY jobs.finished_at
     LIMIT $1
       FOR UPDATE OF jobs SKIP LOCKED
),
pruned AS (
    DELETE FROM jobs WHERE jobs.id = ANY (ARRAY (SELECT old.id FROM old)) RETURNING jobs.id
),
attempts_too AS (
    DELETE FROM attempts WHERE attempts.job_id = ANY (ARRAY (SELECT old.id FROM old))
),
letters_too AS (
    DELETE FROM dead_letters WHERE dead_letters.job_id = ANY (ARRAY (SELECT old.id FROM old))
    RETURNING dead_letters.id
),
sends_too AS (
    DELETE FROM dead_letter_sends
     WHERE dead_letter_sends.dead_letter_id = ANY (ARRAY (SELECT letters_too.id FROM letters_too))
),
aliases_too AS (
    DELETE FROM idempotency_aliases
     WHERE idempotency_aliases.job_id = ANY (ARRAY (SELECT old.id FROM old))
),
counted AS (
    INSERT INTO ledger (pruned) SELECT count(*) FROM pruned HAVING count(*) > 0
)
SELECT count(*) FROM pruned
"""
FOLD_OF_0_2_0 = """
WITH folded AS (
    DELETE FROM ledger WHERE id IN (SELECT ledger.id FROM ledger ORDER BY ledger.id LIMIT $1)
    RETURNING accepted, pruned
)
INSERT INTO ledger (accepted, pruned)
SELECT sum(folded.accepted), sum(folded.pruned) FROM folded HAVING count(*) > 0
"""
READ_OF_0_2_0 = """
SELECT (SELECT coalesce(sum(ledger.accepted), 0)::bigint FROM ledger) AS accepted,
       (SELECT coalesce(sum(ledger.pruned), 0)::bigint FROM ledger) AS pruned,
       count(*) FILTER (WHERE jobs.state IN ('queued', 'processing', 'failed_retryable')) AS open,
       count(*) FILTER (WHERE jobs.state = 'completed') AS completed,
       count(*) FILTER (WHERE jobs.state = 'failed') AS failed
  FROM jobs
"""
DEPTHS_OF_0_2_0 = """
SELECT jobs.type, jobs.state, jobs.lane, count(*) AS jobs, min(jobs.run_at) AS oldest_due,
       now() - min(jobs.run_at) AS oldest_age
  FROM jobs
 WHERE jobs.state IN ('queued', 'processing', 'failed_retryable')
 GROUP BY jobs.type, jobs.state, jobs.lane
"""


async def test_statements_of_the_release_before_work_beside_the_book(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    for state in (*JobState, JobState.COMPLETED, JobState.COMPLETED):
        await a_job(worker, superuser, state=state)
    await age_finished_jobs(superuser)

    old = await maintenance.fetchval(PRUNE_OF_0_2_0, 2)
    new = (await prune_jobs(maintenance, limit=100)).pruned
    for _ in range(2):
        await maintenance.execute(FOLD_OF_0_2_0, 3)
        await fold_entries(maintenance, limit=3)
    (told,) = await maintenance.fetch(READ_OF_0_2_0)

    ledger = await read_ledger(maintenance)
    assert ledger is not None
    assert (2, 1) == (old, new)
    assert dict(told) == {name: getattr(ledger, name) for name in ledger.__slots__}
    assert 0 == ledger.missing
    assert 3 == len(await maintenance.fetch(DEPTHS_OF_0_2_0))
