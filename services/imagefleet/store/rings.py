"""The doorbell rows: which jobs nobody has heard of lately, and when they are rung again.

A ring row says that an open job waits, and when it is next announced. Announcing is sending an SQS
message; the due time is pushed forward before it (dispatcher) or after (whoever rings its own job),
so that a lost, purged or expired message is only a message that is sent again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from asyncpg import Record

from imagefleet.jobs.model import JobId, Lane, Ring, TenantId
from imagefleet.store.database import Connection, translated


def ring_of(row: Record) -> Ring:
    """Read the six columns that every statement returns from which something is rung."""
    return Ring(
        job_id=JobId(row["job_id"]),
        lane=Lane(row["lane"]),
        due_at=row["due_at"],
        tenant_id=TenantId(row["tenant_id"]),
        traceparent=row["traceparent"],
        tracestate=row["tracestate"],
    )


# Between two rings of one job: 1 min, 2, 4 ... at most 6 h. A message that is merely late is no
# reason to send another; one that is lost is.
CONFIRM_RINGS: Final = """
WITH bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
      JOIN unnest($1::uuid[], $2::timestamptz[]) AS sent (job_id, due_at)
        ON sent.job_id = rings.job_id AND sent.due_at = rings.due_at
     ORDER BY rings.job_id
       FOR UPDATE OF rings
)
UPDATE rings
   SET due_at = now() + least(interval '1 minute' * power(2, least(rings.rings, 20)),
                              interval '6 hours'),
       rings = rings.rings + 1
  FROM bell
 WHERE rings.job_id = bell.job_id
"""


async def confirm_rings(connection: Connection, sent: Sequence[Ring]) -> None:
    """These were sent: ring again only after a while. A row that moved on since is left alone."""
    with translated():
        await connection.execute(
            CONFIRM_RINGS, [ring.job_id for ring in sent], [ring.due_at for ring in sent]
        )


# Walks the priorities in use from the most urgent one, and within each the due rows only: neither
# the rows that are not due nor a backlog of due ones is ever read through.
TAKE_DUE_RINGS: Final = """
WITH RECURSIVE level AS (
    (SELECT rings.priority FROM rings WHERE rings.lane = $1 ORDER BY rings.priority LIMIT 1)
    UNION ALL
    SELECT (SELECT rings.priority FROM rings
             WHERE rings.lane = $1 AND rings.priority > level.priority
             ORDER BY rings.priority LIMIT 1)
      FROM level
     WHERE level.priority IS NOT NULL
),
due AS MATERIALIZED (
    SELECT bell.job_id, bell.again
      FROM level
      CROSS JOIN LATERAL (
          SELECT rings.job_id,
                 rings.rings = 0 OR $3 OR rings.since < now() - interval '12 hours' AS again
            FROM rings
           WHERE rings.lane = $1 AND rings.priority = level.priority AND rings.due_at <= now()
           ORDER BY rings.due_at
           LIMIT $2
             FOR UPDATE SKIP LOCKED
      ) AS bell
     LIMIT $2
),
pushed AS (
    UPDATE rings
       SET due_at = now() + CASE WHEN due.again
               THEN least(interval '1 minute' * power(2, least(rings.rings, 20)),
                          interval '6 hours')
               ELSE interval '1 minute' END,
           rings = rings.rings + due.again::int
      FROM due
     WHERE rings.job_id = due.job_id
       -- The same again, in a form of which the planner knows that it names few rows.
       AND rings.job_id = ANY (ARRAY (SELECT due.job_id FROM due))
    RETURNING rings.job_id, rings.lane, rings.priority, rings.due_at, due.again
)
SELECT pushed.job_id, pushed.lane, pushed.due_at, jobs.tenant_id, jobs.traceparent, jobs.tracestate
  FROM pushed
  JOIN jobs ON jobs.id = pushed.job_id
 WHERE pushed.again
 ORDER BY pushed.priority, pushed.due_at
