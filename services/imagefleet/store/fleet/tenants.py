"""Tenants as operators see them: what they have open, who waits, and what limits them.

They are created with their keys (keys.py), by another role. Nothing here counts without an end: a
tenant may have a million jobs open, and there may be ten thousand tenants.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from imagefleet.errors import NotFound, RequestRejected
from imagefleet.jobs.limits import LIMITS, OPEN_JOBS
from imagefleet.jobs.model import Lane, TenantId
from imagefleet.jobs.shapes.fleet import QueueingView
from imagefleet.jobs.shapes.rules import LimitView, TenantView, WholeTenantView
from imagefleet.store.database import Connection
from imagefleet.store.fleet.live_settings import MOST_LIMITS

WEIGHT: Final = "weight"
DEFAULTS: Final[Mapping[str, int]] = {OPEN_JOBS: LIMITS[OPEN_JOBS].default, WEIGHT: 1}
"""Those of the columns of `tenants`, which undoing restores.

Every other limit is a row of `tenant_limits` where it deviates from the default.
"""
MOST_OPEN_COUNTED: Final = 100_000  # of one tenant
MOST_OPEN_LISTED: Final = 1_000  # of each in a list
LEVELS_OF_A_LANE: Final = 10_000  # as a dispatcher looks at, some 50 ms
MOST_WAITING_COUNTED: Final = 1_000  # of each of the few that are shown

_TENANT: Final = "tenant"

_PAUSED: Final = """
       ARRAY (SELECT pauses.name FROM pauses
               WHERE pauses.scope = 'tenant' AND pauses.tenant_id = tenants.id
               ORDER BY pauses.name) AS paused"""

LIST_TENANTS: Final = f"""
SELECT tenants.id, tenants.created_at, tenants.weight, tenants.max_open_jobs,
       (SELECT count(*)
          FROM (SELECT FROM jobs
                 WHERE jobs.tenant_id = tenants.id
                   AND jobs.state IN ('queued', 'processing', 'failed_retryable')
                 LIMIT $3) AS open) AS open_jobs, {_PAUSED}
  FROM tenants
 WHERE tenants.id > $1
 ORDER BY tenants.id
 LIMIT $2
"""  # noqa: S608 - composed at import from the constant above


async def list_tenants(connection: Connection, *, after: str = "", limit: int) -> list[TenantView]:
    """A page in the order of their ids."""
    rows = await connection.fetch(LIST_TENANTS, after, limit, MOST_OPEN_LISTED)
    return [
        TenantView.of(dict(row) | {"open_jobs_is_at_least": row["open_jobs"] >= MOST_OPEN_LISTED})
        for row in rows
    ]


# State by state: each counts by itself, and no further than is asked.
def _count(state: str) -> str:
    return f"""
       (SELECT count(*)
          FROM (SELECT FROM jobs
                 WHERE jobs.tenant_id = tenants.id AND jobs.state = '{state}'
                 LIMIT $2) AS open) AS {state}"""  # noqa: S608 - of the words below


GET_TENANT: Final = f"""
SELECT tenants.id, tenants.created_at, tenants.weight, tenants.max_open_jobs, {_PAUSED},
       {_count("queued")}, {_count("processing")}, {_count("failed_retryable")}
  FROM tenants
 WHERE tenants.id = $1
"""  # noqa: S608 - composed at import from the fragments above

READ_LIMITS: Final = """
SELECT limits.name, limits.value, limits.set_by, limits.reason, limits.set_at
  FROM tenant_limits AS limits
 WHERE limits.tenant_id = $1
 ORDER BY limits.name
"""


async def get_tenant(connection: Connection, tenant_id: TenantId) -> WholeTenantView:
    """One of them, with those of its limits that deviate from the default."""
    row = await connection.fetchrow(GET_TENANT, tenant_id, MOST_OPEN_COUNTED)
    if row is None:
        raise NotFound(_TENANT)
    limits = await connection.fetch(READ_LIMITS, tenant_id)
    counts = (row["queued"], row["processing"], row["failed_retryable"])
    told = {
        "open_jobs": sum(counts),
        "open_jobs_is_at_least": max(counts) >= MOST_OPEN_COUNTED,
        "limits": [LimitView.of(limit) for limit in limits],
    }
    return WholeTenantView.of(dict(row) | told)


KNOWS_TENANT: Final = """
SELECT EXISTS (SELECT FROM tenants WHERE tenants.id = $1)
"""


async def require_tenant(connection: Connection, tenant_id: TenantId) -> None:
    """NotFound for a tenant that does not exist."""
    if not await connection.fetchval(KNOWS_TENANT, tenant_id):
        raise NotFound(_TENANT)


LOCK_TENANT: Final = """
SELECT tenants.weight, tenants.max_open_jobs
  FROM tenants
 WHERE tenants.id = $1
   FOR NO KEY UPDATE
