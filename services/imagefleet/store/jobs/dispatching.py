"""What a dispatcher asks when it looks at a lane, and what it says there.

Nothing here reads a backlog. The rows that wait are found by level: one probe of an index tells the
earliest of all that wait under one tenant, type and priority. So a look costs what there are levels
of, a page at a time, whatever stands in them; and of each level only as many rows are taken as it
has turns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias
from uuid import UUID

from imagefleet.jobs.model import JobId, Lane, Ring, TenantId
from imagefleet.store.database import Connection
from imagefleet.store.jobs.rings import RINGING, ring_of

EVERY_SLOT: Final[Mapping[Lane, int]] = {}

HOLD_LANES: Final = """
WITH free AS MATERIALIZED (
    SELECT lanes.lane
      FROM lanes
     WHERE lanes.holder = $1 OR lanes.until <= now()
     ORDER BY lanes.lane
       FOR UPDATE SKIP LOCKED
)
UPDATE lanes
   SET holder = $1, until = now() + interval '2 seconds'
  FROM free
 WHERE lanes.lane = free.lane
RETURNING lanes.lane
"""


async def hold_lanes(connection: Connection, holder: UUID) -> frozenset[Lane]:
    """Take or keep for two seconds every lane that nobody else dispatches."""
    return frozenset(Lane(row["lane"]) for row in await connection.fetch(HOLD_LANES, holder))


LEAVE_LANES: Final = "UPDATE lanes SET until = now() WHERE holder = $1"


async def leave_lanes(connection: Connection, holder: UUID) -> None:
    """Let others dispatch at once."""
    await connection.execute(LEAVE_LANES, holder)


# Slots minus claims held, as they are this moment; general slots that help `fast` are not free for
# `general`. One row a living worker, one for every job that runs, and one for every attempt of the
# last second: the fleet, never its backlog.
LOOK_AT_FLEET: Final = """
WITH ears AS MATERIALIZED (
    SELECT ear.lane, ear.slots, ear.silent_at, ear.heard_at, workers.types,
           workers.draining_since IS NULL AS takes
      FROM workers
      CROSS JOIN LATERAL unnest(workers.lanes, workers.slots, workers.silent_at, workers.heard_at)
           AS ear (lane, slots, silent_at, heard_at)
     WHERE workers.dead_at IS NULL AND workers.beat_at > now() - interval '15 seconds'
),
running AS MATERIALIZED (
    SELECT jobs.lane, count(*) AS jobs FROM jobs WHERE jobs.state = 'processing' GROUP BY jobs.lane
),
ended AS MATERIALIZED (
    SELECT attempts.lane, count(*) AS jobs
      FROM attempts
     -- Between two bounds: without statistics one alone looks like a third of all there are.
     WHERE attempts.ended_at BETWEEN now() - interval '1 second' AND now()
     GROUP BY attempts.lane
),
lane AS MATERIALIZED (
    SELECT lanes.lane, coalesce(running.jobs, 0) AS held, coalesce(ended.jobs, 0) AS finished,
           coalesce((SELECT sum(least(ears.slots, turned.most))
                       FROM ears
                       LEFT JOIN unnest($1::text[], $2::bigint[]) AS turned (lane, most)
                         ON turned.lane = ears.lane
                      WHERE ears.lane = lanes.lane AND ears.takes), 0) AS slots
      FROM lanes
      LEFT JOIN running ON running.lane = lanes.lane
      LEFT JOIN ended ON ended.lane = lanes.lane
)
SELECT lane.lane, lane.held, lane.finished,
       greatest(lane.slots - lane.held
                - CASE lane.lane WHEN 'general' THEN greatest(fast.held - fast.slots, 0) ELSE 0 END,
                0)::bigint AS free,
       ARRAY (SELECT DISTINCT unnest(ears.types) FROM ears
               WHERE ears.lane = lane.lane AND ears.takes) AS types,
       (SELECT max(ears.silent_at) FROM ears WHERE ears.lane = lane.lane) AS silent_at,
       (SELECT max(least(ears.heard_at, now())) FROM ears
         WHERE ears.lane = lane.lane AND ears.heard_at IS NOT NULL) AS heard_at
  FROM lane
  CROSS JOIN (SELECT lane.held, lane.slots FROM lane WHERE lane.lane = 'fast') AS fast
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFleet:
    """The workers of one lane."""

    lane: Lane
    held: int
    """Jobs that run in it."""
    finished: int
    """Attempts that ended within the last second, whatever came of them."""
    free: int
    """Slots of living workers that take something new."""
    types: frozenset[str]
    """The job types that somebody among them takes."""
    silent_at: datetime | None
    """When the newest long poll began that found the queue empty."""
    heard_at: datetime | None
    """When the newest message that somebody claimed by was announced."""


