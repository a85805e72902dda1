"""What operators see of jobs, of any tenant: lists, the whole of one, and its attempts."""

from dataclasses import replace
from typing import Final

from imagefleet.errors import NotFound
from imagefleet.jobs.model import JobId, TenantId
from imagefleet.jobs.shapes.jobs import AttemptView, OverseenJobView, WholeJob
from imagefleet.store.database import Connection
from imagefleet.store.jobs.reports import JobFilter, Listings

_COLUMNS: Final = """
       jobs.id AS job_id, jobs.tenant_id, jobs.type, jobs.state, jobs.lane, jobs.priority,
       jobs.target, jobs.attempts, jobs.max_attempts, jobs.crashes, jobs.locked_by,
       jobs.failure_code, jobs.correlation_id, jobs.dedup_key, jobs.parent_job_id, jobs.run_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at
"""

# One tenant, or a page of each tenant, of which the newest are shown: the indexes that lists have
# begin with the tenant, and one more for operators alone would cost every claim its share.
_OWNERS: Final = """
  FROM (SELECT $1::text AS id WHERE $1::text IS NOT NULL
        UNION ALL
        SELECT tenants.id FROM tenants WHERE $1::text IS NULL) AS owners
"""

# As in reports.py, and for the same reasons.
_BEFORE: Final = """
   AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY jobs.id DESC NULLS LAST
 LIMIT $3
"""

_NEWEST: Final = """
 ORDER BY jobs.id DESC
 LIMIT $3
"""

OVERSEE_ALL: Final = f"""
SELECT {_COLUMNS}
  FROM jobs
 WHERE $1::text IS NULL AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
{_NEWEST}
"""  # noqa: S608 - composed at import from the constants above

OVERSEE_TENANT: Final = f"""
SELECT {_COLUMNS} FROM jobs
 WHERE jobs.tenant_id = $1
{_BEFORE}
"""  # noqa: S608 - composed at import from the constants above

OVERSEE_BY_STATE: Final = f"""
SELECT {_COLUMNS}
{_OWNERS}
  CROSS JOIN LATERAL (
      SELECT jobs.* FROM jobs
       WHERE jobs.tenant_id = owners.id AND jobs.state = $4
      {_BEFORE}
  ) AS jobs
{_NEWEST}
"""  # noqa: S608 - composed at import from the constants above

OVERSEE_BY_TYPE: Final = f"""
SELECT {_COLUMNS}
{_OWNERS}
  CROSS JOIN unnest($5::text[]) AS wanted (state)
  CROSS JOIN LATERAL (
      SELECT jobs.* FROM jobs
       WHERE jobs.tenant_id = owners.id AND jobs.type = $4 AND jobs.state = wanted.state
      {_BEFORE}
  ) AS jobs
{_NEWEST}
"""  # noqa: S608 - composed at import from the constants above

OVERSEE_BY_CORRELATION: Final = f"""
SELECT {_COLUMNS}
{_OWNERS}
  CROSS JOIN LATERAL (
      SELECT jobs.* FROM jobs
       WHERE jobs.tenant_id = owners.id AND jobs.correlation_id = $4
      {_BEFORE}
  ) AS jobs
{_NEWEST}
"""  # noqa: S608 - composed at import from the constants above

OVERSEE_BY_TARGET: Final = f"""
SELECT {_COLUMNS}
{_OWNERS}
  CROSS JOIN LATERAL (
      SELECT jobs.* FROM jobs
       WHERE jobs.tenant_id = owners.id AND jobs.target = $4
      {_BEFORE}
  ) AS jobs
{_NEWEST}
"""  # noqa: S608 - composed at import from the constants above

OVERSEE_CHILDREN: Final = f"""
SELECT {_COLUMNS}
{_OWNERS}
  CROSS JOIN LATERAL (
      SELECT jobs.* FROM jobs
       WHERE jobs.tenant_id = owners.id AND jobs.parent_job_id = $4
      {_BEFORE}
  ) AS jobs
{_NEWEST}
"""  # noqa: S608 - composed at import from the constants above


_OF_ALL_TENANTS: Final = Listings(
    unfiltered=OVERSEE_ALL,
    by_state=OVERSEE_BY_STATE,
    by_type=OVERSEE_BY_TYPE,
    by_correlation=OVERSEE_BY_CORRELATION,
    by_target=OVERSEE_BY_TARGET,
    children=OVERSEE_CHILDREN,
)
_OF_ONE_TENANT: Final = replace(_OF_ALL_TENANTS, unfiltered=OVERSEE_TENANT)


async def oversee_jobs(
    connection: Connection,
    filters: JobFilter,
    *,
    tenant_id: TenantId | None = None,
    before: JobId | None = None,
    limit: int = 50,
) -> list[OverseenJobView]:
    """A page of jobs of one tenant or of all, newest first; the next begins `before` its last."""
    listings = _OF_ALL_TENANTS if tenant_id is None else _OF_ONE_TENANT
    statement, arguments = listings.choose(filters)
    rows = await connection.fetch(statement, tenant_id, before, limit, *arguments)
    return [OverseenJobView.of(row) for row in rows]


GET_OPERATOR_JOB: Final = """
SELECT jobs.*, nullif(rings.next_at, 'infinity') AS ring_due_at, rings.sent_at AS announced_at,
       rings.sends AS rung
  FROM jobs
  LEFT JOIN rings ON rings.job_id = jobs.id
 WHERE jobs.id = $1
"""


async def get_operator_job(connection: Connection, job_id: JobId) -> WholeJob:
    """Everything about one job, of any tenant."""
    row = await connection.fetchrow(GET_OPERATOR_JOB, job_id)
    if row is None:
        raise NotFound("job")
    return WholeJob.of(row)


LIST_ATTEMPTS: Final = """
SELECT attempts.claim_no, attempts.worker_id, attempts.lane, attempts.claimed_at, attempts.ended_at,
       attempts.duration, attempts.queue_time, attempts.charged, attempts.outcome, attempts.why,
       attempts.detail, attempts.log_excerpt
  FROM attempts
 WHERE attempts.job_id = $1
 ORDER BY attempts.claim_no
"""


async def list_attempts(connection: Connection, job_id: JobId) -> list[AttemptView]:
    """Every claim of a job that has ended, oldest first."""
    rows = await connection.fetch(LIST_ATTEMPTS, job_id)
    return [AttemptView.of(row) for row in rows]
