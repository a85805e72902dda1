"""What a tenant sees of its jobs: one, a list by page, and whether one has changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

from imagefleet.errors import NotFound, RequestRejected
from imagefleet.jobs.model import JobId, JobState, TenantId
from imagefleet.jobs.shapes.jobs import SECRET, JobView, Results
from imagefleet.store.database import Connection

PUBLIC_COLUMNS: Final = """
       jobs.id AS job_id, jobs.type, jobs.state, jobs.target, jobs.correlation_id,
       jobs.parent_job_id, jobs.progress_done, jobs.progress_total, jobs.result_reason,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_code END
           AS failure_code,
       CASE WHEN jobs.state IN ('failed', 'failed_retryable') THEN jobs.failure_message END
           AS failure_message,
       CASE WHEN jobs.state = 'failed_retryable'
                 OR (jobs.state = 'queued' AND jobs.run_at > jobs.created_at)
            THEN jobs.run_at END AS next_attempt_at,
       jobs.created_at, jobs.updated_at, jobs.finished_at,
       (SELECT api_keys.name FROM api_keys
         WHERE api_keys.tenant_id = jobs.tenant_id
           AND api_keys.id = CASE
               WHEN jobs.created_by ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
               THEN jobs.created_by::uuid END) AS created_by
"""

GET_JOB: Final = f"""
SELECT {PUBLIC_COLUMNS}, jobs.result
  FROM jobs
 WHERE jobs.id = $1 AND jobs.tenant_id = $2
"""  # noqa: S608 - composed at import from the constant above


async def get_job(
    connection: Connection, job_id: JobId, tenant_id: TenantId, results: Results = SECRET
) -> JobView:
    """One job as its tenant may see it; another tenant's is not found."""
    row = await connection.fetchrow(GET_JOB, job_id, tenant_id)
    if row is None:
        raise NotFound("job")
    return JobView.of(row, results)


def newest_first(rows: str, most: str = "$3") -> str:
    """How a page of them ends: so many at most, of those before the id $2.

    The first page is what is before the last of all ids: with `$2 IS NULL OR` a generic plan could
    not start in the middle. NULLS LAST is the order of these indexes and of no other.
    """
    return f"""
   AND {rows}.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
 ORDER BY {rows}.id DESC NULLS LAST
 LIMIT {most}
"""


# Of the ids that were asked for, or of all; within the same index as the page.
SINCE: Final = "AND jobs.id >= coalesce($4::uuid, '00000000-0000-0000-0000-000000000000')"

# One statement for each way to ask, so that each reads one page of an index, whatever the history.
_PAGE: Final = f"{SINCE} {newest_first('jobs')}"

_OF_TENANT: Final = f"""
SELECT {PUBLIC_COLUMNS} FROM jobs
 WHERE jobs.tenant_id = $1
"""  # noqa: S608 - composed at import from the constants above

LIST_JOBS: Final = f"{_OF_TENANT} {_PAGE}"
LIST_BY_STATE: Final = f"{_OF_TENANT} AND jobs.state = $5 {_PAGE}"
LIST_BY_CORRELATION: Final = f"{_OF_TENANT} AND jobs.correlation_id = $5 {_PAGE}"
LIST_BY_TARGET: Final = f"{_OF_TENANT} AND jobs.target = $5 {_PAGE}"
LIST_CHILDREN: Final = f"{_OF_TENANT} AND jobs.parent_job_id = $5 {_PAGE}"

LIST_BY_TYPE: Final = f"""
SELECT {PUBLIC_COLUMNS}
  FROM unnest($6::text[]) AS wanted (state)
  CROSS JOIN LATERAL (
      SELECT jobs.* FROM jobs
       WHERE jobs.tenant_id = $1 AND jobs.type = $5 AND jobs.state = wanted.state
       {_PAGE}
  ) AS jobs
 ORDER BY jobs.id DESC
 LIMIT $3
"""  # noqa: S608 - composed at import from the constants above


_EXCLUSIVE: Final = "Filter by state and type, or by one of correlation id, target and parent job."


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """What to list: everything, by state and type, or by exactly one of the others."""

    state: JobState | None = None
    type: str | None = None
    correlation_id: str | None = None
    target: str | None = None
    parent_job_id: JobId | None = None
    first: JobId | None = None
    """None before this one, of whatever is listed: ids sort by age."""

    def choose(self, listings: Mapping[str, str]) -> tuple[str, tuple[object, ...]]:
        """The one of these, by what they filter, and its arguments behind place and limit."""
        single = {
            "correlation_id": self.correlation_id,
            "target": self.target,
            "parent_job_id": self.parent_job_id,
        }
        asked = {name: value for name, value in single.items() if value is not None}
        by_state_or_type = self.state is not None or self.type is not None
        if len(asked) + by_state_or_type > 1:
            raise RequestRejected("invalid_filter", _EXCLUSIVE)
        for name, value in asked.items():
            return listings[name], (self.first, value)
        if self.type is not None:
            states = [self.state] if self.state is not None else list(JobState)
            return listings["type"], (self.first, self.type, states)
        if self.state is not None:
            return listings["state"], (self.first, self.state)
        return listings["nothing"], (self.first,)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverseenFilter(JobFilter):
    """Which jobs of whomever, for operators; everything that is set must hold."""

    tenant_id: TenantId | None = None
    code: str | None = None
    """Why they failed, for good or until they are tried again."""


_LISTINGS: Final = MappingProxyType(
    {
        "nothing": LIST_JOBS,
        "state": LIST_BY_STATE,
        "type": LIST_BY_TYPE,
        "correlation_id": LIST_BY_CORRELATION,
        "target": LIST_BY_TARGET,
        "parent_job_id": LIST_CHILDREN,
    }
)


async def list_jobs(
    connection: Connection,
    tenant_id: TenantId,
    filters: JobFilter,
    *,
    before: JobId | None = None,
    limit: int = 50,
) -> list[JobView]:
    """A page of a tenant's jobs, newest first; the next one begins `before` its last id."""
    statement, arguments = filters.choose(_LISTINGS)
    rows = await connection.fetch(statement, tenant_id, before, limit, *arguments)
    return [JobView.of(row) for row in rows]


WATCH_JOBS: Final = """
SELECT jobs.id, jobs.updated_at FROM jobs WHERE jobs.id = ANY ($1::uuid[])
"""


async def watch_jobs(connection: Connection, job_ids: Sequence[JobId]) -> Mapping[JobId, datetime]:
    """When each of these jobs changed last; what does not exist is not in the answer."""
    rows = await connection.fetch(WATCH_JOBS, list(job_ids))
    return {JobId(row["id"]): row["updated_at"] for row in rows}
