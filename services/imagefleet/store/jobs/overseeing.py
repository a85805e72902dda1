"""Jobs of any tenant, as operators list them: each list by the index that knows most of it.

What that index does not know is looked for among a bounded number of candidates, so a page may be
short, or empty, and not be the last; it says where to go on.
"""

from collections.abc import Sequence
from typing import Final

from imagefleet.jobs.model import JobId, JobState
from imagefleet.jobs.shapes.jobs import OverseenJobPage, OverseenJobView
from imagefleet.store.database import Connection
from imagefleet.store.jobs.reports import SINCE, OverseenFilter, newest_first

MOST_CANDIDATES: Final = 2_000
"""Candidates of one page, where there is something that their index does not know."""

FAILURES: Final = (JobState.FAILED, JobState.FAILED_RETRYABLE)


def _overseen(candidates: str) -> str:
    """A page of those of these candidates that are what is asked for, and how far it looked."""
    return f"""
WITH looked AS MATERIALIZED ({candidates}),
found AS (
    SELECT jobs.*
      FROM (SELECT looked.id FROM looked ORDER BY looked.id DESC) AS looked -- a full page ends it
      CROSS JOIN LATERAL (
          SELECT jobs.* FROM jobs
           WHERE jobs.id = looked.id AND ($1::text IS NULL OR jobs.tenant_id = $1)
             AND ($6::text IS NULL OR jobs.state = $6)
             AND ($7::text IS NULL OR jobs.type = $7)
             AND ($8::text IS NULL OR (jobs.failure_code = $8
                                       AND jobs.state IN ('failed', 'failed_retryable')))
             AND ($9::text IS NULL OR jobs.correlation_id = $9)
             AND ($10::text IS NULL OR jobs.target = $10)
             AND ($11::uuid IS NULL OR jobs.parent_job_id = $11)
           LIMIT 1
      ) AS jobs
     ORDER BY looked.id DESC
     LIMIT $5
)
SELECT (SELECT count(*) FROM looked) AS looked,
       (SELECT looked.id FROM looked ORDER BY looked.id LIMIT 1) AS last,
       jobs.id AS job_id, jobs.tenant_id, jobs.type, jobs.state, jobs.lane, jobs.priority,
       jobs.target, jobs.attempts, jobs.max_attempts, jobs.crashes, jobs.locked_by,
       jobs.failure_code, jobs.failure_message, jobs.correlation_id, jobs.dedup_key,
       jobs.parent_job_id, jobs.run_at, jobs.created_at, jobs.updated_at, jobs.finished_at
  FROM (SELECT) AS always
  LEFT JOIN found AS jobs ON true
 ORDER BY jobs.id DESC
"""  # noqa: S608 - composed at import


_PAGE: Final = f"{SINCE} {newest_first('jobs')}"


_TENANTS: Final = """
           (SELECT $1::text AS tenant_id WHERE $1::text IS NOT NULL
            UNION ALL
            SELECT tenants.id FROM tenants WHERE $1::text IS NULL)"""
_STATES: Final = f"""
           (SELECT tenant.tenant_id, wanted.state
              FROM {_TENANTS} AS tenant
              CROSS JOIN unnest($12::text[]) AS wanted (state))"""  # noqa: S608


# One tenant, or all of them: the indexes that lists have begin with the tenant, and one more for
# operators alone would cost every claim its share. The newest of each is looked for first: a page
# has nothing of those whose newest are older than a page of others' newest.
def _of_each(condition: str = "", owners: str = _TENANTS) -> str:
    of_one = f"""
          SELECT jobs.id FROM jobs
           WHERE jobs.tenant_id = owner.tenant_id {condition} {SINCE}"""  # noqa: S608
    return _overseen(f"""
    SELECT candidates.id
      FROM (SELECT owner.*
              FROM {owners} AS owner
              CROSS JOIN LATERAL ({of_one} {newest_first("jobs", "1")}) AS newest
             ORDER BY newest.id DESC
             LIMIT $3) AS owner
      CROSS JOIN LATERAL ({of_one} {newest_first("jobs")}) AS candidates
     ORDER BY candidates.id DESC
     LIMIT $3""")  # noqa: S608 - composed at import


OVERSEE_ALL: Final = _overseen(f"""
    SELECT jobs.id FROM jobs
     WHERE jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff') {SINCE}
     ORDER BY jobs.id DESC
     LIMIT $3""")  # noqa: S608 - composed at import
OVERSEE_TENANT: Final = _of_each()
OVERSEE_BY_STATE: Final = _of_each("AND jobs.state = owner.state", _STATES)
OVERSEE_BY_TYPE: Final = _of_each("AND jobs.type = $7 AND jobs.state = owner.state", _STATES)
OVERSEE_BY_CORRELATION: Final = _of_each("AND jobs.correlation_id = $9")
OVERSEE_BY_TARGET: Final = _of_each("AND jobs.target = $10")
OVERSEE_CHILDREN: Final = _of_each("AND jobs.parent_job_id = $11")

# State by state, in the words that their index has.
_FAILED: Final = " UNION ALL ".join(
    f"""
      (SELECT jobs.id FROM jobs
        WHERE jobs.failure_code = $8 AND jobs.state = '{state}' {_PAGE})"""  # noqa: S608
    for state in FAILURES
)
OVERSEE_BY_CODE: Final = _overseen(
    f"SELECT failed.id FROM ({_FAILED}) AS failed ORDER BY failed.id DESC LIMIT $3"  # noqa: S608
)


async def oversee_jobs(
    connection: Connection, asked: OverseenFilter, *, before: JobId | None = None, limit: int = 50
) -> OverseenJobPage:
    """A page of jobs, newest first; the next one begins `before` its cursor."""
    statement, known, states = _way(asked)
    told = {name: getattr(asked, name) for name in _CONDITIONS}
    exact = known >= {name for name, value in told.items() if value is not None}
    most = limit + 1 if exact else MOST_CANDIDATES
    rows = await connection.fetch(
        statement, asked.tenant_id, before, most, asked.first, limit + 1, *told.values(), *states
    )
    found = [OverseenJobView.of(row) for row in rows if row["job_id"] is not None]
    more: JobId | None = rows[0]["last"] if rows[0]["looked"] == most else None
    if len(found) > limit:
        more = found[limit - 1].job_id
    return OverseenJobPage(jobs=found[:limit], next_cursor=more)


_CONDITIONS: Final = ("state", "type", "code", "correlation_id", "target", "parent_job_id")


def _way(asked: OverseenFilter) -> tuple[str, set[str], Sequence[Sequence[JobState]]]:
    """The statement, which conditions its candidates fulfil, and the states that it asks for."""
    if asked.target is not None:
        return OVERSEE_BY_TARGET, {"target"}, ()
    if asked.parent_job_id is not None:
        return OVERSEE_CHILDREN, {"parent_job_id"}, ()
    if asked.correlation_id is not None:
        return OVERSEE_BY_CORRELATION, {"correlation_id"}, ()
    if asked.code is not None and asked.tenant_id is None:
        return OVERSEE_BY_CODE, {"code"}, ()
    possible = tuple(JobState) if asked.code is None else FAILURES
    states = [state for state in possible if asked.state in {None, state}]
    if asked.type is not None:
        return OVERSEE_BY_TYPE, {"type", "state"}, (states,)
    if asked.state is not None or asked.code is not None:
        return OVERSEE_BY_STATE, {"state"}, (states,)
    return OVERSEE_ALL if asked.tenant_id is None else OVERSEE_TENANT, set(), ()
