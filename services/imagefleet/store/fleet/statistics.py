"""How the queues are: what waits, what ran lately, what is stuck. On demand, for operators.

Views are those of migrations/0008_views.sql, so that psql shows the same numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

from imagefleet.jobs.model import Lane
from imagefleet.jobs.shapes.fleet import FailuresView, LaneView, StuckView
from imagefleet.jobs.shapes.rates import MINUTE
from imagefleet.store.database import Connection
from imagefleet.store.fleet.rollups import MARGIN

LIST_STUCK: Final = """
SELECT stuck.id AS job_id, stuck.tenant_id, stuck.type, stuck.lane, stuck.attempts,
       stuck.claimed_at, stuck.last_progress_at, stuck.locked_by AS worker_id, stuck.host,
       stuck.beat_at
  FROM stuck_jobs AS stuck
 ORDER BY stuck.claimed_at
 LIMIT $1
"""


async def list_stuck(connection: Connection, *, limit: int) -> list[StuckView]:
    """Jobs that run for longer than any type may, the longest first."""
    return [StuckView.of(row) for row in await connection.fetch(LIST_STUCK, limit)]


COUNT_STUCK: Final = """
SELECT count(*) FROM stuck_jobs
"""


async def count_stuck(connection: Connection) -> int:
    """How many jobs run for longer than any type may."""
    return int(await connection.fetchval(COUNT_STUCK))


LIST_FAILURES: Final = """
SELECT recent.type, recent.failure_code AS code, recent.failures, recent.latest_failure AS latest
  FROM recent_failures AS recent
 ORDER BY recent.failures DESC, recent.type, recent.failure_code
 LIMIT $1
"""


async def list_failures(connection: Connection, *, limit: int) -> list[FailuresView]:
    """What failed within the last hour, the most frequent first."""
    return [FailuresView.of(row) for row in await connection.fetch(LIST_FAILURES, limit)]


# Every living worker that takes something new, once for each of its lanes: the slots that serve the
# lane, those that no other lane has, and how many of them are taken. Where the fast lane has more
# jobs than slots of its own, the others are in general ones.
_ROOM: Final = """
  FROM workers
  CROSS JOIN LATERAL (
      SELECT count(*) FILTER (WHERE jobs.lane = 'fast') AS fast,
             count(*) FILTER (WHERE jobs.lane = 'general') AS general,
             count(*) FILTER (WHERE jobs.lane = 'quarantine') AS quarantine
        FROM jobs
       WHERE jobs.locked_by = workers.id AND jobs.state = 'processing'
  ) AS held
  CROSS JOIN LATERAL (
      SELECT coalesce(workers.slots[array_position(workers.lanes, 'fast')], 0) AS fast,
             coalesce(workers.slots[array_position(workers.lanes, 'general')], 0) AS general,
             coalesce(workers.slots[array_position(workers.lanes, 'quarantine')], 0) AS quarantine
  ) AS slots
  CROSS JOIN LATERAL (
      VALUES ('fast', slots.fast + slots.general, slots.fast, held.fast + held.general, held.fast),
             ('general', slots.general, slots.general,
              held.general + greatest(held.fast - slots.fast, 0), held.general),
             ('quarantine', slots.quarantine, slots.quarantine, held.quarantine, held.quarantine)
  ) AS room (lane, slots, own, taken, in_lane)
 WHERE workers.dead_at IS NULL AND workers.draining_since IS NULL
   AND room.lane = ANY (workers.lanes)
"""


LOAD_OF_LANES: Final = f"""
WITH rooms AS MATERIALIZED (
    SELECT room.lane, count(*) AS workers, sum(room.slots)::bigint AS slots,
           sum(least(room.taken, room.slots))::bigint AS busy
    {_ROOM}
     GROUP BY room.lane
),
running AS MATERIALIZED (
    SELECT jobs.lane, count(*) AS jobs FROM jobs WHERE jobs.state = 'processing' GROUP BY jobs.lane
)
SELECT lanes.lane, coalesce(rooms.workers, 0) AS workers, coalesce(rooms.slots, 0) AS slots,
       coalesce(rooms.busy, 0) AS busy, coalesce(running.jobs, 0) AS processing,
       lanes.window_size AS window, lanes.oldest_at AS oldest_due_ring
  FROM lanes
  JOIN unnest($1::text[]) WITH ORDINALITY AS wanted (lane, place) ON wanted.lane = lanes.lane
  LEFT JOIN rooms ON rooms.lane = lanes.lane
  LEFT JOIN running ON running.lane = lanes.lane
 ORDER BY wanted.place
