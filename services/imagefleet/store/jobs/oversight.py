"""Reading across tenants, for operators: lists of jobs, and who works on them."""

from dataclasses import replace
from typing import Final

from imagefleet.jobs.model import JobId, TenantId, WorkerId
from imagefleet.jobs.shapes.fleet import HeldJobView, WorkerView
from imagefleet.jobs.shapes.jobs import OverseenJobView
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


LIST_WORKERS: Final = """
SELECT workers.id AS worker_id, workers.host, workers.pid, workers.version, workers.lanes,
       workers.types, workers.slots, workers.started_at, workers.beat_at,
       greatest(now() - workers.beat_at, interval '0') AS silent_for, workers.draining_since,
       workers.dead_at, workers.dead_why
  FROM workers
 WHERE workers.dead_at IS NULL OR ($1 AND workers.dead_at > now() - interval '1 day')
 ORDER BY workers.dead_at DESC NULLS FIRST, workers.started_at, workers.id
 LIMIT $2
"""

LIST_HELD: Final = """
SELECT jobs.locked_by, jobs.id AS job_id, jobs.tenant_id, jobs.type, jobs.lane, jobs.claim_no,
       jobs.claimed_at, jobs.progress_done, jobs.progress_total,
       jobs.cancel_requested_at IS NOT NULL AS cancel_requested
  FROM jobs
 WHERE jobs.state = 'processing' AND jobs.locked_by = ANY ($1::uuid[])
 ORDER BY jobs.claimed_at, jobs.id
"""


async def list_workers(
    connection: Connection, *, with_dead: bool = False, limit: int = 1000
) -> list[WorkerView]:
    """The living workers, and with `with_dead` those that ended within the last day."""
    rows = await connection.fetch(LIST_WORKERS, with_dead, limit)
    held = await connection.fetch(LIST_HELD, [row["worker_id"] for row in rows])
    by_worker: dict[WorkerId, list[HeldJobView]] = {}
    for row in held:
        by_worker.setdefault(row["locked_by"], []).append(HeldJobView.of(row))
    return [
        WorkerView.of(
            dict(row)
            | {
                "slots": sum(row["slots"]),
                "lane_slots": dict(zip(row["lanes"], row["slots"], strict=True)),
                "held": by_worker.get(row["worker_id"], []),
            }
        )
        for row in rows
    ]
