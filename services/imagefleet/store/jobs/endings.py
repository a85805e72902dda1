"""How a claim ends, in SQL: completed, retried, failed or released, with its one attempts row.

`settling` (a worker's own outcomes) and `rescue` (of a dead worker's claims) both end claims, under
different roles and for different reasons, but through these statements only. Each names
`(job_id, claim_no)` and `locked_by`, which is set exactly while a job runs: a claim that is not
held any more is left alone. None says `state = 'processing'`, as indexes of what is open do: by
statistics of a moment when nothing was, these look cheaper than the key, and are read through
(docs/decisions/0012).

Callers lock first, targets before jobs and each in order, and write after: `lock_claims`,
`complete_jobs` and `end_claims`, `free_targets`. What completes without a target needs no lock
before: `complete_jobs` takes its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final, TypeAlias
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
    Ring,
    Standing,
    WorkerId,
)
from imagefleet.store.database import Connection
from imagefleet.store.jobs.rings import RING_FREED, ring_of

Used: TypeAlias = Mapping[str, float]
"""What the children of an attempt took, by the names of the columns."""
NOTHING_USED: Final[Mapping[Fence, Used]] = MappingProxyType({})

LOCK_TARGETS: Final = """
SELECT targets.tenant_id, targets.target
  FROM (SELECT DISTINCT jobs.tenant_id, jobs.target
          FROM jobs
         WHERE jobs.id = ANY ($1::uuid[])) AS wanted
  JOIN targets ON targets.tenant_id = wanted.tenant_id AND targets.target = wanted.target
 ORDER BY targets.tenant_id, targets.target
   FOR UPDATE OF targets
"""


async def lock_targets(connection: Connection, job_ids: Sequence[JobId]) -> None:
    """Lock what these jobs are about, before the jobs themselves: the order every writer keeps."""
    await connection.execute(LOCK_TARGETS, list(job_ids))


LOCK_CLAIMS: Final = f"""
WITH target AS MATERIALIZED (
    {LOCK_TARGETS}
)
SELECT jobs.id AS job_id, jobs.claim_no, jobs.attempts, jobs.max_attempts, jobs.crashes, jobs.lane,
       jobs.cancel_code, jobs.locked_by AS worker_id, now() AS now
  FROM unnest($1::uuid[], $2::bigint[]) AS held (id, claim_no)
  JOIN jobs ON jobs.id = held.id AND jobs.claim_no = held.claim_no
 WHERE jobs.locked_by IS NOT NULL
   AND (SELECT count(*) FROM target) >= 0  -- every target, before the first job
 ORDER BY jobs.id
   FOR UPDATE OF jobs
"""  # noqa: S608 - composed at import from the constant above


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(Standing):
    """A claim that stands, locked until the transaction ends, with what `decide` needs to know."""

    job_id: JobId
    claim_no: int
    worker_id: WorkerId
    now: datetime

    @property
    def fence(self) -> Fence:
        """What it is known by."""
        return (self.job_id, self.claim_no)


async def lock_claims(connection: Connection, claims: Sequence[Fence]) -> dict[Fence, Held]:
    """Those of the claims that still stand, locked, and before them what they are about."""
    rows = await connection.fetch(
        LOCK_CLAIMS, [job_id for job_id, _ in claims], [claim_no for _, claim_no in claims]
    )
    return {(row["job_id"], row["claim_no"]): _held(row) for row in rows}


def _held(row: Record) -> Held:
    code = row["cancel_code"]
    cancel_code = None if code is None else CancelCode(code)
    return Held(**dict(row) | {"lane": Lane(row["lane"]), "cancel_code": cancel_code})


# The attempts row of every claim that `written` ended, and all that is told of it.
WRITE_ATTEMPTS: Final = """
attempt AS (
    INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, duration,
                          queue_time, charged, outcome, why, detail, log_excerpt, ended_by,
                          cpu_seconds, peak_bytes, read_bytes, made_bytes)
    SELECT written.job_id, written.claim_no, written.tenant_id, written.type, written.lane,
           written.worker_id, written.claimed_at, written.duration, written.queue_time,
           written.charged, written.outcome, written.why, written.detail, written.log_excerpt,
           written.ended_by, written.cpu_seconds, written.peak_bytes, written.read_bytes,
           written.made_bytes
      FROM written
)
SELECT written.job_id, written.claim_no, written.tenant_id, written.type, written.lane,
       written.worker_id, written.duration, written.queue_time, written.outcome, written.why,
       written.state, written.attempts, written.max_attempts, written.correlation_id,
       written.traceparent, written.age, written.cpu_seconds, written.peak_bytes,
       written.read_bytes, written.made_bytes
  FROM written