"""

SET_QUOTA: Final = """
UPDATE tenants SET max_open_jobs = $2, weight = $3 WHERE id = $1
"""

SET_LIMITS: Final = """
INSERT INTO tenant_limits AS limits (tenant_id, name, value, set_by, reason)
SELECT $1, new.name, new.value, $4, $5
  FROM unnest($2::text[], $3::bigint[]) AS new (name, value)
    ON CONFLICT (tenant_id, name)
    DO UPDATE SET value = excluded.value, set_by = excluded.set_by, reason = excluded.reason,
                  set_at = now()
"""

# No more than are read: who follows them would silently lack the last ones. It is asked after the
# rows are written, which one transaction at a time does (each counts up `live_version`).
COUNT_LIMITS: Final = """
SELECT count(*) FROM (SELECT FROM tenant_limits LIMIT $1) AS bounded
"""

RESET_LIMITS: Final = """
DELETE FROM tenant_limits
 WHERE tenant_limits.tenant_id = $1 AND tenant_limits.name = ANY ($2::text[])
"""

Limits: TypeAlias = Mapping[str, int | None]
"""By name; None is the default."""


async def set_limits(
    connection: Connection, tenant_id: TenantId, wanted: Limits, *, by: str, reason: str
) -> tuple[Limits, Limits]:
    """Set or reset these; what those were, and what they are. Inside a transaction of the caller.

    NotFound for a tenant that does not exist, RequestRejected where there would be more limits of
    tenants than are followed. In force at once where Postgres is asked (the quota
    of open jobs, within seconds; the weight, with the next look of a dispatcher).
    """
    row = await connection.fetchrow(LOCK_TENANT, tenant_id)
    if row is None:
        raise NotFound(_TENANT)
    rows = await connection.fetch(READ_LIMITS, tenant_id)
    stood = {limit["name"]: limit["value"] for limit in rows}
    before = {OPEN_JOBS: row["max_open_jobs"], WEIGHT: row["weight"]} | stood
    after = {name: DEFAULTS.get(name) if value is None else value for name, value in wanted.items()}
    if after.keys() & DEFAULTS.keys():
        quota = before | after
        await connection.execute(SET_QUOTA, tenant_id, quota[OPEN_JOBS], quota[WEIGHT])
    counted = {name: value for name, value in after.items() if name not in DEFAULTS}
    new = {name: value for name, value in counted.items() if value is not None}
    if new:
        names, values = list(new), list(new.values())
        await connection.execute(SET_LIMITS, tenant_id, names, values, by, reason)
    if counted.keys() - new.keys():
        await connection.execute(RESET_LIMITS, tenant_id, list(counted.keys() - new.keys()))
    if new.keys() - stood.keys():
        await _refuse_more(connection)
    return {name: before.get(name) for name in wanted}, after


async def _refuse_more(connection: Connection) -> None:
    if await connection.fetchval(COUNT_LIMITS, MOST_LIMITS + 1) > MOST_LIMITS:
        sentence = f"Tenants have {MOST_LIMITS} limits of their own; undo some of them first."
        raise RequestRejected("invalid_setting", sentence)


# The levels as a dispatcher finds them, in all lanes: one probe for whatever comes behind the one
# before. So this costs what there are levels of, whatever waits in them; only of the few tenants
# that are shown are rows counted, and those not far.
RANK_TENANTS: Final = """
WITH RECURSIVE level AS (
    SELECT lanes.lane, earliest.tenant_id, earliest.type, earliest.priority, earliest.next_at,
           1 AS place
      FROM unnest($1::text[]) AS lanes (lane)
      CROSS JOIN LATERAL (
          SELECT rings.tenant_id, rings.type, rings.priority, rings.next_at
            FROM rings
           WHERE rings.lane = lanes.lane AND rings.sent_at IS NULL AND rings.tenant_id IS NOT NULL
           ORDER BY rings.tenant_id, rings.type, rings.priority, rings.next_at
           LIMIT 1
      ) AS earliest
    UNION ALL
    SELECT level.lane, following.tenant_id, following.type, following.priority, following.next_at,
           level.place + 1
      FROM level
      CROSS JOIN LATERAL (
          SELECT rings.tenant_id, rings.type, rings.priority, rings.next_at
            FROM rings
           WHERE rings.lane = level.lane AND rings.sent_at IS NULL AND rings.tenant_id IS NOT NULL
             AND (rings.tenant_id, rings.type, rings.priority)
                 > (level.tenant_id, level.type, level.priority)
           ORDER BY rings.tenant_id, rings.type, rings.priority, rings.next_at
           LIMIT 1
      ) AS following
     WHERE level.place < $2
),
queueing AS MATERIALIZED (
    SELECT level.tenant_id, max(level.place) AS place,
           min(level.next_at) FILTER (WHERE level.next_at <= now()) AS oldest_due
      FROM level
     GROUP BY level.tenant_id
),
announced AS MATERIALIZED (
    SELECT bounded.tenant_id, count(*) AS jobs
      FROM (SELECT sent.tenant_id
              FROM unnest($1::text[]) AS lanes (lane)
              CROSS JOIN generate_series(1, 8) AS times (sends)
              CROSS JOIN LATERAL (
                  SELECT rings.tenant_id FROM rings
                   WHERE rings.lane = lanes.lane AND rings.sends = times.sends
                     AND rings.sent_at IS NOT NULL
                   LIMIT 5000) AS sent
             LIMIT 20000) AS bounded
     WHERE bounded.tenant_id IS NOT NULL
     GROUP BY bounded.tenant_id
),
running AS MATERIALIZED (
    SELECT jobs.tenant_id, count(*) AS jobs
      FROM jobs
     WHERE jobs.state = 'processing'
     GROUP BY jobs.tenant_id
),
shown AS MATERIALIZED (
    SELECT everybody.tenant_id, queueing.oldest_due
      FROM (SELECT queueing.tenant_id FROM queueing
            UNION SELECT announced.tenant_id FROM announced
            UNION SELECT running.tenant_id FROM running) AS everybody
      LEFT JOIN queueing ON queueing.tenant_id = everybody.tenant_id
     ORDER BY queueing.oldest_due NULLS LAST, everybody.tenant_id
     LIMIT $3
)
SELECT shown.tenant_id, shown.oldest_due,
       (SELECT count(*)
          FROM (SELECT FROM unnest($1::text[]) AS lanes (lane)
                 CROSS JOIN LATERAL (
                     SELECT FROM rings
                      WHERE rings.lane = lanes.lane AND rings.tenant_id = shown.tenant_id
                        AND rings.sent_at IS NULL
                      LIMIT $4) AS waiting
                 LIMIT $4) AS bounded) AS waiting,
       coalesce(announced.jobs, 0) AS announced, coalesce(running.jobs, 0) AS processing,
       (SELECT pauses.scope FROM pauses
         WHERE pauses.scope = 'tenant' AND pauses.tenant_id = shown.tenant_id
         LIMIT 1) IS NOT NULL AS paused,
       coalesce((SELECT max(queueing.place) FROM queueing) < $2, true) AS complete
  FROM shown
  LEFT JOIN announced ON announced.tenant_id = shown.tenant_id
  LEFT JOIN running ON running.tenant_id = shown.tenant_id
 ORDER BY shown.oldest_due NULLS LAST, shown.tenant_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Who waits, the longest first."""

    tenants: list[QueueingView]
    complete: bool
    """False: there are more levels than one look reads, and nobody knows who waits longest."""


async def rank_tenants(connection: Connection, *, limit: int) -> Ranking:
    """Who has waited longest for its turn; then those of whom nothing waits and something runs."""
    rows = await connection.fetch(
        RANK_TENANTS, list(Lane), LEVELS_OF_A_LANE, limit, MOST_WAITING_COUNTED
    )
    tenants = [QueueingView.of(row) for row in rows]
    return Ranking(tenants=tenants, complete=all(row["complete"] for row in rows))