async def look_at_fleet(
    connection: Connection, in_use: Mapping[Lane, int] = EVERY_SLOT
) -> dict[Lane, LaneFleet]:
    """Who works in each lane, and what they have heard; of some lanes not all slots are in use."""
    rows = await connection.fetch(LOOK_AT_FLEET, list(in_use), list(in_use.values()))
    fleets = [
        LaneFleet(**dict(row) | {"lane": Lane(row["lane"]), "types": frozenset(row["types"])})
        for row in rows
    ]
    return {fleet.lane: fleet for fleet in fleets}


# As many again are announced as there is room for, so that who ends one need not wait for a look.
# Not of slow ones: what it holds is there for as long, and what is ahead would be received in vain.
# What was announced longer ago is lost. A worker of an earlier release has no such bounds.
LOOK_AT_TYPES: Final = """
WITH announced AS MATERIALIZED (
    SELECT lanes.lane, sent.type, count(*) AS jobs
      FROM lanes
      CROSS JOIN generate_series(1, 8) AS times (sends)
      CROSS JOIN LATERAL (
          SELECT rings.type FROM rings
           WHERE rings.lane = lanes.lane AND rings.sends = times.sends
             AND rings.sent_at > now() - interval '15 seconds'
           ORDER BY rings.sent_at DESC
           LIMIT 5000) AS sent
     WHERE lanes.lane <> 'quarantine'  -- a suspect is alone where it runs, and takes no room
     GROUP BY lanes.lane, sent.type
),
held AS MATERIALIZED (
    SELECT jobs.locked_by, jobs.type, count(*) AS jobs,
           count(*) FILTER (WHERE jobs.claimed_at > now() - interval '1 second') AS young
      FROM jobs
     WHERE jobs.state = 'processing'
     GROUP BY jobs.locked_by, jobs.type
),
place AS MATERIALIZED (
    SELECT workers.lanes, own.type, coalesce(turned.most, own.slots) AS slots,
           greatest((1 + (coalesce(2 * held.young >= held.jobs, true))::int)
                    * coalesce(turned.most, own.slots) - coalesce(held.jobs, 0), 0) AS room
      FROM workers
      CROSS JOIN LATERAL unnest(workers.types, workers.type_slots) AS own (type, slots)
      LEFT JOIN unnest($1::text[], $2::bigint[]) AS turned (type, most) ON turned.type = own.type
      LEFT JOIN held ON held.locked_by = workers.id AND held.type = own.type
     WHERE workers.dead_at IS NULL AND workers.draining_since IS NULL
       AND workers.beat_at > now() - interval '15 seconds'
)
SELECT ear.lane, place.type, sum(place.slots)::bigint AS slots,
       (sum(place.room) - coalesce(max(announced.jobs), 0))::bigint AS room,
       ((SELECT sum(every.room) FROM place AS every WHERE every.type = place.type)
        - coalesce((SELECT sum(every.jobs) FROM announced AS every
                     WHERE every.type = place.type), 0))::bigint AS shared
  FROM place
  CROSS JOIN LATERAL unnest(place.lanes) AS ear (lane)
  LEFT JOIN announced ON announced.lane = ear.lane AND announced.type = place.type
 GROUP BY ear.lane, place.type
HAVING bool_and(place.slots IS NOT NULL)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRoom:
    """Of a type of which every worker of a lane runs only so many at once."""

    lane: Lane
    type: str
    slots: int
    """Of all living workers of the lane that take something new."""
    room: int
    """How many more may be announced there."""
    shared: int
    """How many in all lanes: most workers listen to several."""


async def look_at_types(connection: Connection, turned: Mapping[str, int]) -> list[TypeRoom]:
    """The types that have fewer slots, by what workers said when they came, or as was turned."""
    rows = await connection.fetch(LOOK_AT_TYPES, list(turned), list(turned.values()))
    return [TypeRoom(**dict(row) | {"lane": Lane(row["lane"])}) for row in rows]


# By scope, so that a hundred thousand paused targets are not read for the few others.
LOOK_AT_HOLDS: Final = """
SELECT pauses.scope, pauses.tenant_id, pauses.name, false AS half_open
  FROM pauses
 WHERE pauses.scope IN ('all', 'lane', 'type', 'tenant')