"""


# What stands of the claim, and what is left of it: in each statement the same.
_CLAIM: Final = """
           jobs.id AS job_id, jobs.claim_no, jobs.tenant_id, jobs.type, jobs.lane,
           jobs.locked_by AS worker_id, jobs.claimed_at, now() - jobs.claimed_at AS duration,
           greatest(jobs.claimed_at - jobs.run_at, interval '0') AS queue_time, jobs.attempts,
           jobs.max_attempts, jobs.correlation_id, jobs.traceparent,
           wanted.cpu_seconds, wanted.peak_bytes, wanted.read_bytes, wanted.made_bytes"""

_USED: Final = "cpu_seconds real, peak_bytes bigint, read_bytes bigint, made_bytes bigint"

_CLAIMS_THAT_STAND: Final = """
      FROM unnest($1::uuid[], $2::bigint[], $3::jsonb[]) AS new (id, claim_no, document)
      JOIN jobs ON jobs.id = new.id AND jobs.claim_no = new.claim_no
       AND jobs.locked_by IS NOT NULL
"""

_LET_GO: Final = """
           locked_by = NULL, locked_at = NULL, updated_at = now()
      FROM ended
     WHERE jobs.id = ended.job_id AND jobs.claim_no = ended.claim_no
       AND jobs.locked_by IS NOT NULL
    RETURNING ended.*