"""  # noqa: S608 - composed at import from the constant above


async def load_of_lanes(connection: Connection) -> list[LaneView]:
    """Every lane, in the order of Lane."""
    return [LaneView.of(row) for row in await connection.fetch(LOAD_OF_LANES, list(Lane))]


ROOM_FOR_JOB: Final = f"""
SELECT count(*) AS workers, coalesce(sum(room.slots), 0)::bigint AS slots,
       coalesce(sum(room.own), 0)::bigint AS own,
       coalesce(sum(least(room.taken, room.slots)), 0)::bigint AS busy,
       coalesce(sum(room.in_lane), 0)::bigint AS in_lane
{_ROOM}
   AND room.lane = $1 AND $2 = ANY (workers.types)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The living workers that take jobs of one type in one lane, and how busy they are."""

    workers: int
    slots: int
    """Those that serve the lane."""
    own: int
    """Those among them that serve nothing but this lane, or serve it first."""
    busy: int
    """How many of the slots are taken, by jobs of whatever lane and type."""
    in_lane: int
    """Jobs of this lane that these workers hold."""

    @property
    def full(self) -> bool:
        """Whether all their slots for the lane are taken."""
        return 0 < self.slots <= self.busy


async def room_for_job(connection: Connection, lane: str, job_type: str) -> Capacity:
    """Whether anybody could take such a job now."""
    (row,) = await connection.fetch(ROOM_FOR_JOB, lane, job_type)
    return Capacity(**dict(row))


# What stands in SQS is a few times the window; where it is more, counting further tells no more.
EXPECT_MESSAGES: Final = """
SELECT lanes.lane, lanes.window_size AS window,
       greatest(now() - lanes.oldest_at, interval '0') AS waited,
       greatest(now() - lanes.looked_at, interval '0') AS unattended_for,
       (SELECT count(*) FROM (SELECT FROM rings
                               WHERE rings.lane = lanes.lane AND rings.sent_at IS NOT NULL
                               LIMIT 20000) AS bounded) AS announced,
       (SELECT count(*) FROM jobs
         WHERE jobs.lane = lanes.lane AND jobs.state = 'processing') AS processing
  FROM lanes
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedMessages:
    """What a lane's queue should hold, by what Postgres knows, and how its dispatcher sees it."""

    lane: Lane
    announced: int
    """Jobs that have a message and that nobody has claimed since."""
    processing: int
    window: int
    """How many may be announced at a time."""
    waited: timedelta
    """For how long the first has waited that nothing but its turn holds back."""
    unattended_for: timedelta
    """How long ago a dispatcher looked at the lane."""

    @property
    def expected(self) -> int:
        """The messages of what was announced, and of what runs."""
        return self.announced + self.processing


async def expect_messages(connection: Connection) -> dict[Lane, ExpectedMessages]:
    """What SQS's figures are compared with."""
    rows = await connection.fetch(EXPECT_MESSAGES)
    return {
        Lane(row["lane"]): ExpectedMessages(**dict(row) | {"lane": Lane(row["lane"])})
        for row in rows
    }


# The first id of the hour that follows what was proven: the milliseconds, and zeros.
SAMPLE_BEHIND: Final = """
SELECT 'fold' AS step,
       now() - (SELECT entries.at FROM ledger_entries AS entries
                 ORDER BY entries.id LIMIT 1) AS behind
 UNION ALL
SELECT 'prove',
       (SELECT now() - to_timestamp(3600.0 * (hour_of(jobs.id) + 2))
          FROM jobs
         WHERE jobs.id >= (
                   SELECT lpad(to_hex((proof.proven_until + 1) * 3600000::bigint), 12, '0')
                          || repeat('0', 20) FROM ledger_proof AS proof)::uuid
         ORDER BY jobs.id
         LIMIT 1)
 UNION ALL
SELECT 'roll_up',
       now() - (SELECT progress.counted_until FROM rollup_progress AS progress) - $2::interval
 UNION ALL
SELECT 'announce_letters',
       now() - (SELECT sends.due_at FROM dead_letter_sends AS sends
                 ORDER BY sends.due_at LIMIT 1)
 UNION ALL
SELECT 'prune',
       (SELECT interval '1 second' * (periods.report ->> 'behind_seconds')::float
          FROM periods
         WHERE periods.name = 'prune' AND periods.finished_at IS NOT NULL
         ORDER BY periods.period_start DESC
         LIMIT 1)
 UNION ALL
SELECT 'walk',
       (SELECT now() - periods.period_start - $1::interval
          FROM periods
         WHERE periods.name = 'sweep_walk' AND periods.finished_at IS NULL
         ORDER BY periods.period_start DESC
         LIMIT 1)
"""


async def sample_behind(
    connection: Connection, *, walk_within: timedelta
) -> Mapping[str, timedelta]:
    """For how long the oldest piece of each step's work has waited beyond its time; zero: none has.

    A walk is behind when it takes longer than `walk_within`, after which the next one is due.
    """
    rows = await connection.fetch(SAMPLE_BEHIND, walk_within, MINUTE + MARGIN)
    return {row["step"]: max(row["behind"] or timedelta(0), timedelta(0)) for row in rows}


class SessionsSeen(NamedTuple):
    """How many sessions Postgres lets our roles have, and how many there are, by their names."""

    most: int
    named: Mapping[str, int]


LOOK_AT_SESSIONS: Final = """
SELECT current_setting('max_connections')::int
       - current_setting('superuser_reserved_connections')::int
       - coalesce(current_setting('reserved_connections', true), '0')::int AS most,
       activity.application_name AS name, count(*) AS sessions
  FROM pg_stat_activity AS activity
 WHERE activity.application_name LIKE 'imagefleet-%'
 GROUP BY 1, 2
"""


async def look_at_sessions(connection: Connection) -> SessionsSeen:
    """Ask how many there may be. Behind a pooler they have the names of whom they served last."""
    rows = await connection.fetch(LOOK_AT_SESSIONS)  # the one that asks is among them
    named = {row["name"].removeprefix("imagefleet-"): row["sessions"] for row in rows}
    return SessionsSeen(rows[0]["most"], named)