UNION ALL
SELECT 'service', '', breakers.service, NOT breakers.forced AND breakers.retry_at <= now()
  FROM circuit_breakers AS breakers
 WHERE breakers.state = 'open'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """What holds whole groups of jobs back."""

    everything: bool
    lanes: frozenset[str]
    types: frozenset[str]
    tenants: frozenset[tuple[str, str]]
    """Tenant and type; an empty type is all that the tenant has."""
    open: frozenset[str]
    """Services whose breaker is open."""
    half_open: frozenset[str]
    """Services that one probe may try."""

    def __bool__(self) -> bool:
        """Whether anything is held at all."""
        return any(
            (self.everything, self.lanes, self.types, self.tenants, self.open, self.half_open)
        )


async def look_at_holds(connection: Connection) -> Holds:
    """Pauses of everything, lanes, types and tenants, and breakers that are not closed."""
    rows = await connection.fetch(LOOK_AT_HOLDS)

    def named(scope: str, *, half_open: bool = False) -> frozenset[str]:
        held = (row for row in rows if row["scope"] == scope and row["half_open"] == half_open)
        return frozenset(row["name"] for row in held)

    return Holds(
        everything=any(row["scope"] == "all" for row in rows),
        lanes=named("lane"),
        types=named("type"),
        tenants=frozenset(
            (row["tenant_id"], row["name"]) for row in rows if row["scope"] == "tenant"
        ),
        open=named("service"),
        half_open=named("service", half_open=True),
    )


# What was announced longer ago is lost or behind a stalled worker: it takes no place in the window.
COUNT_ANNOUNCED: Final = """
SELECT count(*)
  FROM (SELECT FROM generate_series(1, 8) AS times (sends)
         CROSS JOIN LATERAL (
             SELECT FROM rings
              WHERE rings.lane = $1 AND rings.sends = times.sends
                AND rings.sent_at > now() - $2::interval
              ORDER BY rings.sent_at DESC
              LIMIT $3) AS announced
         LIMIT $3) AS bounded
"""


async def count_announced(
    connection: Connection, lane: Lane, *, within: timedelta, limit: int
) -> int:
    """How many jobs were announced lately and not claimed since; counts no further than `limit`."""
    count: int = await connection.fetchval(COUNT_ANNOUNCED, lane, within, limit)
    return count


# The skip scan by hand: each step is one probe for whatever comes behind the level before. The row
# it finds is the earliest of its level, so what is not due, parked or announced is never read.
FIND_LEVELS: Final = """
WITH RECURSIVE level AS (
    (SELECT rings.tenant_id, rings.type, rings.priority, rings.next_at, rings.job_id, 1 AS place
       FROM rings
      WHERE rings.lane = $1 AND rings.sent_at IS NULL AND rings.tenant_id IS NOT NULL
        AND (rings.tenant_id, rings.type, rings.priority) > ($2, $3, $4)
      ORDER BY rings.tenant_id, rings.type, rings.priority, rings.next_at
      LIMIT 1)
    UNION ALL
    SELECT following.tenant_id, following.type, following.priority, following.next_at,
           following.job_id, level.place + 1
      FROM level
      CROSS JOIN LATERAL (
          SELECT rings.tenant_id, rings.type, rings.priority, rings.next_at, rings.job_id
            FROM rings
           WHERE rings.lane = $1 AND rings.sent_at IS NULL AND rings.tenant_id IS NOT NULL
             AND (rings.tenant_id, rings.type, rings.priority)
                 > (level.tenant_id, level.type, level.priority)
           ORDER BY rings.tenant_id, rings.type, rings.priority, rings.next_at
           LIMIT 1
      ) AS following
     WHERE level.place < $5
)
SELECT level.tenant_id, level.type, level.priority, level.job_id, level.next_at,
       level.next_at <= now() AS due,
       CASE WHEN level.next_at <= now() THEN now() - level.next_at ELSE interval '0' END AS waited,
       coalesce(tenants.weight, 1) AS weight
  FROM level
  LEFT JOIN tenants ON tenants.id = level.tenant_id
 ORDER BY level.place
"""


