"""Live rows that steer the fleet: workers, cancel flags, pauses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from imagefleet.errors import NotFound
from imagefleet.jobs.lifecycle import ResultReason
from imagefleet.jobs.model import CancelCode, JobId, Lane, PauseScope, Ring, TenantId, WorkerId
from imagefleet.jobs.shapes.fleet import PauseView
from imagefleet.store.database import Connection
from imagefleet.store.jobs.rings import RINGING, URGENT, ring_of
from imagefleet.store.jobs.targets import ring_head

REGISTER_WORKER: Final = """
INSERT INTO workers (id, host, pid, version, lanes, types, slots)
VALUES ($1, $2, $3, $4, $5, $6, $7)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCard:
    """Who a worker process is. The id is fresh at every start; host and pid are only labels."""

    worker_id: WorkerId
    host: str
    pid: int
    version: str
    types: tuple[str, ...]
    slots: Mapping[Lane, int]
    """How many jobs at once in each lane it takes; general ones serve the fast lane too."""


async def register_worker(connection: Connection, card: WorkerCard) -> None:
    """Enter the registry; until then a worker can neither beat nor claim."""
    await connection.execute(
        REGISTER_WORKER,
        card.worker_id,
        card.host,
        card.pid,
        card.version,
        list(card.slots),
        list(card.types),
        list(card.slots.values()),
    )


START_DRAIN: Final = """
UPDATE workers SET draining_since = coalesce(draining_since, now()) WHERE id = $1
"""


async def start_drain(connection: Connection, worker_id: WorkerId) -> None:
    """Say that this worker takes nothing new."""
    await connection.execute(START_DRAIN, worker_id)


# Excludes the claim, which holds this row FOR KEY SHARE; the next statement sees what it took.
LOCK_WORKER: Final = """
SELECT workers.id FROM workers WHERE workers.id = $1 FOR UPDATE
"""

RETIRE_WORKER: Final = """
UPDATE workers SET dead_at = now(), dead_why = 'stopped'
 WHERE id = $1 AND dead_at IS NULL
   AND NOT EXISTS (SELECT FROM jobs WHERE jobs.locked_by = $1 AND jobs.state = 'processing')
RETURNING id
"""


async def retire_worker(connection: Connection, worker_id: WorkerId) -> bool:
    """Leave the registry; refused while claims are held, which the rescuer still looks after."""
    async with connection.transaction():
        await connection.execute(LOCK_WORKER, worker_id)
        return await connection.fetchrow(RETIRE_WORKER, worker_id) is not None


FLAG_CANCEL: Final = """
WITH victim AS MATERIALIZED (
    SELECT jobs.id, jobs.state, jobs.cancel_requested_at
      FROM jobs
     WHERE jobs.id = $1 AND ($2::text IS NULL OR jobs.tenant_id = $2)
       FOR UPDATE
),
flagged AS (
    UPDATE jobs
       SET cancel_requested_at = now(), cancel_code = $3, cancel_detail = $4,
           updated_at = now()
      FROM victim
     WHERE jobs.id = victim.id AND jobs.cancel_requested_at IS NULL
       AND victim.state IN ('queued', 'processing', 'failed_retryable')
)
SELECT victim.state FROM victim
"""

RING_FLAGGED: Final = f"""
UPDATE rings SET next_at = now(), sent_at = NULL, sends = 0, priority = {URGENT}
  FROM jobs
 WHERE rings.job_id = $1 AND jobs.id = rings.job_id
RETURNING {RINGING}
"""  # noqa: S608 - composed at import from the constants of rings.py


async def cancel_job(
    connection: Connection,
    job_id: JobId,
    *,
    code: CancelCode,
    detail: str | None,
    tenant_id: TenantId | None = None,
) -> tuple[ResultReason, tuple[Ring, ...]]:
    """Flag a job for good and ring it: whoever claims or holds it ends it as `code`.

    Answers `requested` or `already_finished`, and the doorbell to ring now.
    """
    async with connection.transaction():
        row = await connection.fetchrow(FLAG_CANCEL, job_id, tenant_id, code, detail)
        if row is None:
            raise NotFound("job")
        if row["state"] in {"completed", "failed"}:
            return ResultReason.ALREADY_FINISHED, ()
        rings = await connection.fetch(RING_FLAGGED, job_id)
    return ResultReason.REQUESTED, tuple(ring_of(row) for row in rings)


RETRY_NOW: Final = """
UPDATE jobs SET run_at = now(), updated_at = now()
 WHERE id = $1 AND state IN ('queued', 'failed_retryable') AND run_at > now()
"""


RING_JOB: Final = f"""
UPDATE rings SET next_at = now(), sent_at = NULL, sends = 0
  FROM jobs
 WHERE rings.job_id = $1 AND jobs.id = rings.job_id
RETURNING {RINGING}
"""  # noqa: S608 - composed at import from the constant of rings.py


