"""The targets of jobs that end: locked before the jobs, then free for whoever is next."""

from collections.abc import Sequence
from typing import Final

from imagefleet.jobs.model import JobId, Ring, TenantId
from imagefleet.store.database import Connection
from imagefleet.store.jobs.rings import RINGING, ring_of
from imagefleet.store.jobs.verdicts import NEXT_OF_TARGET

LOCK_TARGETS: Final = """
SELECT targets.tenant_id, targets.target
  FROM (SELECT DISTINCT jobs.tenant_id, jobs.target
          FROM jobs
         WHERE jobs.id = ANY ($1::uuid[])) AS wanted
  JOIN targets ON targets.tenant_id = wanted.tenant_id AND targets.target = wanted.target
 ORDER BY targets.tenant_id, targets.target
   FOR UPDATE OF targets
"""


async def lock_targets(
    connection: Connection, job_ids: Sequence[JobId]
) -> list[tuple[TenantId, str]]:
    """Lock what these jobs are about, before the jobs themselves: the order every writer keeps."""
    rows = await connection.fetch(LOCK_TARGETS, list(job_ids))
    return [(TenantId(row["tenant_id"]), row["target"]) for row in rows]


FREE_TARGETS: Final = """
UPDATE targets SET running_job = NULL
 WHERE (targets.tenant_id, targets.target) IN (
     SELECT freed.tenant_id, freed.target
       FROM unnest($1::text[], $2::text[]) AS freed (tenant_id, target))
   AND targets.running_job = ANY ($3::uuid[])
"""

RING_NEXT: Final = f"""
WITH next AS MATERIALIZED (
    SELECT next.id
      FROM unnest($1::text[], $2::text[]) AS freed (tenant_id, target)
      JOIN targets ON targets.tenant_id = freed.tenant_id AND targets.target = freed.target
      {NEXT_OF_TARGET}
     WHERE targets.running_job IS NULL
),
bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
      JOIN next ON next.id = rings.job_id
     ORDER BY rings.job_id
       FOR UPDATE OF rings
)
UPDATE rings
   SET next_at = now(), sent_at = NULL, sends = 0
  FROM bell
  JOIN jobs ON jobs.id = bell.job_id
 WHERE rings.job_id = bell.job_id
RETURNING {RINGING}
"""  # noqa: S608 - composed at import from the constants of verdicts.py and rings.py


# An insert, as the target may be that of a first job whose submit has seen the pause and not yet
# committed: no lock finds its row, but an insert waits for it.
LOCK_TARGET: Final = """
INSERT INTO targets (tenant_id, target)
VALUES ($1, $2)
    ON CONFLICT (tenant_id, target) DO UPDATE SET next_seq = targets.next_seq
"""


async def ring_head(connection: Connection, tenant_id: TenantId, target: str) -> None:
    """Make the first of a target due, if that is free; under its lock, so that no submit is missed.

    The dispatcher sends it.
    """
    async with connection.transaction():
        await connection.execute(LOCK_TARGET, tenant_id, target)
        await connection.execute(RING_NEXT, [tenant_id], [target])


async def free_targets(
    connection: Connection, targets: Sequence[tuple[TenantId, str]], job_ids: Sequence[JobId]
) -> list[Ring]:
    """Let the next job of each target go; a statement of its own, so that it sees what ended."""
    if not targets:
        return []
    tenants, names = [tenant for tenant, _ in targets], [name for _, name in targets]
    await connection.execute(FREE_TARGETS, tenants, names, list(job_ids))
    rows = await connection.fetch(RING_NEXT, tenants, names)
    return [ring_of(row) for row in rows]
