"""What is asked of the database after every test does notice when it is not so."""

import pytest

from imagefleet.jobs.model import CancelCode, JobState
from imagefleet.store.database import Connection
from tests.support.factories import MadeJob, a_job, a_submission
from tests.support.invariants import OFFENDERS, ledger_balances, no_row_offends

TARGET = "image:1"


async def damage(superuser: Connection, statement: str, *arguments: object) -> None:
    """What no statement of the product can do: with every trigger off."""
    async with superuser.transaction():
        await superuser.execute("SET LOCAL session_replication_role = replica")
        await superuser.execute(statement, *arguments)


async def a_job_in(state: JobState, worker: Connection, superuser: Connection) -> MadeJob:
    return await a_job(worker, superuser, state=state, submission=a_submission(target=TARGET))


@pytest.mark.parametrize("state", list(JobState))
async def test_jobs_that_the_store_made_offend_against_nothing(
    state: JobState, worker: Connection, superuser: Connection
) -> None:
    await a_job_in(state, worker, superuser)

    await ledger_balances(superuser)
    await no_row_offends(superuser)


async def test_a_job_claimed_as_cancelled_need_not_hold_its_target(
    worker: Connection, superuser: Connection
) -> None:
    await a_job(
        worker,
        superuser,
        state=JobState.PROCESSING,
        flag=CancelCode.CANCELLED,
        flagged_before_claim=True,
        submission=a_submission(target=TARGET),
    )

    await no_row_offends(superuser)


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("state", list(JobState))
async def test_a_job_that_disappears_is_missed(
    state: JobState, worker: Connection, superuser: Connection
) -> None:
    job = await a_job_in(state, worker, superuser)

    await damage(superuser, "DELETE FROM jobs WHERE id = $1", job.job_id)

    with pytest.raises(AssertionError, match="1 jobs are missing"):
        await ledger_balances(superuser)


@pytest.mark.breaks_invariants
async def test_a_job_that_nobody_accepted_is_noticed(
    worker: Connection, superuser: Connection
) -> None:
    await damage(
        superuser,
        """
        INSERT INTO jobs (id, tenant_id, type, lane, correlation_id, created_by)
        VALUES (gen_random_uuid(), 'acme', 'noop', 'fast', 'x', 'x')
        """,
    )

    with pytest.raises(AssertionError, match="-1 jobs are missing"):
        await ledger_balances(superuser)


