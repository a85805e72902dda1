"""What is asked before a job is accepted: whether it was before, and whether there is room."""

from typing import Final

from imagefleet.jobs.model import TenantId
from imagefleet.store.database import Connection, translated

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
    with translated():
        found: bool = await connection.fetchval(
            IS_STANDING, tenant_id, idempotency_key, job_type, dedup_key
        )
    return found


# Counts no further than the quota; the caller keeps the answer for a while.
ROOM_FOR_JOBS: Final = """
SELECT tenants.max_open_jobs
       - (SELECT count(*)
            FROM (SELECT FROM jobs
                   WHERE jobs.tenant_id = $1
                     AND jobs.state IN ('queued', 'processing', 'failed_retryable')
                   LIMIT (SELECT quota.max_open_jobs FROM tenants AS quota WHERE quota.id = $1)
                 ) AS open) AS room
  FROM tenants
 WHERE tenants.id = $1
"""


async def room_for_jobs(connection: Connection, tenant_id: TenantId) -> int:
    """How many more jobs this tenant may have open; none for a tenant that does not exist."""
    with translated():
        room: int | None = await connection.fetchval(ROOM_FOR_JOBS, tenant_id)
    return room or 0
