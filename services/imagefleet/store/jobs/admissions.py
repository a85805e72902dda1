"""What is asked before a job is accepted: whether it was before, and whether there is room."""

from collections.abc import Collection, Sequence
from typing import Final

from imagefleet.jobs.model import JobId, Submission, TenantId
from imagefleet.store.database import Connection

IS_STANDING: Final = """
SELECT EXISTS (SELECT FROM jobs
                WHERE jobs.tenant_id = $1 AND jobs.idempotency_key = $2)
       OR EXISTS (SELECT FROM idempotency_aliases
                   WHERE idempotency_aliases.tenant_id = $1
                     AND idempotency_aliases.idempotency_key = $2)
       OR EXISTS (SELECT FROM jobs
                   WHERE jobs.tenant_id = $1 AND jobs.type = $3 AND jobs.dedup_key = $4
                     AND jobs.state IN ('queued', 'processing', 'failed_retryable'))
"""


async def is_standing(
    connection: Connection,
    tenant_id: TenantId,
    *,
    job_type: str,
    idempotency_key: str | None,
    dedup_key: str | None,
) -> bool:
    """Whether a job stands for this request already, so that it would add none."""
    found: bool = await connection.fetchval(
        IS_STANDING, tenant_id, idempotency_key, job_type, dedup_key
    )
    return found


# The same of all jobs of a batch at once: which of them, by their places. No EXISTS, since
# the planner would rather read the whole of a table than look into it a hundred times.
LIST_STANDING: Final = """
SELECT asked.place
  FROM unnest($2::text[], $3::text[], $4::text[])
       WITH ORDINALITY AS asked (idempotency_key, type, dedup_key, place)
 WHERE (SELECT true FROM jobs
         WHERE jobs.tenant_id = $1 AND jobs.idempotency_key = asked.idempotency_key)
       OR (SELECT true FROM idempotency_aliases
            WHERE idempotency_aliases.tenant_id = $1
              AND idempotency_aliases.idempotency_key = asked.idempotency_key)
       OR (SELECT true FROM jobs
            WHERE jobs.tenant_id = $1 AND jobs.type = asked.type
              AND jobs.dedup_key = asked.dedup_key
              AND jobs.state IN ('queued', 'processing', 'failed_retryable'))
"""


async def list_standing(
    connection: Connection, tenant_id: TenantId, asked: Sequence[Submission]
) -> set[int]:
    """The places, from 0, of what a job stands for already."""
    rows = await connection.fetch(
        LIST_STANDING,
        tenant_id,
        [one.idempotency_key for one in asked],
        [one.type for one in asked],
        [one.dedup_key for one in asked],
    )
    return {row["place"] - 1 for row in rows}


LIST_PARENTS: Final = """
SELECT jobs.id
  FROM jobs
 WHERE jobs.id = ANY($2::uuid[]) AND jobs.tenant_id = $1
"""


async def list_parents(
    connection: Connection, tenant_id: TenantId, wanted: Collection[JobId]
) -> set[JobId]:
    """Those of these jobs that the tenant has."""
    rows = await connection.fetch(LIST_PARENTS, tenant_id, list(wanted))
    return {JobId(row["id"]) for row in rows}


# Counts no further than the quota; the caller keeps the answer for a while.
_ROOM: Final = """
SELECT tenants.max_open_jobs
       - (SELECT count(*)
            FROM (SELECT FROM jobs
                   WHERE jobs.tenant_id = $1
                     AND jobs.state IN ('queued', 'processing', 'failed_retryable')
"""

_BY_QUOTA: Final = """
                   LIMIT (SELECT quota.max_open_jobs FROM tenants AS quota WHERE quota.id = $1)
                 ) AS open) AS room
  FROM tenants
 WHERE tenants.id = $1
"""

ROOM_FOR_JOBS: Final = f"{_ROOM}{_BY_QUOTA}"

# No set is counted: they wait for this room, and would wait for each other for ever.
ROOM_FOR_A_SET: Final = f"{_ROOM} AND jobs.type <> 'reprocess_images' {_BY_QUOTA}"


async def room_for_jobs(connection: Connection, tenant_id: TenantId) -> int:
    """How many more jobs this tenant may have open; none for a tenant that does not exist."""
    room: int | None = await connection.fetchval(ROOM_FOR_JOBS, tenant_id)
    return room or 0


async def room_for_a_set(connection: Connection, tenant_id: TenantId) -> int:
    """How many jobs a set of images may submit now, whatever other sets of this tenant are open."""
    room: int | None = await connection.fetchval(ROOM_FOR_A_SET, tenant_id)
    return room or 0


IS_CANCELLABLE: Final = """
SELECT EXISTS (SELECT FROM jobs
                WHERE jobs.id = $1 AND jobs.type <> 'cancel_job'
                  AND jobs.cancel_requested_at IS NULL
                  AND jobs.state IN ('queued', 'processing', 'failed_retryable'))
"""


async def is_cancellable(connection: Connection, job_id: JobId) -> bool:
    """Whether a job is open, nobody has cancelled it yet, and it is not itself a cancellation.

    Each of those could be cancelled by another one, without end.
    """
    found: bool = await connection.fetchval(IS_CANCELLABLE, job_id)
    return found