RING = "INSERT INTO rings (job_id, lane, tenant_id, type, priority)"
WHOSE = "a ring says whose job it rings for, and of which type"
URGENT = "a ring is as urgent as its job, and most urgent when that is flagged or cancels all"
PARKED = "what is parked waits for a target, and has no message"
HEAD = "who stands first at a free target is not parked"
# The state of a job, what is done to its rows behind its back, and the rule that this breaks.
DAMAGES = [
    (JobState.QUEUED, "DELETE FROM rings", "a waiting job has a ring"),
    (JobState.FAILED_RETRYABLE, "DELETE FROM rings", "a waiting job has a ring"),
    *(
        (
            state,
            f"{RING} SELECT id, lane, tenant_id, type, priority FROM jobs",  # noqa: S608 - words of this file
            "only a waiting job has a ring",
        )
        for state in (JobState.PROCESSING, JobState.COMPLETED, JobState.FAILED)
    ),
    (
        JobState.QUEUED,
        f"{RING} VALUES (gen_random_uuid(), 'fast', 'acme', 'noop', 100)",
        "only a waiting job has a ring",
    ),
    (JobState.QUEUED, "UPDATE rings SET lane = 'general'", "a ring is in the lane of its job"),
    *(
        (JobState.QUEUED, statement, WHOSE)
        for statement in (
            "UPDATE rings SET tenant_id = 'other'",
            "UPDATE rings SET type = 'x'",
            "UPDATE rings SET tenant_id = NULL, type = NULL",
        )
    ),
    (JobState.QUEUED, "UPDATE rings SET priority = -1", URGENT),
    (
        JobState.QUEUED,
        "UPDATE jobs SET cancel_requested_at = now(), cancel_code = 'cancelled'",
        URGENT,
    ),
    (JobState.QUEUED, "UPDATE rings SET sent_at = now()", "a ring that was sent says how often"),
    (
        JobState.QUEUED,
        """
        WITH gone AS (UPDATE jobs SET target = NULL, target_seq = NULL)
        UPDATE rings SET next_at = 'infinity'
        """,
        PARKED,
    ),
    (
        JobState.FAILED_RETRYABLE,
        """
        WITH taken AS (UPDATE targets SET running_job = (SELECT id FROM jobs))
        UPDATE rings SET next_at = 'infinity', sent_at = now(), sends = 1
        """,
        PARKED,
    ),
    (JobState.QUEUED, "UPDATE rings SET next_at = 'infinity'", HEAD),
    (JobState.FAILED_RETRYABLE, "UPDATE rings SET next_at = 'infinity'", HEAD),
    (
        JobState.QUEUED,
        "UPDATE targets SET running_job = (SELECT id FROM jobs)",
        "a target names a job of its own that runs",
    ),
    (
        JobState.COMPLETED,
        "UPDATE targets SET running_job = (SELECT id FROM jobs)",
        "a target names a job of its own that runs",
    ),
    (
        JobState.COMPLETED,
        "UPDATE targets SET running_job = gen_random_uuid()",
        "a target names a job of its own that runs",
    ),
    (
        JobState.PROCESSING,
        "INSERT INTO targets (tenant_id, target, running_job) SELECT 'acme', 'other', id FROM jobs",
        "a target names a job of its own that runs",
    ),
    (
        JobState.PROCESSING,
        "UPDATE targets SET running_job = NULL",
        "a running job is named by its target",
    ),
    (JobState.PROCESSING, "DELETE FROM targets", "a running job is named by its target"),
    (
        JobState.COMPLETED,
        "DELETE FROM attempts",
        "each claim that ended has one attempts row",
    ),
    (
        JobState.FAILED_RETRYABLE,
        "UPDATE attempts SET claim_no = 2",
        "each claim that ended has one attempts row",
    ),
    (
        JobState.PROCESSING,
        "UPDATE jobs SET claim_no = 2",
        "each claim that ended has one attempts row",
    ),
    (
        JobState.FAILED_RETRYABLE,
        "UPDATE attempts SET charged = NOT charged",
        "a job is charged what its attempts rows say, and what it runs on",
    ),
    (
        JobState.PROCESSING,
        "UPDATE jobs SET attempts = 0",
        "a job is charged what its attempts rows say, and what it runs on",
    ),
    (
        JobState.COMPLETED,
        "UPDATE attempts SET job_id = gen_random_uuid()",
        "an attempts row is of a job",
    ),
    (
        JobState.FAILED_RETRYABLE,
        "INSERT INTO ledger_entries (hour, type, lane, failed) VALUES (1, 'noop', 'fast', 1)",
        "the ledger's book says of each hour what the rows say",
    ),
]


@pytest.mark.breaks_invariants
@pytest.mark.parametrize(("state", "statement", "rule"), DAMAGES)
async def test_a_damaged_row_is_found_by_its_rule(
    state: JobState,
    statement: str,
    rule: str,
    worker: Connection,
    superuser: Connection,
) -> None:
    await a_job_in(state, worker, superuser)
    before = await superuser.fetch(OFFENDERS[rule])

    await damage(superuser, statement)

    assert ([], 1) == (before, len(await superuser.fetch(OFFENDERS[rule])))
    with pytest.raises(AssertionError, match="not true"):
        await no_row_offends(superuser)


def test_every_rule_was_broken_once() -> None:
    assert set(OFFENDERS) == {rule for _, _, rule in DAMAGES}