async def ring_now(connection: Connection, job_id: JobId) -> tuple[Ring, ...]:
    """Retry now: make a waiting job due and ring it; empty when it does not wait for its time."""
    async with connection.transaction():
        await connection.execute(RETRY_NOW, job_id)
        return tuple(ring_of(row) for row in await connection.fetch(RING_JOB, job_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A live pause; `name` is empty for everything, `tenant_id` is set for a target or a tenant.

    Of a tenant `name` is the type of its jobs that are held back, and empty for all of them.
    """

    scope: PauseScope
    name: str = ""
    tenant_id: str = ""


PAUSE: Final = """
INSERT INTO pauses (scope, tenant_id, name, refuse_new, paused_by, reason)
VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (scope, tenant_id, name)
    DO UPDATE SET refuse_new = excluded.refuse_new, paused_by = excluded.paused_by,
                  reason = excluded.reason
"""


async def pause(
    connection: Connection, what: Pause, *, by: str, reason: str, refuse_new: bool = False
) -> None:
    """Hold back what matches from now on; running jobs finish. `refuse_new` refuses submits too."""
    await connection.execute(PAUSE, what.scope, what.tenant_id, what.name, refuse_new, by, reason)


FIND_PAUSE: Final = """
SELECT pauses.refuse_new, pauses.paused_by, pauses.reason, pauses.paused_at
  FROM pauses
 WHERE pauses.scope = $1 AND pauses.tenant_id = $2 AND pauses.name = $3
   FOR UPDATE
"""


async def find_pause(connection: Connection, what: Pause) -> Mapping[str, object] | None:
    """How this is paused, as the audit keeps it of whoever changes that; None: it is not."""
    row = await connection.fetchrow(FIND_PAUSE, what.scope, what.tenant_id, what.name)
    return None if row is None else dict(row)


RESUME: Final = """
DELETE FROM pauses WHERE scope = $1 AND tenant_id = $2 AND name = $3 RETURNING scope
"""


async def resume(connection: Connection, what: Pause) -> bool:
    """Lift a pause; False: there was none. The dispatcher finds what it held back by itself.

    But for a target: those who wait there are parked, and the first of them is rung here. Whoever
    dies between the two has left that to the step that looks after forgotten heads.
    """
    lifted = await connection.fetchrow(RESUME, what.scope, what.tenant_id, what.name)
    if lifted is None:
        return False
    if what.scope is PauseScope.TARGET:
        await ring_head(connection, TenantId(what.tenant_id), what.name)
    return True


FIND_REFUSAL: Final = """
SELECT pauses.scope, pauses.name, pauses.reason
  FROM pauses
 WHERE pauses.refuse_new
   AND (pauses.scope = 'all'
        OR (pauses.scope = 'type' AND pauses.name = $1)
        OR (pauses.scope = 'lane' AND pauses.name = $2)
        OR (pauses.scope = 'tenant' AND pauses.tenant_id = $3 AND pauses.name IN ('', $1)))
 ORDER BY pauses.scope
 LIMIT 1
"""


async def find_refusal(
    connection: Connection, job_type: str, lane: Lane, tenant_id: TenantId
) -> str | None:
    """Why new jobs of this type, lane and tenant are refused at present, if they are."""
    row = await connection.fetchrow(FIND_REFUSAL, job_type, lane, tenant_id)
    if row is None:
        return None
    return f"{row['scope']} {row['name']}".strip() + f": {row['reason']}"


# What runs is read once, by the index of what workers hold.
LIST_PAUSES: Final = """
WITH running AS MATERIALIZED (
    SELECT jobs.tenant_id, jobs.type, jobs.lane, jobs.target
      FROM jobs
     WHERE jobs.state = 'processing' AND NOT jobs.preempts
)
SELECT pauses.scope, pauses.tenant_id, pauses.name, pauses.refuse_new, pauses.paused_by,
       pauses.reason, pauses.paused_at,
       (SELECT count(*) FROM running
         WHERE pauses.scope = 'all'
            OR (pauses.scope = 'lane' AND pauses.name = running.lane)
            OR (pauses.scope = 'type' AND pauses.name = running.type)
            OR (pauses.scope = 'target' AND pauses.tenant_id = running.tenant_id
                AND pauses.name = running.target)
            OR (pauses.scope = 'tenant' AND pauses.tenant_id = running.tenant_id
                AND pauses.name IN ('', running.type))) AS running
  FROM pauses
 ORDER BY pauses.scope, pauses.tenant_id, pauses.name
"""


async def list_pauses(connection: Connection) -> list[PauseView]:
    """Every pause, and how many jobs that it would have held back still run."""
    return [PauseView.of(row) for row in await connection.fetch(LIST_PAUSES)]
