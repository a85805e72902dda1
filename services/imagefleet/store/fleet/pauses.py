"""Pauses: who set them and why. What a pause is about is a rule of `jobs/verdicts.py`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from imagefleet.jobs.model import PauseScope, TenantId
from imagefleet.jobs.shapes.fleet import PauseView
from imagefleet.store.database import Connection
from imagefleet.store.jobs.rings import ring_head
from imagefleet.store.jobs.verdicts import pauses_job


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


# What runs is read once, by the index of what workers hold.
LIST_PAUSES: Final = f"""
WITH running AS MATERIALIZED (
    SELECT jobs.tenant_id, jobs.type, jobs.lane, jobs.target
      FROM jobs
     WHERE jobs.state = 'processing' AND NOT jobs.preempts
)
SELECT pauses.scope, pauses.tenant_id, pauses.name, pauses.refuse_new, pauses.paused_by,
       pauses.reason, pauses.paused_at,
       (SELECT count(*) FROM running
         WHERE {pauses_job("running")}) AS running
  FROM pauses
 ORDER BY pauses.scope, pauses.tenant_id, pauses.name
"""  # noqa: S608 - composed at import from the rule in verdicts.py


async def list_pauses(connection: Connection) -> list[PauseView]:
    """Every pause, and how many jobs that it would have held back still run."""
    return [PauseView.of(row) for row in await connection.fetch(LIST_PAUSES)]