"""


async def take_due_rings(
    connection: Connection, lane: Lane, *, limit: int, repeats: bool
) -> list[Ring]:
    """Push due rows forward and return them to be sent; any number of dispatchers may run.

    Without `repeats` (the lane's queue still shows messages) only jobs that were never rung are
    returned; the others wait another minute, for 12 hours at most.
    """
    with translated():
        rows = await connection.fetch(TAKE_DUE_RINGS, lane, limit, repeats)
    return [ring_of(row) for row in rows]


# One statement for all lanes, so that a look that finds nothing is all that an idle fleet costs.
LOOK_AT_DUE_RINGS: Final = """
WITH RECURSIVE level AS (
    (SELECT rings.lane, rings.priority FROM rings ORDER BY rings.lane, rings.priority LIMIT 1)
    UNION ALL
    SELECT following.lane, following.priority
      FROM level
      CROSS JOIN LATERAL (
          SELECT rings.lane, rings.priority
            FROM rings
           WHERE (rings.lane, rings.priority) > (level.lane, level.priority)
           ORDER BY rings.lane, rings.priority
           LIMIT 1
      ) AS following
)
SELECT level.lane,
       bool_or(bell.rings > 0 AND bell.since >= now() - interval '12 hours') AS repeats
  FROM level
  CROSS JOIN LATERAL (
      SELECT rings.rings, rings.since
        FROM rings
       WHERE rings.lane = level.lane AND rings.priority = level.priority AND rings.due_at <= now()
       ORDER BY rings.due_at
       LIMIT $1
  ) AS bell
 GROUP BY level.lane
"""


async def look_at_due_rings(connection: Connection, *, limit: int) -> dict[Lane, bool]:
    """The lanes in which something is due; True where that may depend on what the queue holds."""
    with translated():
        rows = await connection.fetch(LOOK_AT_DUE_RINGS, limit)
    return {Lane(row["lane"]): row["repeats"] for row in rows}


# What runs has no ring row. Where rescue is off, a lock that nobody renews is taken over by whoever
# hears of the job again; should its message be gone too, nobody would.
FIND_EXPIRED: Final = """
SELECT jobs.id AS job_id, jobs.lane, now() AS due_at, jobs.tenant_id, jobs.traceparent,
       jobs.tracestate
  FROM jobs
 WHERE jobs.state = 'processing'
   AND jobs.locked_at < now() - (SELECT fleet.lock_timeout FROM fleet) - interval '1 minute'
 ORDER BY jobs.locked_at
 LIMIT $1
"""


async def find_expired(connection: Connection, *, limit: int) -> list[Ring]:
    """Jobs whose lock ran out a minute ago and which nobody took over: to be rung as they are."""
    with translated():
        return [ring_of(row) for row in await connection.fetch(FIND_EXPIRED, limit)]


SAMPLE_RINGS: Final = """
SELECT rings.lane, count(*) AS waiting,
       count(*) FILTER (WHERE rings.due_at <= now()) AS due,
       coalesce(max(now() - rings.due_at), interval '0') AS oldest
  FROM rings
 GROUP BY rings.lane
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSample:
    """The ring rows of one lane."""

    waiting: int
    due: int
    oldest: timedelta
    """For how long the one that is due longest has been; negative when none is due."""


async def sample_rings(connection: Connection) -> dict[Lane, RingSample]:
    """Counts for gauges. For the one elected sampler: it reads every ring row."""
    with translated():
        rows = await connection.fetch(SAMPLE_RINGS)
    return {
        Lane(row["lane"]): RingSample(waiting=row["waiting"], due=row["due"], oldest=row["oldest"])
        for row in rows
    }


EXPECT_MESSAGES: Final = """
SELECT messages.lane, messages.waiting, messages.announced, messages.processing, messages.expected
  FROM expected_messages AS messages
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedMessages:
    """The messages that a lane's queue should hold, by what Postgres knows."""

    lane: Lane
    waiting: int
    announced: int
    """Those of the waiting jobs that were announced, and that nobody has claimed since."""
    processing: int
    expected: int


async def expect_messages(connection: Connection) -> dict[Lane, ExpectedMessages]:
    """What SQS's figures are compared with. It reads every ring row, and every job that runs."""
    with translated():
        rows = await connection.fetch(EXPECT_MESSAGES)
    return {
        Lane(row["lane"]): ExpectedMessages(**dict(row) | {"lane": Lane(row["lane"])})
        for row in rows
    }
