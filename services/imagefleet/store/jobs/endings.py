"""How a claim ends, in SQL: completed, retried, failed or released, with its one attempts row.

`settling` (a worker's own outcomes) and `rescue` (of a dead worker's claims) both end claims, under
different roles and for different reasons, but through these statements only. Each names
`(job_id, claim_no)` and `state = 'processing'`: a claim that is not held any more is left alone.

Callers lock first, targets before jobs and each in order, and write after: `targets.lock_targets`,
`lock_claims`, `end_claims`, `targets.free_targets`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, assert_never
from uuid import UUID

from asyncpg import Record

from imagefleet.jobs.lifecycle import Completed, Failed, Outcome, Released, Retry, failure_sentence
from imagefleet.jobs.model import (
    CancelCode,
    Ended,
    Fence,
    JobId,
    JobState,
    Lane,
    Standing,
    TenantId,
    WorkerId,
)
from imagefleet.store.database import Connection

LOCK_CLAIMS: Final = """
SELECT jobs.id, jobs.claim_no, jobs.attempts, jobs.max_attempts, jobs.crashes, jobs.lane,
       jobs.cancel_code, jobs.tenant_id, jobs.target, jobs.type, jobs.locked_by,
       jobs.correlation_id, jobs.traceparent, now() AS now
  FROM unnest($1::uuid[], $2::bigint[]) AS held (id, claim_no)
  JOIN jobs ON jobs.id = held.id AND jobs.claim_no = held.claim_no
 WHERE jobs.state = 'processing'
 ORDER BY jobs.id
   FOR UPDATE OF jobs
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A claim that stands, locked until the transaction ends, with what `decide` needs to know."""

    job_id: JobId
    claim_no: int
    tenant_id: TenantId
    type: str
    target: str | None
    worker_id: WorkerId
    standing: Standing
    correlation_id: str
    traceparent: str | None
    now: datetime

    @property
    def fence(self) -> Fence:
        """What it is known by."""
        return (self.job_id, self.claim_no)


async def lock_claims(connection: Connection, claims: Sequence[Fence]) -> dict[Fence, Held]:
    """Those of the claims that still stand, locked."""
    rows = await connection.fetch(
        LOCK_CLAIMS, [job_id for job_id, _ in claims], [claim_no for _, claim_no in claims]
    )
    return {
        (row["id"], row["claim_no"]): Held(
            job_id=JobId(row["id"]),
            claim_no=row["claim_no"],
            tenant_id=TenantId(row["tenant_id"]),
            type=row["type"],
            target=row["target"],
            worker_id=WorkerId(row["locked_by"]),
            standing=Standing(
                attempts=row["attempts"],
                max_attempts=row["max_attempts"],
                crashes=row["crashes"],
                lane=Lane(row["lane"]),
                cancel_code=None if row["cancel_code"] is None else CancelCode(row["cancel_code"]),
            ),
            correlation_id=row["correlation_id"],
            traceparent=row["traceparent"],
            now=row["now"],
        )
        for row in rows
    }


# The attempts row of every claim that `ended` names and `written` really ended.
WRITE_ATTEMPTS: Final = """
INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, duration,
                      queue_time, charged, outcome, why, detail, log_excerpt, ended_by)
SELECT ended.id, ended.claim_no, ended.tenant_id, ended.type, ended.lane, ended.locked_by,
       ended.claimed_at, now() - ended.claimed_at,
       greatest(ended.claimed_at - ended.run_at, interval '0'),
       ended.charged, ended.outcome, ended.why, ended.detail, ended.log_excerpt, ended.ended_by
  FROM ended
  JOIN written ON written.id = ended.id
RETURNING attempts.job_id, attempts.claim_no, attempts.lane, attempts.worker_id, attempts.duration,
          attempts.queue_time, attempts.outcome, attempts.why
"""


# What stands of the claim, and what is left of it: in each statement the same.
_CLAIM: Final = """
           jobs.id, jobs.claim_no, jobs.tenant_id, jobs.type, jobs.lane, jobs.locked_by,
           jobs.claimed_at, jobs.run_at"""

_STANDS: Final = """
      JOIN jobs ON jobs.id = new.id AND jobs.claim_no = new.claim_no AND jobs.state = 'processing'
"""

_LET_GO: Final = """
           locked_by = NULL, locked_at = NULL, updated_at = now()
      FROM ended
     WHERE jobs.id = ended.id AND jobs.claim_no = ended.claim_no AND jobs.state = 'processing'
    RETURNING jobs.id
