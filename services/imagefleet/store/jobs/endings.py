"""How a claim ends, in SQL: completed, retried, failed or released, with its one attempts row.

`settling` (a worker's own outcomes) and `rescue` (of a dead worker's claims) both end claims, under
different roles and for different reasons, but through these statements only. Each names
`(job_id, claim_no)` and `state = 'processing'`: a claim that is not held any more is left alone.

Callers lock first, targets before jobs and each in order, and write after: `lock_targets`,
`lock_claims`, `end_claims`, `free_targets`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final
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
    TenantId,
    WorkerId,
)
from imagefleet.store.database import Connection
from imagefleet.store.jobs.rings import RING_NEXT, ring_of

LOCK_TARGETS: Final = """
SELECT targets.tenant_id, targets.target
  FROM (SELECT DISTINCT jobs.tenant_id, jobs.target
          FROM jobs
         WHERE jobs.id = ANY ($1::uuid[])) AS wanted
  JOIN targets ON targets.tenant_id = wanted.tenant_id AND targets.target = wanted.target
 ORDER BY targets.tenant_id, targets.target
   FOR UPDATE OF targets
"""


async def lock_targets(
    connection: Connection, job_ids: Sequence[JobId]
) -> list[tuple[TenantId, str]]:
    """Lock what these jobs are about, before the jobs themselves: the order every writer keeps."""
    rows = await connection.fetch(LOCK_TARGETS, list(job_ids))
    return [(TenantId(row["tenant_id"]), row["target"]) for row in rows]


LOCK_CLAIMS: Final = """
SELECT jobs.id AS job_id, jobs.claim_no, jobs.attempts, jobs.max_attempts, jobs.crashes, jobs.lane,
       jobs.cancel_code, jobs.tenant_id, jobs.target, jobs.type, jobs.locked_by AS worker_id,
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
    return {(row["job_id"], row["claim_no"]): _held(row) for row in rows}


_STANDING: Final = tuple(Standing.__dataclass_fields__)  # the columns have the names of the fields
_HELD: Final = tuple(Held.__dataclass_fields__.keys() - {"standing"})


def _held(row: Record) -> Held:
    code = row["cancel_code"]
    standing = {name: row[name] for name in _STANDING} | {
        "lane": Lane(row["lane"]),
        "cancel_code": None if code is None else CancelCode(code),
    }
    return Held(**{name: row[name] for name in _HELD}, standing=Standing(**standing))


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

_CLAIMS_THAT_STAND: Final = """
      FROM unnest($1::uuid[], $2::bigint[], $3::jsonb[]) AS new (id, claim_no, document)
      JOIN jobs ON jobs.id = new.id AND jobs.claim_no = new.claim_no AND jobs.state = 'processing'
"""

_LET_GO: Final = """
           locked_by = NULL, locked_at = NULL, updated_at = now()
      FROM ended
     WHERE jobs.id = ended.id AND jobs.claim_no = ended.claim_no AND jobs.state = 'processing'
    RETURNING jobs.id
"""

COMPLETE_JOBS: Final = f"""
WITH ended AS MATERIALIZED (
    SELECT {_CLAIM}, jobs.claim_charged AS charged, 'completed' AS outcome, wanted.why,
           NULL AS detail, wanted.log_excerpt, wanted.result, $4::uuid AS ended_by
      {_CLAIMS_THAT_STAND}
      CROSS JOIN LATERAL jsonb_to_record(new.document) AS wanted (
          why text, log_excerpt text, result jsonb)
),
written AS (
    UPDATE jobs
       SET state = 'completed', result = ended.result, result_reason = ended.why,
           failure_code = NULL, failure_message = NULL, failure_detail = NULL, finished_at = now(),
           {_LET_GO}
)
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
           wanted.log_excerpt, wanted.due_at, wanted.crashed, $4::uuid AS ended_by
      {_CLAIMS_THAT_STAND}
      CROSS JOIN LATERAL jsonb_to_record(new.document) AS wanted (
          state text, outcome text, why text, code text, message text, detail text,
          log_excerpt text, due_at timestamptz, lane text, charged boolean, crashed boolean)
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
    SELECT ended.id, ended.new_lane, ended.tenant_id, ended.type, ended.priority, ended.due_at
      FROM ended
      JOIN written ON written.id = ended.id
     WHERE ended.state = 'failed_retryable'
)
{WRITE_ATTEMPTS}
"""  # noqa: S608 - composed at import from the constants above


