"""A tenant's own targets: what waits at one, in its order, and holding it back.

The role of the API writes no pause: two functions of migration 0027 do, for a tenant's own targets
alone, and they leave alone what operators have paused.
"""

from collections.abc import Mapping
from typing import Final

from imagefleet.errors import LimitReached, NotFound, RequestRejected
from imagefleet.jobs.bulk import CancelWalk
from imagefleet.jobs.kinds import CancelJobs
from imagefleet.jobs.model import JobId, TenantId
from imagefleet.jobs.shapes.images import TargetPause
from imagefleet.jobs.shapes.jobs import JobView
from imagefleet.store.database import Connection
from imagefleet.store.jobs.reports import PUBLIC_COLUMNS
from imagefleet.store.jobs.rings import ring_head
from imagefleet.store.jobs.verdicts import pauses_target

MOST_PAUSED: Final = 1000  # targets of a tenant that it has paused itself: operators list them all

_BY_OPERATORS: Final = "Operators have paused this target; only they resume it."
_TOO_MANY: Final = f"A tenant may have {MOST_PAUSED} targets paused: resume some first."

FIND_TARGET: Final = f"""
SELECT asked.target, pauses.paused_at, pauses.paused_by, pauses.reason, pauses.of_tenant
  FROM (SELECT $1::text AS tenant_id, $2::text AS target) AS asked
  LEFT JOIN targets ON targets.tenant_id = asked.tenant_id AND targets.target = asked.target
  LEFT JOIN pauses ON {pauses_target("asked")}
 WHERE targets.target IS NOT NULL OR pauses.name IS NOT NULL
"""  # noqa: S608 - composed at import from the rule of verdicts.py


async def find_target(
    connection: Connection, tenant_id: TenantId, target: str
) -> TargetPause | None:
    """How a target is paused, or None; NotFound where nothing of this tenant was ever about it."""
    row = await connection.fetchrow(FIND_TARGET, tenant_id, target)
    if row is None:
        raise NotFound("target")
    return None if row["paused_at"] is None else TargetPause.of(row)


LIST_WAITING: Final = f"""
SELECT {PUBLIC_COLUMNS}, jobs.target_seq
  FROM jobs
 WHERE jobs.tenant_id = $1 AND jobs.target = $2 AND jobs.target_seq > $3
   AND jobs.state IN ('queued', 'processing', 'failed_retryable')
 ORDER BY jobs.target_seq
 LIMIT $4
"""  # noqa: S608 - composed at import from the constant of reports.py


async def list_waiting(
    connection: Connection, tenant_id: TenantId, target: str, *, after: int, limit: int
) -> tuple[list[JobView], int | None]:
    """A page of a target's open jobs in the order they run in; and where the next one begins."""
    rows = await connection.fetch(LIST_WAITING, tenant_id, target, after, limit + 1)
    page = rows[:limit]
    more = page[-1]["target_seq"] if len(rows) > limit else None
    return [JobView.of(row) for row in page], more


PAUSE_OWN: Final = "SELECT pause_own_target($1, $2, $3, $4, $5)"


async def pause_target(
    connection: Connection, tenant_id: TenantId, target: str, *, by: str, reason: str
) -> None:
    """Hold back what waits at a target from now on; RequestRejected where operators do already."""
    paused = await connection.fetchval(PAUSE_OWN, tenant_id, target, by, reason, MOST_PAUSED)
    if paused == "full":
        raise LimitReached("paused_targets", _TOO_MANY)
    if paused != "paused":
        raise RequestRejected("paused_by_operators", _BY_OPERATORS)


RESUME_OWN: Final = "SELECT resume_own_target($1, $2)"


async def resume_target(connection: Connection, tenant_id: TenantId, target: str) -> None:
    """Lift a pause of the tenant's own, and ring who stands first there."""
    if not await connection.fetchval(RESUME_OWN, tenant_id, target):
        raise RequestRejected("paused_by_operators", _BY_OPERATORS)
    await ring_head(connection, tenant_id, target)


FIND_LAST: Final = """
SELECT jobs.id, jobs.target_seq
  FROM jobs
 WHERE jobs.tenant_id = $1 AND jobs.target = $2 AND jobs.target_seq < $3
   AND jobs.state IN ('queued', 'processing', 'failed_retryable')
 ORDER BY jobs.target_seq DESC
 LIMIT $4
"""


async def find_last(
    connection: Connection, tenant_id: TenantId, target: str, before: int, most: int
) -> tuple[list[JobId], int]:
    """The last open jobs of a target before this place, and the place of the first of them."""
    rows = await connection.fetch(FIND_LAST, tenant_id, target, before, most)
    return [JobId(row["id"]) for row in rows], rows[-1]["target_seq"] if rows else before


# Places are given under the target's lock: whatever has one before this has been committed, and
# what is accepted from now on has a later one.
BEGIN_WALK_OF_TARGET: Final = """
WITH locked AS MATERIALIZED (
    SELECT targets.next_seq
      FROM targets
     WHERE targets.tenant_id = $1 AND targets.target = $2
       FOR UPDATE
)
SELECT coalesce(max(locked.next_seq), 0) AS place,
       least($3::timestamptz, clock_timestamp()) AS until
  FROM locked
"""


async def begin_walk_of_target(
    connection: Connection, tenant_id: TenantId, wanted: CancelJobs
) -> CancelWalk:
    """Behind the last job of one target."""
    (row,) = await connection.fetch(
        BEGIN_WALK_OF_TARGET, tenant_id, wanted.target, wanted.submitted_before
    )
    return CancelWalk(until=row["until"], parents=False, place=row["place"])


def told(pause: TargetPause | None) -> Mapping[str, object] | None:
    """As the audit keeps it."""
    return None if pause is None else pause.model_dump(mode="json")