"""

COMPLETE_JOBS: Final = f"""
WITH ended AS MATERIALIZED (
    -- The whole fence, asked of the newest version of each row once that is locked.
    SELECT {_CLAIM}, jobs.claim_charged AS charged, 'completed' AS state, 'completed' AS outcome,
           wanted.why, NULL AS detail, wanted.log_excerpt, wanted.result, NULL::uuid AS ended_by,
           CASE WHEN jobs.parent_job_id IS NOT NULL THEN NULL
                WHEN jobs.claim_no = 1 THEN now() - jobs.run_at
                ELSE now() - jobs.created_at  -- when it was due is gone with the first claim
           END AS age
      {_CLAIMS_THAT_STAND}
      CROSS JOIN LATERAL jsonb_to_record(new.document) AS wanted (
          why text, log_excerpt text, result jsonb, {_USED})
     WHERE jobs.locked_by = $4
     ORDER BY jobs.id
       FOR UPDATE OF jobs
),
written AS (
    UPDATE jobs
       SET state = 'completed', result = ended.result, result_reason = ended.why,
           failure_code = NULL, failure_message = NULL, failure_detail = NULL, finished_at = now(),
           {_LET_GO}
),
{WRITE_ATTEMPTS}
"""  # noqa: S608 - composed at import from the constants above

# Retried and released jobs go on with a ring; of one that failed the database writes the letter.
# Maintenance runs it too, which may not write results: so what completes has its own statement.
END_UNCOMPLETED: Final = f"""
WITH ended AS MATERIALIZED (
    SELECT {_CLAIM}, jobs.priority, coalesce(wanted.lane, jobs.lane) AS new_lane,
           jobs.claim_charged AND wanted.charged AS charged,
           jobs.claim_charged AND NOT wanted.charged AS refund,
           wanted.state, wanted.outcome, wanted.why, wanted.code, wanted.message, wanted.detail,
           wanted.log_excerpt, wanted.due_at, wanted.crashed, $4::uuid AS ended_by,
           NULL::interval AS age
      {_CLAIMS_THAT_STAND}
      CROSS JOIN LATERAL jsonb_to_record(new.document) AS wanted (
          state text, outcome text, why text, code text, message text, detail text,
          log_excerpt text, due_at timestamptz, lane text, charged boolean, crashed boolean,
          {_USED})
),
written AS (
    UPDATE jobs
       SET state = ended.state, lane = ended.new_lane,
           run_at = coalesce(ended.due_at, jobs.run_at),
           attempts = greatest(jobs.attempts - ended.refund::int, 0),
           crashes = jobs.crashes + ended.crashed::int,
           failure_code = ended.code, failure_message = ended.message,
           failure_detail = ended.detail,
           finished_at = CASE ended.state WHEN 'failed' THEN now() END,
           {_LET_GO}
),
bell AS (
    INSERT INTO rings (job_id, lane, tenant_id, type, priority, next_at)
    SELECT written.job_id, written.new_lane, written.tenant_id, written.type, written.priority,
           written.due_at
      FROM written
     WHERE written.state = 'failed_retryable'
),
{WRITE_ATTEMPTS}
"""  # noqa: S608 - composed at import from the constants above


async def complete_jobs(
    connection: Connection,
    worker_id: WorkerId,
    outcomes: Mapping[Fence, Outcome],
    used: Mapping[Fence, Used] = NOTHING_USED,
) -> list[Ended]:
    """Write what completes of it, where the claim still stands and is this worker's.

    What it returns is to be told once that is committed, and not before.
    """
    chosen = [
        (fence, {"why": one.reason, "result": one.result, "log_excerpt": one.log_excerpt})
        for fence, one in outcomes.items()
        if isinstance(one, Completed)
    ]
    return await _write(connection, COMPLETE_JOBS, chosen, worker_id, used)


async def end_claims(
    connection: Connection,
    endings: Sequence[tuple[Held, Outcome]],
    ended_by: UUID | None = None,
    used: Mapping[Fence, Used] = NOTHING_USED,
) -> list[Ended]:
    """Write what does not complete of it; the claims are locked by this transaction.

    `ended_by` is who rescues them, where it is not the holder who writes it. What it returns is to
    be told once the transaction is committed, and not before.
    """
    chosen = [
        (held.fence, _wanted(held, outcome, rescued=ended_by is not None))
        for held, outcome in endings
        if not isinstance(outcome, Completed)
    ]
    return await _write(connection, END_UNCOMPLETED, chosen, ended_by, used)


async def _write(
    connection: Connection,
    statement: str,
    chosen: Sequence[tuple[Fence, Mapping[str, object]]],
    by: UUID | None,
    used: Mapping[Fence, Used],
) -> list[Ended]:
    if not chosen:
        return []
    documents = [{**row, **used.get(fence, {})} for fence, row in chosen]
    job_ids, numbers = [fence[0] for fence, _ in chosen], [fence[1] for fence, _ in chosen]
    rows = await connection.fetch(statement, job_ids, numbers, documents, by)
    return [
        Ended(**dict(row) | {"lane": Lane(row["lane"]), "state": JobState(row["state"])})
        for row in rows
    ]


def _wanted(held: Held, outcome: Retry | Failed | Released, *, rescued: bool) -> dict[str, object]:
    """What is to be written of it, by the names of the columns."""
    row: dict[str, object] = {
        "state": JobState.FAILED if isinstance(outcome, Failed) else JobState.FAILED_RETRYABLE,
        "log_excerpt": outcome.log_excerpt,
        "charged": True,
        "crashed": False,
    }
    if not isinstance(outcome, Failed):
        row["due_at"] = outcome.run_at or held.now
    if isinstance(outcome, Released):
        return row | {"outcome": "released", "why": outcome.why, "charged": False}
    code, message, detail = outcome.code, outcome.message, outcome.detail
    row |= {"why": code, "code": code, "message": message, "detail": detail}
    if isinstance(outcome, Failed):
        return row | {"outcome": "rescued" if rescued else "failed"}
    changed = {"lane": outcome.lane, "charged": outcome.charged, "crashed": outcome.crashed}
    return row | {"outcome": "rescued" if rescued else "retried"} | changed


FREE_TARGETS: Final = f"""
WITH freed AS (
    -- A flagged job is ended without having its target: nobody may have that, and somebody is next.
    UPDATE targets
       SET running_job = NULL
      FROM (SELECT DISTINCT jobs.tenant_id, jobs.target
              FROM jobs
             WHERE jobs.id = ANY ($1::uuid[])) AS locked
     WHERE targets.tenant_id = locked.tenant_id AND targets.target = locked.target
       AND (targets.running_job IS NULL OR targets.running_job = ANY ($2::uuid[]))
    RETURNING targets.tenant_id, targets.target
),
{RING_FREED}
"""  # noqa: S608 - composed at import from the constant of rings.py


async def free_targets(
    connection: Connection, job_ids: Sequence[JobId], ended: Sequence[JobId]
) -> list[Ring]:
    """Let the next job of each target go; a statement of its own, so that it sees what ended.

    Also where none of them was ended now: an answer that was lost had told whom to ring.
    """
    return [ring_of(row) for row in await connection.fetch(FREE_TARGETS, job_ids, ended)]


def rejected(detail: str | None) -> Failed:
    """What becomes of a claim whose outcome the database refuses; `detail` is a word of ours.

    The refused value must not come back in by it.
    """
    return Failed(
        code="settle_rejected", message=failure_sentence("settle_rejected"), detail=detail
    )