async def end_claims(
    connection: Connection,
    endings: Sequence[tuple[Held, Outcome]],
    *,
    retried_as: str = "retried",
    failed_as: str = "failed",
    ended_by: UUID | None = None,
) -> list[Ended]:
    """Write every outcome; the claims are locked by this transaction.

    `ended_by` is who writes it, where that is not the holder. What it returns is to be told once
    the transaction is committed, and not before.
    """
    completed = [(held, outcome) for held, outcome in endings if isinstance(outcome, Completed)]
    others = [(held, outcome) for held, outcome in endings if not isinstance(outcome, Completed)]
    ended: list[Ended] = []
    for statement, chosen in ((COMPLETE_JOBS, completed), (END_UNCOMPLETED, others)):
        if not chosen:
            continue
        rows = await connection.fetch(
            statement,
            [held.job_id for held, _ in chosen],
            [held.claim_no for held, _ in chosen],
            [_wanted(held, outcome, retried_as, failed_as) for held, outcome in chosen],
            ended_by,
        )
        known = {held.fence: (held, outcome) for held, outcome in chosen}
        ended += [_ended(row, *known[row["job_id"], row["claim_no"]]) for row in rows]
    return ended


def _wanted(held: Held, outcome: Outcome, retried_as: str, failed_as: str) -> dict[str, object]:
    """What is to be written of it, by the names of the columns."""
    row: dict[str, object] = {"state": _LEAVES[type(outcome)], "log_excerpt": outcome.log_excerpt}
    if isinstance(outcome, Completed):
        return row | {"why": outcome.reason, "result": outcome.result}
    row |= {"charged": True, "crashed": False}
    if not isinstance(outcome, Failed):
        row["due_at"] = outcome.run_at or held.now
    if isinstance(outcome, Released):
        return row | {"outcome": "released", "why": outcome.why, "charged": False}
    code, message, detail = outcome.code, outcome.message, outcome.detail
    row |= {"why": code, "code": code, "message": message, "detail": detail}
    if isinstance(outcome, Failed):
        return row | {"outcome": failed_as}
    changed = {"lane": outcome.lane, "charged": outcome.charged, "crashed": outcome.crashed}
    return row | {"outcome": retried_as} | changed


_LEAVES: Final[Mapping[type[Outcome], JobState]] = MappingProxyType(
    {
        Completed: JobState.COMPLETED,
        Retry: JobState.FAILED_RETRYABLE,
        Failed: JobState.FAILED,
        Released: JobState.FAILED_RETRYABLE,
    }
)


def _ended(row: Record, held: Held, outcome: Outcome) -> Ended:
    return Ended(
        **dict(row) | {"lane": Lane(row["lane"])},
        state=_LEAVES[type(outcome)],
        tenant_id=held.tenant_id,
        type=held.type,
        attempts=held.standing.attempts,
        max_attempts=held.standing.max_attempts,
        correlation_id=held.correlation_id,
        traceparent=held.traceparent,
    )


FREE_TARGETS: Final = """
UPDATE targets SET running_job = NULL
 WHERE (targets.tenant_id, targets.target) IN (
     SELECT freed.tenant_id, freed.target
       FROM unnest($1::text[], $2::text[]) AS freed (tenant_id, target))
   AND targets.running_job = ANY ($3::uuid[])
"""


async def free_targets(
    connection: Connection, targets: Sequence[tuple[TenantId, str]], job_ids: Sequence[JobId]
) -> list[Ring]:
    """Let the next job of each target go; a statement of its own, so that it sees what ended."""
    if not targets:
        return []
    tenants, names = [tenant for tenant, _ in targets], [name for _, name in targets]
    await connection.execute(FREE_TARGETS, tenants, names, list(job_ids))
    return [ring_of(row) for row in await connection.fetch(RING_NEXT, tenants, names)]


def rejected(detail: str | None) -> Failed:
    """What becomes of a claim whose outcome the database refuses; `detail` is a word of ours.

    The refused value must not come back in by it.
    """
    return Failed(
        code="settle_rejected", message=failure_sentence("settle_rejected"), detail=detail
    )
