"""Why a job does not run: what a claim would be told now, and the facts behind it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from imagefleet.errors import NotFound
from imagefleet.jobs.model import JobId, JobState, TenantId, Verdict, WorkerId
from imagefleet.store.database import Connection
from imagefleet.store.jobs.verdicts import HOLDS, UNTIL, VERDICT, WHY

LIVING_WORKERS: Final = """
SELECT coalesce(array_agg(DISTINCT lanes.lane), '{}') AS lanes,
       coalesce(array_agg(DISTINCT types.type), '{}') AS types
  FROM workers, unnest(workers.lanes) AS lanes (lane), unnest(workers.types) AS types (type)
 WHERE workers.dead_at IS NULL AND workers.draining_since IS NULL
"""

MOST_AHEAD: Final = 1000

EXPLAIN_JOB: Final = f"""
SELECT {VERDICT} AS verdict, {UNTIL} AS until, {WHY} AS why,
       job.tenant_id, job.state, job.lane, job.type, job.target, job.claim_no, job.attempts,
       job.max_attempts, job.crashes, job.locked_by, job.cancel_code, job.cancel_requested_at,
       job.failure_code, job.result_reason, job.finished_at,
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
    result_reason: str | None
    finished_at: datetime | None
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
    living = await connection.fetchrow(LIVING_WORKERS)
    lanes, types = (living["lanes"], living["types"]) if living is not None else ([], [])
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
