"""What operators see of one job, of any tenant: the whole of it, and why it does not run.

And how many are past retention, as the pruner sees them.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from imagefleet.errors import NotFound
from imagefleet.jobs.model import JobId, JobState, TenantId, Verdict, WorkerId
from imagefleet.jobs.shapes.jobs import AttemptView, RelatedJob, WholeJob
from imagefleet.store.database import Connection
from imagefleet.store.jobs.verdicts import HOLDS, UNTIL, VERDICT, WHY

MOST_RELATED: Final = 20  # jobs beside one that is looked at

GET_OPERATOR_JOB: Final = """
SELECT jobs.*, jobs.id AS job_id, nullif(rings.next_at, 'infinity') AS ring_due_at,
       rings.sent_at AS announced_at, rings.sends AS rung,
       (SELECT letters.id FROM dead_letters AS letters
         WHERE letters.job_id = jobs.id LIMIT 1) AS letter_id,
       (SELECT replays.id FROM jobs AS replays
         WHERE replays.replay_of = jobs.id LIMIT 1) AS replayed_as,
       ARRAY (SELECT jsonb_build_object(
                         'job_id', children.id, 'job_type', children.type, 'status', children.state)
                FROM jobs AS children
               WHERE children.tenant_id = jobs.tenant_id AND children.parent_job_id = jobs.id
               ORDER BY children.id DESC NULLS LAST
               LIMIT $2) AS children
  FROM jobs
  LEFT JOIN rings ON rings.job_id = jobs.id
 WHERE jobs.id = $1
"""


async def get_operator_job(connection: Connection, job_id: JobId) -> WholeJob:
    """Everything about one job, of any tenant."""
    row = await connection.fetchrow(GET_OPERATOR_JOB, job_id, MOST_RELATED)
    if row is None:
        raise NotFound("job")
    return WholeJob.of(row)


LIST_NEIGHBOURS: Final = """
SELECT jobs.id AS job_id, jobs.type, jobs.state, jobs.target_seq
  FROM jobs
 WHERE jobs.tenant_id = $1 AND jobs.target = $2
   AND jobs.state IN ('queued', 'processing', 'failed_retryable')
 ORDER BY jobs.target_seq
 LIMIT $3
"""


async def list_neighbours(
    connection: Connection, tenant_id: TenantId, target: str
) -> tuple[RelatedJob, ...]:
    """The first of what is open at a target, in the order of their submission."""
    rows = await connection.fetch(LIST_NEIGHBOURS, tenant_id, target, MOST_RELATED)
    return tuple(RelatedJob.of(row) for row in rows)


LIST_ATTEMPTS: Final = """
SELECT attempts.claim_no, attempts.worker_id, attempts.lane, attempts.claimed_at, attempts.ended_at,
       attempts.duration, attempts.queue_time, attempts.charged, attempts.outcome, attempts.why,
       attempts.detail, attempts.log_excerpt, attempts.cpu_seconds, attempts.peak_bytes,
       attempts.read_bytes, attempts.made_bytes
  FROM attempts
 WHERE attempts.job_id = $1
 ORDER BY attempts.claim_no
"""


async def list_attempts(connection: Connection, job_id: JobId) -> list[AttemptView]:
    """Every claim of a job that has ended, oldest first."""
    return [AttemptView.of(row) for row in await connection.fetch(LIST_ATTEMPTS, job_id)]


COUNT_PRUNABLE: Final = """
SELECT fleet.retention,
       (SELECT count(*)
          FROM (SELECT
                  FROM jobs
                 WHERE jobs.state IN ('completed', 'failed')
                   AND jobs.finished_at < now() - fleet.retention
                   AND (SELECT count(*) FROM dead_letters
                         WHERE dead_letters.job_id = jobs.id
                           AND dead_letters.acknowledged_at IS NULL) = 0
                 LIMIT $1) AS old) AS prunable
  FROM fleet
"""


async def count_prunable(connection: Connection, *, most: int) -> tuple[timedelta, int]:
    """The retention, and how many jobs are past it and wait to be pruned; `most` or more are one.

    As the pruner sees it: a job with an open dead letter is kept.
    """
    (row,) = await connection.fetch(COUNT_PRUNABLE, most)
    return row["retention"], row["prunable"]


LIST_TAKEN: Final = """
SELECT DISTINCT lanes.lane, types.type
  FROM workers, unnest(workers.lanes) AS lanes (lane), unnest(workers.types) AS types (type)
 WHERE workers.dead_at IS NULL AND workers.draining_since IS NULL
