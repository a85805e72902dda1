"""What the database holds, row by row, for expectations."""

from datetime import timedelta
from typing import Any

from asyncpg import Record

from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from tests.support.factories import TENANT


async def job_row(connection: Connection, job_id: JobId) -> Record:
    row = await connection.fetchrow("SELECT * FROM jobs WHERE id = $1", job_id)
    assert row is not None
    return row


async def ring_row(connection: Connection, job_id: JobId) -> Record | None:
    """With `next_in`, the span from now until it is due; None while it is parked."""
    return await connection.fetchrow(
        "SELECT *, nullif(next_at, 'infinity') - now() AS next_in, next_at = 'infinity' AS parked "
        "FROM rings WHERE job_id = $1",
        job_id,
    )


async def the_ring(connection: Connection, job_id: JobId) -> Record:
    """The same where there must be one."""
    ring = await ring_row(connection, job_id)
    assert ring is not None
    return ring


async def due_now(connection: Connection, job_id: JobId) -> bool:
    """Without any message, and with nothing to wait for but its turn."""
    ring = await the_ring(connection, job_id)
    if ring["parked"] or ring["sent_at"] is not None:
        return False
    return bool(ring["next_in"] <= timedelta(0) and ring["sends"] == 0)


async def attempts_rows(connection: Connection, job_id: JobId) -> list[Record]:
    return await connection.fetch(
        "SELECT * FROM attempts WHERE job_id = $1 ORDER BY claim_no", job_id
    )


async def running_job(connection: Connection, target: str) -> JobId | None:
    running: JobId | None = await connection.fetchval(
        "SELECT running_job FROM targets WHERE tenant_id = $1 AND target = $2", TENANT, target
    )
    return running


async def audit_rows(connection: Connection, after: int = 0) -> list[dict[str, Any]]:
    """What was done, as the audit tells it; after the line of this number, oldest first."""
    rows = await connection.fetch("SELECT * FROM audit WHERE id > $1 ORDER BY id", after)
    return [dict(row) for row in rows]


async def newest_audit(connection: Connection) -> int:
    """The number of its last line."""
    newest: int = await connection.fetchval("SELECT coalesce(max(id), 0) FROM audit")
    return newest