Place: TypeAlias = tuple[str, str, int]
"""Tenant, type and priority: where a level stands among those of its lane."""
FIRST_PLACE: Final[Place] = ("", "", -(2**31))


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Everything that waits unannounced in a lane under one tenant, type and priority."""

    tenant_id: TenantId
    type: str
    priority: int
    job_id: JobId
    """The earliest of them; `next_at`, `due` and `waited` are its."""
    next_at: datetime
    due: bool
    waited: timedelta
    weight: int

    @property
    def place(self) -> Place:
        """Where it stands among all levels of its lane."""
        return self.tenant_id, self.type, self.priority


async def find_levels(
    connection: Connection, lane: Lane, after: Place, *, limit: int
) -> list[Level]:
    """A page of the levels of a lane, behind this place."""
    return [Level(**dict(row)) for row in await connection.fetch(FIND_LEVELS, lane, *after, limit)]


# A job says what holds its type back: the newest ones of a type may say something else than the
# oldest while a release is rolled out, and a claim has the last word.
READ_MANNERS: Final = """
SELECT jobs.type, jobs.services, jobs.preempts
  FROM jobs
 WHERE jobs.id = ANY ($1::uuid[])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """What may hold back the jobs of a type."""

    services: frozenset[str]
    preempts: bool
    """No pause does."""


async def read_manners(connection: Connection, job_ids: Sequence[JobId]) -> dict[str, Manners]:
    """By type, as these jobs say."""
    rows = await connection.fetch(READ_MANNERS, job_ids)
    return {
        row["type"]: Manners(services=frozenset(row["services"]), preempts=row["preempts"])
        for row in rows
    }


# From the earliest on that was found: what was before it is gone, but stays in the index as long as
# somebody's snapshot. Who comes before it meanwhile is found by the next look.
TAKE_RINGS: Final = f"""
SELECT turn.place, {RINGING}
  FROM unnest($2::text[], $3::text[], $4::integer[], $5::timestamptz[], $6::integer[])
       WITH ORDINALITY AS turn (tenant_id, type, priority, earliest, jobs, place)
  CROSS JOIN LATERAL (
      SELECT rings.job_id, rings.lane, rings.next_at, rings.tenant_id
        FROM rings
       WHERE rings.lane = $1 AND rings.tenant_id = turn.tenant_id AND rings.type = turn.type
         AND rings.priority = turn.priority AND rings.sent_at IS NULL
         AND rings.next_at >= turn.earliest AND rings.next_at <= now()
       ORDER BY rings.next_at
       LIMIT turn.jobs
  ) AS rings
  JOIN jobs ON jobs.id = rings.job_id
 ORDER BY turn.place, rings.next_at
"""  # noqa: S608 - composed at import from the constant of rings.py


async def take_rings(
    connection: Connection, lane: Lane, turns: Iterable[tuple[Level, int]]
) -> list[tuple[Level, Ring]]:
    """The earliest due rows of each level, as many as it has turns; they are announced by sending.

    Nothing is marked: whoever dies before the send has announced nothing.
    """
    wanted = list(turns)
    levels = [level for level, _ in wanted]
    rows = await connection.fetch(
        TAKE_RINGS,
        lane,
        [level.tenant_id for level in levels],
        [level.type for level in levels],
        [level.priority for level in levels],
        [level.next_at for level in levels],
        [jobs for _, jobs in wanted],
    )
    return [(levels[row["place"] - 1], ring_of(row)) for row in rows]


PUBLISH_ROOM: Final = """
UPDATE lanes
   SET room = $3, window_size = $4, oldest_at = now() - $5::interval, looked_at = now()
 WHERE lane = $1 AND holder = $2
"""


async def publish_room(
    connection: Connection,
    lane: Lane,
    holder: UUID,
    room: int,
    *,
    window: int,
    waited: timedelta | None,
) -> None:
    """Say how many jobs those who submit may ring by themselves until the next look.

    And, for people: how large the window is, and for how long the first has waited for its turn.
    """
    await connection.execute(PUBLISH_ROOM, lane, holder, room, window, waited)
