"""Why may this job run, or why not? Asked once, here: the claim obeys it, `explain` repeats it.

Both statements bring a relation `job` (the row), `target` (its target's `running_job`) and `fleet`
(the lock timeout), join what may hold a job back (HOLDS) and read the answer off one CASE.
"""

from typing import Final


def pauses_target(job: str) -> str:
    """Whether a row of `pauses` holds back the target of this row."""
    return (
        f"(pauses.scope = 'target' AND pauses.tenant_id = {job}.tenant_id"
        f" AND pauses.name = {job}.target)"
    )


def pauses_tenant(job: str) -> str:
    """Whether a row of `pauses` holds back the tenant of this row, or its jobs of this type."""
    return (
        f"(pauses.scope = 'tenant' AND pauses.tenant_id = {job}.tenant_id"
        f" AND pauses.name IN ('', {job}.type))"
    )


def pauses_job(job: str) -> str:
    """Whether a row of `pauses` is about this row; LOOK_AT_HOLDS alone asks for whole groups."""
    return f"""(pauses.scope = 'all'
          OR (pauses.scope = 'lane' AND pauses.name = {job}.lane)
          OR (pauses.scope = 'type' AND pauses.name = {job}.type)
          OR {pauses_target(job)}
          OR {pauses_tenant(job)})"""


HOLDS: Final = f"""
  LEFT JOIN LATERAL (
      SELECT concat_ws(':', pauses.scope,
                       CASE pauses.scope WHEN 'tenant' THEN pauses.tenant_id END,
                       nullif(pauses.name, '')) AS what
        FROM pauses
       WHERE {pauses_job("job")}
       ORDER BY pauses.scope
       LIMIT 1
  ) AS pause ON NOT job.preempts
  LEFT JOIN LATERAL (
      SELECT breakers.service,
             CASE WHEN breakers.forced THEN now() + interval '60 seconds'
                  ELSE breakers.retry_at END AS until
        FROM circuit_breakers AS breakers
       WHERE breakers.service = ANY (job.services)
         AND breakers.state = 'open'
         AND (breakers.forced OR breakers.retry_at > now())
       ORDER BY breakers.forced DESC, breakers.retry_at DESC
       LIMIT 1
  ) AS breaker ON true
  LEFT JOIN LATERAL (
      -- Who must go first: an older open job of the target, also a retry in backoff, but none that
      -- was submitted for later or only waits to be settled as cancelled. Nobody goes before the
      -- job that has the target, though an older one may have become due meanwhile.
      SELECT elders.id
        FROM jobs AS elders
       WHERE elders.tenant_id = job.tenant_id
         AND elders.target = job.target
         AND elders.target_seq < job.target_seq
         AND elders.state IN ('queued', 'processing', 'failed_retryable')
         AND (elders.state = 'processing'
              OR (elders.cancel_requested_at IS NULL
                  AND NOT (elders.state = 'queued' AND elders.run_at > now())))
       ORDER BY elders.target_seq
       LIMIT 1
  ) AS elder ON job.target IS NOT NULL AND NOT job.preempts
            AND target.running_job IS DISTINCT FROM job.id
"""  # noqa: S608 - composed at import from the rule above

# $2 lanes and $3 types are the asking worker's; for explain, those of all living workers.
VERDICT: Final = """
  CASE
      WHEN job.state IN ('completed', 'failed') THEN 'finished'
      WHEN job.state = 'processing' AND job.locked_at >= now() - fleet.lock_timeout THEN 'busy'
      WHEN job.cancel_requested_at IS NOT NULL THEN 'cancelled'
      WHEN job.state = 'processing' AND job.attempts >= job.max_attempts THEN 'exhausted'
      -- An expired lock that may not be taken over now has no ring that could be set: its message
      -- is all there is, so it is told to come back.
      WHEN job.state = 'processing' AND (job.lane <> ALL ($2::text[])
                                         OR job.type <> ALL ($3::text[])
                                         OR pause.what IS NOT NULL
                                         OR breaker.service IS NOT NULL) THEN 'busy'
      WHEN job.lane <> ALL ($2::text[]) THEN 'elsewhere'
      WHEN job.type <> ALL ($3::text[]) THEN 'unroutable'
      WHEN job.state <> 'processing' AND job.run_at > now() THEN 'not_due'
      WHEN pause.what IS NOT NULL THEN 'paused'
      WHEN target.running_job <> job.id OR elder.id IS NOT NULL THEN 'target_busy'
      WHEN breaker.service IS NOT NULL THEN 'breaker'
      ELSE 'claimed'
  END
"""

UNTIL: Final = """
  CASE
      WHEN job.state IN ('completed', 'failed') THEN NULL
      WHEN job.state = 'processing' AND job.locked_at >= now() - fleet.lock_timeout
          THEN job.locked_at + fleet.lock_timeout
      WHEN job.run_at > now() THEN job.run_at
      WHEN breaker.service IS NOT NULL THEN breaker.until
      ELSE now() + interval '60 seconds'
  END
"""

WHY: Final = """
  CASE
      WHEN pause.what IS NOT NULL THEN pause.what
      WHEN target.running_job <> job.id THEN target.running_job::text
      WHEN elder.id IS NOT NULL THEN elder.id::text
      ELSE breaker.service
  END
"""

# Whom a freed target is for. A retry in backoff keeps its place and blocks the younger ones; a
# preempting job goes first, but not before its time. Whoever resumes a paused target asks again.
NEXT_OF_TARGET: Final = f"""
  CROSS JOIN LATERAL (
      SELECT head.id
        FROM ((SELECT 1 AS turn, jobs.id, jobs.run_at, jobs.preempts
                 FROM jobs
                WHERE jobs.tenant_id = freed.tenant_id AND jobs.target = freed.target
                  AND jobs.state IN ('queued', 'failed_retryable')
                  AND jobs.cancel_requested_at IS NULL
                  AND jobs.preempts AND jobs.run_at <= now()
                ORDER BY jobs.target_seq
                LIMIT 1)
              UNION ALL
              (SELECT 2, jobs.id, jobs.run_at, jobs.preempts
                 FROM jobs
                WHERE jobs.tenant_id = freed.tenant_id AND jobs.target = freed.target
                  AND jobs.state IN ('queued', 'failed_retryable')
                  AND jobs.cancel_requested_at IS NULL
                  AND NOT (jobs.state = 'queued' AND jobs.run_at > now())
                ORDER BY jobs.target_seq
                LIMIT 1)
               ORDER BY turn
               LIMIT 1) AS head
       WHERE head.run_at <= now()
         AND (head.preempts
              OR (SELECT pauses.scope
                    FROM pauses
                   WHERE {pauses_target("freed")}) IS NULL)
  ) AS next
"""  # noqa: S608 - composed at import from the rule above