"""

_RING: Final = """
bell AS (
    INSERT INTO rings (job_id, lane, tenant_id, type, priority, next_at)
    SELECT ended.id, ended.new_lane, ended.tenant_id, ended.type, ended.priority, ended.due_at
      FROM ended JOIN written ON written.id = ended.id
)
"""

COMPLETE_JOBS: Final = f"""
WITH ended AS MATERIALIZED (
    SELECT {_CLAIM}, jobs.claim_charged AS charged, 'completed' AS outcome,
           new.reason AS why, NULL AS detail, new.log_excerpt, new.result, new.reason,
           NULL::uuid AS ended_by
      FROM unnest($1::uuid[], $2::bigint[], $3::jsonb[], $4::text[], $5::text[])
           AS new (id, claim_no, result, reason, log_excerpt)
      {_STANDS}
),
written AS (
    UPDATE jobs
       SET state = 'completed', result = ended.result, result_reason = ended.reason,
           failure_code = NULL, failure_message = NULL, failure_detail = NULL, finished_at = now(),
           {_LET_GO}
)
{WRITE_ATTEMPTS}
"""  # noqa: S608 - composed at import from the constants above


async def _complete(
    connection: Connection, endings: Sequence[tuple[Held, Completed]]
) -> list[Ended]:
    """Processing -> completed."""
    return await _end(
        connection,
        COMPLETE_JOBS,
        JobState.COMPLETED,
        endings,
        [outcome.result for _, outcome in endings],
        [outcome.reason for _, outcome in endings],
        [outcome.log_excerpt for _, outcome in endings],
    )


RETRY_JOBS: Final = f"""
WITH ended AS MATERIALIZED (
    SELECT {_CLAIM}, $10 AS outcome,
           jobs.claim_charged AND new.charged AS charged,
           jobs.claim_charged AND NOT new.charged AS refund,
           new.code AS why, new.detail, new.log_excerpt,
           new.message, new.due_at, new.crashed, new.lane AS new_lane, jobs.priority,
           $12::uuid AS ended_by
      FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::timestamptz[],
                  $7::boolean[], $8::boolean[], $9::text[], $11::text[])
           AS new (id, claim_no, code, message, detail, due_at, charged, crashed, lane, log_excerpt)
      {_STANDS}
),
written AS (
    UPDATE jobs
       SET state = 'failed_retryable', run_at = ended.due_at, lane = ended.new_lane,
           attempts = jobs.attempts - ended.refund::int,
           crashes = jobs.crashes + ended.crashed::int,
           failure_code = ended.why, failure_message = ended.message, failure_detail = ended.detail,
           {_LET_GO}
),
{_RING}{WRITE_ATTEMPTS}
"""  # noqa: S608 - composed at import from the constants above


async def _retry(
    connection: Connection,
    endings: Sequence[tuple[Held, Retry]],
    *,
    ended_as: str,
    ended_by: UUID | None,
) -> list[Ended]:
    """Processing -> failed_retryable, charged unless the outcome says otherwise, with its ring."""
    return await _end(
        connection,
        RETRY_JOBS,
        JobState.FAILED_RETRYABLE,
        endings,
        [outcome.code for _, outcome in endings],
        [outcome.message for _, outcome in endings],
        [outcome.detail for _, outcome in endings],
        [outcome.run_at or held.now for held, outcome in endings],
        [outcome.charged for _, outcome in endings],
        [outcome.crashed for _, outcome in endings],
        [outcome.lane or held.standing.lane for held, outcome in endings],
        ended_as,
        [outcome.log_excerpt for _, outcome in endings],
        ended_by,
    )


FAIL_JOBS: Final = f"""
WITH ended AS MATERIALIZED (
    SELECT {_CLAIM}, jobs.claim_charged AS charged, $6 AS outcome,
           new.code AS why, new.detail, new.log_excerpt, new.message, $8::uuid AS ended_by
      FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $7::text[])
           AS new (id, claim_no, code, message, detail, log_excerpt)
      {_STANDS}
),
written AS (
    UPDATE jobs
       SET state = 'failed',
           failure_code = ended.why, failure_message = ended.message, failure_detail = ended.detail,
           finished_at = now(),
           {_LET_GO}
)
{WRITE_ATTEMPTS}
"""  # noqa: S608 - composed at import from the constants above


async def _fail(
    connection: Connection,
    endings: Sequence[tuple[Held, Failed]],
    *,
    ended_as: str,
    ended_by: UUID | None,
) -> list[Ended]:
    """Processing -> failed; the dead letter is written by the database in the same transaction."""
    return await _end(
        connection,
        FAIL_JOBS,
        JobState.FAILED,
        endings,
        [outcome.code for _, outcome in endings],
        [outcome.message for _, outcome in endings],
        [outcome.detail for _, outcome in endings],
        ended_as,
        [outcome.log_excerpt for _, outcome in endings],
        ended_by,
    )


RELEASE_JOBS: Final = f"""
WITH ended AS MATERIALIZED (
    SELECT {_CLAIM}, false AS charged, 'released' AS outcome,
           new.why, NULL AS detail, new.log_excerpt, new.due_at, jobs.priority,
           jobs.lane AS new_lane,
           jobs.claim_charged AS refund, NULL::uuid AS ended_by
      FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::timestamptz[], $5::text[])
           AS new (id, claim_no, why, due_at, log_excerpt)
      {_STANDS}
),
written AS (
    UPDATE jobs
       SET state = 'failed_retryable', run_at = ended.due_at,
           attempts = greatest(jobs.attempts - ended.refund::int, 0),
           failure_code = NULL, failure_message = NULL, failure_detail = NULL,
           {_LET_GO}
),
{_RING}{WRITE_ATTEMPTS}
"""  # noqa: S608 - composed at import from the constants above


async def _release(connection: Connection, endings: Sequence[tuple[Held, Released]]) -> list[Ended]:
    """Processing -> failed_retryable, uncharged: it was no fault of the job."""
    return await _end(
        connection,
        RELEASE_JOBS,
        JobState.FAILED_RETRYABLE,
        endings,
        [outcome.why for _, outcome in endings],
        [outcome.run_at or held.now for held, outcome in endings],
        [outcome.log_excerpt for _, outcome in endings],
    )


async def _end(
    connection: Connection,
    statement: str,
    state: JobState,
    endings: Sequence[tuple[Held, Outcome]],
    *columns: object,
) -> list[Ended]:
    held = {one.fence: one for one, _ in endings}
    rows = await connection.fetch(
        statement,
        [one.job_id for one, _ in endings],
        [one.claim_no for one, _ in endings],
        *columns,
    )
    return [_ended(row, state, held[row["job_id"], row["claim_no"]]) for row in rows]


def _ended(row: Record, state: JobState, held: Held) -> Ended:
    return Ended(
        **dict(row) | {"lane": Lane(row["lane"])},
        state=state,
        tenant_id=held.tenant_id,
        type=held.type,
        attempts=held.standing.attempts,
        max_attempts=held.standing.max_attempts,
        correlation_id=held.correlation_id,
        traceparent=held.traceparent,
    )


async def end_claims(
    connection: Connection,
    endings: Sequence[tuple[Held, Outcome]],
    *,
    retried_as: str = "retried",
    failed_as: str = "failed",
    ended_by: UUID | None = None,
) -> list[Ended]:
    """Write every outcome, one statement a kind; the claims are locked by this transaction.

    `ended_by` is who writes it, where that is not the holder.

    What it returns is to be told once the transaction is committed, and not before.
    """
    completed: list[tuple[Held, Completed]] = []
    retried: list[tuple[Held, Retry]] = []
    failed: list[tuple[Held, Failed]] = []
    released: list[tuple[Held, Released]] = []
    for held, outcome in endings:
        match outcome:
            case Completed():
                completed.append((held, outcome))
            case Retry():
                retried.append((held, outcome))
            case Failed():
                failed.append((held, outcome))
            case Released():
                released.append((held, outcome))
            case _:
                assert_never(outcome)
    ended: list[Ended] = []
    if completed:
        ended += await _complete(connection, completed)
    if retried:
        ended += await _retry(connection, retried, ended_as=retried_as, ended_by=ended_by)
    if failed:
        ended += await _fail(connection, failed, ended_as=failed_as, ended_by=ended_by)
    if released:
        ended += await _release(connection, released)
    return ended


def rejected(detail: str | None) -> Failed:
    """What becomes of a claim whose outcome the database refuses; `detail` is a word of ours.

    The refused value must not come back in by it.
    """
    return Failed(
        code="settle_rejected", message=failure_sentence("settle_rejected"), detail=detail
    )
