"""What operators turned, as every process follows it, and how it is turned, in a transaction."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from imagefleet.store.database import Connection

MOST_SETTINGS: Final = 1000
"""Of rows that there may be: far more than there are services and job types to name."""
MOST_LIMITS: Final = 20_000

# One row and one number, as long as nothing changed. All of it is of one snapshot.
READ_LIVE: Final = """
SELECT live_version.version,
       CASE WHEN live_version.version IS DISTINCT FROM $1 THEN coalesce(
           (SELECT jsonb_object_agg(turned.name, turned.value)
              FROM (SELECT live_settings.name, live_settings.value FROM live_settings
                     ORDER BY live_settings.name LIMIT $2) AS turned), '{}') END AS settings,
       CASE WHEN live_version.version IS DISTINCT FROM $1 THEN coalesce(
           (SELECT jsonb_agg(jsonb_build_array(own.tenant_id, own.name, own.value))
              FROM (SELECT tenant_limits.tenant_id, tenant_limits.name, tenant_limits.value
                      FROM tenant_limits
                     ORDER BY tenant_limits.tenant_id, tenant_limits.name LIMIT $3) AS own),
           '[]') END AS limits
  FROM live_version
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRows:
    """What stands at one moment."""

    version: int
    settings: Mapping[str, object]
    limits: Mapping[tuple[str, str], int]


async def read_live(connection: Connection, known: int | None) -> LiveRows | None:
    """Read everything that is turned; None while the version that is known stands."""
    (row,) = await connection.fetch(READ_LIVE, known, MOST_SETTINGS, MOST_LIMITS)
    if row["settings"] is None:
        return None
    return LiveRows(
        version=row["version"],
        settings=row["settings"],
        limits={(tenant, name): value for tenant, name, value in row["limits"]},
    )


TELL_DEFAULTS: Final = """
INSERT INTO live_defaults AS told (process, defaults)
VALUES ($1, $2)
    ON CONFLICT (process) DO UPDATE
       SET defaults = told.defaults || excluded.defaults, told_at = now()
 WHERE NOT told.defaults @> excluded.defaults
"""


async def tell_defaults(
    connection: Connection, process: str, defaults: Mapping[str, object]
) -> None:
    """Say what holds in this process while nothing is turned; who said it last is believed.

    What this one has no word on, as a worker of another lane, stays as it was told.
    """
    await connection.execute(TELL_DEFAULTS, process, dict(defaults))


LIST_TURNED: Final = """
SELECT live_settings.name, live_settings.value, live_settings.set_by, live_settings.reason,
       live_settings.set_at
  FROM live_settings
 ORDER BY live_settings.name
 LIMIT $1
"""

READ_DEFAULTS: Final = """
SELECT live_defaults.process, live_defaults.defaults,
       (SELECT coalesce(fleet.default_retention, fleet.retention) FROM fleet) AS retention
  FROM (VALUES ('api'), ('worker'), ('maintenance')) AS processes (name)
  LEFT JOIN live_defaults ON live_defaults.process = processes.name
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
    """One setting that is not as the environment says."""

    value: object
    set_by: str
    reason: str
    set_at: datetime


async def list_turned(connection: Connection) -> dict[str, Turned]:
    """Read every row, by name, also those that no release knows."""
    rows = [dict(row) for row in await connection.fetch(LIST_TURNED, MOST_SETTINGS)]
    return {row.pop("name"): Turned(**row) for row in rows}


async def read_defaults(connection: Connection) -> tuple[dict[str, Mapping[str, object]], int]:
    """Read what processes said of their environments, and the retention that is not turned."""
    rows = await connection.fetch(READ_DEFAULTS)
    retention: timedelta = rows[0]["retention"]
    told = {row["process"]: row["defaults"] for row in rows if row["process"] is not None}
    return told, retention.days


TURN: Final = """
INSERT INTO live_settings AS live (name, value, set_by, reason)
VALUES ($1, $2, $3, $4)
    ON CONFLICT (name) DO UPDATE
       SET value = excluded.value, set_by = excluded.set_by, reason = excluded.reason,
           set_at = now()
"""

TURN_BACK: Final = "DELETE FROM live_settings WHERE name = $1"

# Statements read it here. What stood before the first turn is what the reset gives back.
TURN_RETENTION: Final = """
UPDATE fleet
   SET default_retention = coalesce(fleet.default_retention, fleet.retention),
       retention = make_interval(days => $1)
"""

TURN_RETENTION_BACK: Final = """
UPDATE fleet
   SET retention = coalesce(fleet.default_retention, fleet.retention), default_retention = NULL
"""


async def turn(connection: Connection, name: str, value: object, *, by: str, reason: str) -> None:
    """Write a row."""
    await connection.execute(TURN, name, value, by, reason)


async def turn_back(connection: Connection, name: str) -> None:
    """Delete it."""
    await connection.execute(TURN_BACK, name)


async def turn_retention(connection: Connection, days: int | None) -> None:
    """Keep finished jobs for so long from now on; None: as long as before the first turn."""
    if days is None:
        await connection.execute(TURN_RETENTION_BACK)
    else:
        await connection.execute(TURN_RETENTION, days)