"""


async def list_taken(connection: Connection) -> frozenset[tuple[str, str]]:
    """The lanes and types that living workers take; whatever else waits is unroutable."""
    return frozenset((row["lane"], row["type"]) for row in await connection.fetch(LIST_TAKEN))


MOST_AHEAD: Final = 1000

EXPLAIN_JOB: Final = f"""
SELECT {VERDICT} AS verdict, {UNTIL} AS until, {WHY} AS why,
       job.tenant_id, job.state, job.lane, job.type, job.target, job.claim_no, job.attempts,
       job.priority, job.payload ->> 'slow' AS slow,
       job.max_attempts, job.crashes, job.locked_by, job.cancel_code, job.cancel_requested_at,
       job.failure_code, job.failure_message, job.result_reason, job.finished_at,
       (SELECT CASE attempts.outcome WHEN 'released' THEN attempts.why END
          FROM attempts
         WHERE attempts.job_id = job.id
         ORDER BY attempts.claim_no DESC
         LIMIT 1) AS given_back_for,
       coalesce(job.locked_at < now() - fleet.lock_timeout, false) AS lock_expired,
       holder.host AS holder_host, holder.pid AS holder_pid,
       greatest(now() - holder.beat_at, interval '0') AS holder_silent_for,
       pause.what AS pause, breaker.service AS breaker,
       first.state AS first_state, first.locked_by AS first_locked_by, first.run_at AS first_run_at,
       nullif(rings.next_at, 'infinity') AS ring_due_at, rings.sent_at AS announced_at,
       rings.sends AS rung,
       coalesce(tenants.weight, 1) AS weight, tenants.max_open_jobs,
       CASE WHEN rings.sent_at IS NULL AND rings.next_at < 'infinity'
            THEN (SELECT count(*)
                    FROM (SELECT FROM rings AS elders
                           WHERE elders.lane = rings.lane AND elders.tenant_id = rings.tenant_id
                             AND elders.type = rings.type AND elders.priority = rings.priority
                             AND elders.sent_at IS NULL AND elders.next_at < rings.next_at
                           LIMIT $4) AS bounded) END AS ahead
  FROM jobs AS job
  CROSS JOIN fleet
  LEFT JOIN rings ON rings.job_id = job.id
  LEFT JOIN tenants ON tenants.id = job.tenant_id
  LEFT JOIN targets AS target ON target.tenant_id = job.tenant_id AND target.target = job.target
  LEFT JOIN workers AS holder ON holder.id = job.locked_by
  {HOLDS}
  LEFT JOIN jobs AS first ON first.id = CASE WHEN target.running_job <> job.id
                                             THEN target.running_job ELSE elder.id END
 WHERE job.id = $1
"""  # noqa: S608 - composed at import from the constants of verdicts.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a claim of this job would be told now, and the facts behind it."""

    verdict: Verdict
    until: datetime | None
    why: str | None
    tenant_id: TenantId
    state: JobState
    lane: str
    type: str
    priority: int
    slow: str | None
    """Of an image, what sent it to the lane general."""
    target: str | None
    claim_no: int
    attempts: int
    max_attempts: int
    crashes: int
    locked_by: WorkerId | None
    lock_expired: bool
    holder_host: str | None
    """Of the worker that holds it, as are its process and how long ago it beat."""
    holder_pid: int | None
    holder_silent_for: timedelta | None
    cancel_code: str | None
    cancel_requested_at: datetime | None
    failure_code: str | None
    failure_message: str | None
    result_reason: str | None
    finished_at: datetime | None
    given_back_for: str | None
    """Why the last attempt gave it back, if it did."""
    pause: str | None
    """Scope and name of a pause that matches it, whatever the verdict."""
    breaker: str | None
    """A service that it needs and whose breaker is open, whatever the verdict."""
    first_state: str | None
    """Of the job that comes first on its target, as are the worker that holds it and its time."""
    first_locked_by: WorkerId | None
    first_run_at: datetime | None
    ring_due_at: datetime | None
    """When it is announced next, or was due to be; None: not before its target is free."""
    announced_at: datetime | None
    """Since when a message of it waits to be claimed."""
    rung: int | None
    weight: int
    """How many turns its tenant has where others have one."""
    max_open_jobs: int | None
    ahead: int | None
    """How many of its tenant's jobs of its type and priority take their turn before it.

    Counted as far as MOST_AHEAD.
    """
    living_lanes: tuple[str, ...]
    """From which living workers take something; `living_types`: of which types."""
    living_types: tuple[str, ...]


async def explain_job(connection: Connection, job_id: JobId) -> Explanation:
    """Why does this job not run? The CASE that the claim obeys, asked for the living workers."""
    taken = await list_taken(connection)
    lanes, types = sorted({lane for lane, _ in taken}), sorted({name for _, name in taken})
    row = await connection.fetchrow(EXPLAIN_JOB, job_id, lanes, types, MOST_AHEAD)
    if row is None:
        raise NotFound("job")
    return Explanation(
        **dict(row)
        | {
            "verdict": Verdict(row["verdict"]),
            "state": JobState(row["state"]),
            "until": None if row["verdict"] == Verdict.CLAIMED else row["until"],
            "living_lanes": tuple(lanes),
            "living_types": tuple(types),
        }
    )
