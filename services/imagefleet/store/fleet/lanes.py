"""A lane as a dispatcher sees it, for people: what waits there, and what each group waits for.

Groups are found as a dispatcher finds them, by one probe of an index each, and counted no further
than is told; a backlog is never read through.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from imagefleet.jobs.model import Lane
from imagefleet.jobs.shapes.fleet import LaneView
from imagefleet.store.database import Connection
from imagefleet.store.fleet.statistics import ExpectedMessages, expect_messages, load_of_lanes
from imagefleet.store.jobs.dispatching import (
    FIRST_PLACE,
    Holds,
    Level,
    Manners,
    find_levels,
    look_at_holds,
    read_manners,
)

MOST_LEVELS: Final = 200  # of a lane; those of the first tenants by name
MOST_WAITING: Final = 1_000  # of each of them

COUNT_LEVELS: Final = """
SELECT (SELECT count(*)
          FROM (SELECT FROM rings
                 WHERE rings.lane = $1 AND rings.tenant_id = level.tenant_id
                   AND rings.type = level.type AND rings.priority = level.priority
                   AND rings.sent_at IS NULL
                 LIMIT $5) AS bounded) AS jobs
  FROM unnest($2::text[], $3::text[], $4::integer[])
       WITH ORDINALITY AS level (tenant_id, type, priority, place)
 ORDER BY level.place
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What waits under one tenant, type and priority; that many, or more than are counted."""

    level: Level
    jobs: int
    hold: str | None
    """Which kind of thing holds all of it back: as its reason begins; None: its turn alone."""
    what: str = ""
    """Of a breaker the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFacts:
    """A lane at one moment."""

    load: LaneView
    known: ExpectedMessages
    groups: Sequence[Group]
    complete: bool
    """Every group that waits is among them, and counted to its end."""
    next_at: datetime | None
    """When the first is due of those that wait for a time."""
    living_lanes: tuple[str, ...]


async def look_at_lane(
    connection: Connection, lane: Lane, taken: frozenset[tuple[str, str]]
) -> LaneFacts:
    """What a lane has, and what of it waits for what; `taken` are lanes and types of workers."""
    levels = await find_levels(connection, lane, FIRST_PLACE, limit=MOST_LEVELS)
    holds = await look_at_holds(connection)
    manners = await read_manners(connection, [level.job_id for level in levels])
    names = [level.tenant_id for level in levels], [level.type for level in levels]
    priorities = [level.priority for level in levels]
    counts = await connection.fetch(COUNT_LEVELS, lane, *names, priorities, MOST_WAITING)
    groups = []
    for level, row in zip(levels, counts, strict=True):
        hold, what = _hold(level, lane, holds, manners.get(level.type), taken)
        groups.append(Group(level=level, jobs=row["jobs"], hold=hold, what=what))
    waits = [level.next_at for level in levels if not level.due and level.next_at.year < PARKED]
    return LaneFacts(
        load=next(load for load in await load_of_lanes(connection) if load.lane == lane),
        known=(await expect_messages(connection))[lane],
        groups=groups,
        complete=len(levels) < MOST_LEVELS and all(each.jobs < MOST_WAITING for each in groups),
        next_at=min(waits, default=None),
        living_lanes=tuple(sorted({name for name, _ in taken})),
    )


PARKED: Final = 9999  # the year that the driver makes of infinity


def _hold(
    level: Level,
    lane: Lane,
    holds: Holds,
    manners: Manners | None,
    taken: frozenset[tuple[str, str]],
) -> tuple[str | None, str]:
    """What holds back the whole of a group, the most general first."""
    if not level.due:
        return ("target_busy" if level.next_at.year >= PARKED else "not_due"), ""
    if (lane, level.type) not in taken:
        return "no_worker_for_type", level.type
    if manners is None:
        return None, ""
    if not manners.preempts:
        tenant = level.tenant_id
        if holds.everything:
            return "all_paused", ""
        if lane in holds.lanes:
            return "lane_paused", lane
        if level.type in holds.types:
            return "type_paused", level.type
        if {(tenant, ""), (tenant, level.type)} & holds.tenants:
            return "tenant_paused", tenant
    closed = manners.services & holds.open
    return ("breaker_open", min(closed)) if closed else (None, "")
