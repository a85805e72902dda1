"""The doorbell rows: which jobs have no message, and which had one that was never heard.

The protocol: a ring row stands for every open job that does not run. It is written in the
transaction that makes the job wait, and deleted by the claim alone. `sent_at` is null while no
message of the job exists as far as Postgres knows; it is set after SQS took one, by a statement
that names the row as it was taken, and cleared by whatever lets a message go without a claim.

What it promises: no job is forgotten, whatever SQS loses, repeats, reorders or purges; a lost
message is only one that is sent again. It is known by silence (a long poll that began after it was
sent and brought nothing), or by later ones that were heard; each resend doubles the patience.

How many stand in a queue is the window's affair (`maintenance/window.py`; `dispatching` asks for
what it needs): about as many as the workers can take until the next look, since what stands in SQS
keeps its order. Whoever submits rings at once, in the room that the lane's dispatcher tells.

What lost: an outbox whose rows go once they are sent loses for good what SQS loses. Tried: counting
how often somebody had meant to ring left jobs unheard whose send had failed, or whose message a
worker had deleted, for as long as their lane showed any message at all. And a queue that holds
whatever there is makes one tenant's job of a millisecond wait behind another's eight hundred.

docs/decisions/0001 says why Postgres is the authority, and 0007 why it schedules.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from asyncpg import Record

from imagefleet.jobs.model import (
    JobId,
    Lane,
    Ring,
    Submission,
    Submitted,
    TenantId,
)
from imagefleet.store.database import Connection
from imagefleet.store.jobs.verdicts import NEXT_OF_TARGET

URGENT: Final = -1
"""The priority of the ring of a flagged job: no pause and no breaker holds it back."""

RINGING: Final = """
rings.job_id, rings.lane, rings.next_at, rings.tenant_id, now() AS announced_at,
       jobs.traceparent, jobs.tracestate"""


# The rings of `bell`, whose rows are locked, before all else of their tenants.
RING_URGENTLY: Final = f"""
UPDATE rings
   SET next_at = now(), sent_at = NULL, sends = 0, priority = {URGENT}
  FROM bell
  JOIN jobs ON jobs.id = bell.job_id
 WHERE rings.job_id = bell.job_id
RETURNING {RINGING}
"""  # noqa: S608 - composed at import from the constants above


def ring_of(row: Record) -> Ring:
    """Read the columns of RINGING, which every statement returns from which something is rung."""
    return Ring(
        job_id=JobId(row["job_id"]),
        lane=Lane(row["lane"]),
        next_at=row["next_at"],
        tenant_id=TenantId(row["tenant_id"]),
        announced_at=row["announced_at"],
        traceparent=row["traceparent"],
        tracestate=row["tracestate"],
    )


def rings_for(accepted: Iterable[tuple[Submission, object]]) -> tuple[Ring, ...]:
    """What to ring of jobs that were asked for just now: the new ones that may run at once."""
    return tuple(
        Ring(
            job_id=answer.job_id,
            lane=answer.lane,
            next_at=answer.next_at,
            tenant_id=submission.tenant_id,
            announced_at=answer.created_at,
            traceparent=submission.traceparent,
            tracestate=submission.tracestate,
        )
        for submission, answer in accepted
        if isinstance(answer, Submitted) and answer.created and answer.next_at is not None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRoom:
    """How many jobs a lane's dispatcher leaves to those who submit, as it said at `looked_at`."""

    lane: Lane
    room: int
    """None while anything waits for its turn: whoever rang then would go before it."""
    looked_at: datetime
    fresh: bool
    abandoned: bool
    """Nobody dispatches here; then there is no order that could be kept."""


READ_ROOMS: Final = """
SELECT lanes.lane, lanes.room, lanes.looked_at,
       lanes.looked_at > now() - interval '1 second' AS fresh,
       lanes.looked_at < now() - interval '10 seconds' AS abandoned
  FROM lanes
"""


async def read_rooms(connection: Connection) -> list[LaneRoom]:
    """What every lane has room for."""
    rows = await connection.fetch(READ_ROOMS)
    return [LaneRoom(**dict(row) | {"lane": Lane(row["lane"])}) for row in rows]


# What moved on since it was taken is left alone: its message may have been deleted by now.
CONFIRM_RINGS: Final = """
WITH bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
      JOIN unnest($1::uuid[], $2::timestamptz[]) AS sent (job_id, next_at)
        ON sent.job_id = rings.job_id AND sent.next_at = rings.next_at
     WHERE rings.job_id = ANY ($1::uuid[]) AND rings.sent_at IS NULL
     ORDER BY rings.job_id
       FOR UPDATE OF rings
)
UPDATE rings
   SET sent_at = now(), sends = least(rings.sends + 1, 8)
  FROM bell
 WHERE rings.job_id = ANY ($1::uuid[]) AND rings.job_id = bell.job_id
"""


async def confirm_rings(connection: Connection, sent: Sequence[Ring]) -> None:
    """SQS took these: they wait to be claimed now, not to be announced."""
    await connection.execute(
        CONFIRM_RINGS, [ring.job_id for ring in sent], [ring.next_at for ring in sent]
    )


# Lost is what was sent well before a moment of which we know that the queue was empty, or that
# later messages came through. Each time it was sent doubles the patience: a message may be slow, or
# in the hands of a worker that stalls. What nobody ever heard of is sent again after 12 hours.
FORGET_LOST: Final = """
WITH lost AS MATERIALIZED (
    SELECT bell.job_id
      FROM generate_series(1, 8) AS times (sends)
      CROSS JOIN LATERAL (
          SELECT rings.job_id
            FROM rings
           WHERE rings.lane = $1 AND rings.sends = times.sends
             AND rings.sent_at < greatest(
                 $2::timestamptz - interval '5 seconds' * (1 << (times.sends - 1)),
                 $3::timestamptz - interval '30 seconds' * (1 << (times.sends - 1)),
                 now() - interval '12 hours')
           ORDER BY rings.sent_at
           LIMIT $4
             FOR UPDATE SKIP LOCKED
      ) AS bell
)
UPDATE rings
   SET sent_at = NULL, next_at = now()
 WHERE rings.job_id = ANY (ARRAY (SELECT lost.job_id FROM lost ORDER BY lost.job_id))
RETURNING rings.job_id
"""


async def forget_lost(
    connection: Connection,
    lane: Lane,
    *,
    silent: datetime | None,
    heard: datetime | None,
    limit: int,
) -> int:
    """Take it that messages are gone which should have been heard by now; how many.

    `silent` is when the newest long poll began that brought nothing, `heard` when the newest of the
    messages was announced by which somebody claimed.
    """
    return len(await connection.fetch(FORGET_LOST, lane, silent, heard, limit))


# Rows of 0.2.0 say neither whose they are nor whether they were sent.
ADOPT_RINGS: Final = """
WITH older AS MATERIALIZED (
    SELECT rings.job_id, jobs.tenant_id, jobs.type
      FROM rings
      JOIN jobs ON jobs.id = rings.job_id
     WHERE rings.tenant_id IS NULL
     ORDER BY rings.job_id
     LIMIT $1
       FOR UPDATE OF rings SKIP LOCKED
)
UPDATE rings
   SET tenant_id = older.tenant_id, type = older.type,
       next_at = CASE WHEN rings.rings = 0 THEN rings.due_at ELSE now() END,
       sent_at = CASE WHEN rings.rings > 0 THEN rings.since END,
       sends = least(rings.rings, 8)
  FROM older
 WHERE rings.job_id = ANY (ARRAY (SELECT older.job_id FROM older)) AND rings.job_id = older.job_id
RETURNING rings.job_id
"""


async def adopt_rings(connection: Connection, *, limit: int) -> int:
    """Complete the rows that processes of 0.2.0 wrote; how many."""
    return len(await connection.fetch(ADOPT_RINGS, limit))


# The next of a target is rung by whoever frees or resumes it, under its lock. A claim that fails a
# job amid a submit, or a process that dies at the wrong moment, can forget it: this does not.
RING_HEADS: Final = f"""
WITH page AS MATERIALIZED (
    SELECT rings.job_id, jobs.tenant_id, jobs.target
      FROM rings
      JOIN jobs ON jobs.id = rings.job_id
     WHERE rings.next_at = 'infinity' AND rings.job_id > $1
     ORDER BY rings.job_id
     LIMIT $2
),
freed AS MATERIALIZED (
    SELECT free.tenant_id, free.target
      FROM (SELECT DISTINCT page.tenant_id, page.target FROM page) AS wanted
      CROSS JOIN LATERAL (
          SELECT targets.tenant_id, targets.target
            FROM targets
           WHERE targets.tenant_id = wanted.tenant_id AND targets.target = wanted.target
             AND targets.running_job IS NULL
           LIMIT 1
             FOR UPDATE SKIP LOCKED
      ) AS free
),
bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
     WHERE rings.next_at = 'infinity'
       AND rings.job_id = ANY (ARRAY (SELECT next.id FROM freed {NEXT_OF_TARGET}))
     ORDER BY rings.job_id
       FOR UPDATE
),
rung AS (
    UPDATE rings SET next_at = now(), sent_at = NULL
     WHERE rings.job_id = ANY (ARRAY (SELECT bell.job_id FROM bell))
    RETURNING rings.job_id
)
SELECT (SELECT count(*) FROM rung) AS rung,
       (SELECT page.job_id FROM page ORDER BY page.job_id DESC LIMIT 1) AS last,
       (SELECT count(*) FROM page) AS looked_at
"""  # noqa: S608 - composed at import from the constant of verdicts.py


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsRung:
    """One page of the parked rows: how many heads were rung, and where the next page begins."""

    rung: int
    last: JobId | None
    looked_at: int


async def ring_heads(connection: Connection, after: JobId, *, limit: int) -> HeadsRung:
    """Ring the first of each free target on a page of parked rows that nobody has rung."""
    (row,) = await connection.fetch(RING_HEADS, after, limit)
    return HeadsRung(**dict(row))


# What runs has no ring row. Where rescue is off, a lock that nobody renews is taken over by whoever
# hears of the job again; should its message be gone too, nobody would.
FIND_EXPIRED: Final = """
SELECT jobs.id AS job_id, jobs.lane, now() AS next_at, jobs.tenant_id, now() AS announced_at,
       jobs.traceparent, jobs.tracestate
  FROM jobs
 WHERE jobs.state = 'processing'
   AND jobs.locked_at < now() - (SELECT fleet.lock_timeout FROM fleet) - interval '1 minute'
 ORDER BY jobs.locked_at
 LIMIT $1
"""


async def find_expired(connection: Connection, *, limit: int) -> list[Ring]:
    """Jobs whose lock ran out a minute ago and which nobody took over: to be rung as they are."""
    return [ring_of(row) for row in await connection.fetch(FIND_EXPIRED, limit)]


# Who is next of each target in `freed`, whose rows are locked.
RING_FREED: Final = f"""
next AS MATERIALIZED (
    SELECT next.id FROM freed {NEXT_OF_TARGET}
),
bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
     WHERE rings.job_id = ANY (ARRAY (SELECT next.id FROM next))
     ORDER BY rings.job_id
       FOR UPDATE
)
UPDATE rings
   SET next_at = now(), sent_at = NULL, sends = 0
  FROM bell
  JOIN jobs ON jobs.id = bell.job_id
 WHERE rings.job_id = ANY (ARRAY (SELECT bell.job_id FROM bell)) AND rings.job_id = bell.job_id
RETURNING {RINGING}
"""  # noqa: S608 - composed at import from the constants of verdicts.py and above

RING_NEXT: Final = f"""
WITH freed AS MATERIALIZED (
    SELECT targets.tenant_id, targets.target
      FROM targets
     WHERE targets.tenant_id = $1 AND targets.target = $2 AND targets.running_job IS NULL
),
{RING_FREED}
"""  # noqa: S608 - composed at import from the constant above


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
        await connection.execute(RING_NEXT, tenant_id, target)


RETRY_NOW: Final = """
UPDATE jobs SET run_at = now(), updated_at = now()
 WHERE id = $1 AND state IN ('queued', 'failed_retryable') AND run_at > now()
RETURNING id
"""


RING_JOB: Final = f"""
UPDATE rings SET next_at = now(), sent_at = NULL, sends = 0
  FROM jobs
 WHERE rings.job_id = $1 AND jobs.id = rings.job_id
RETURNING {RINGING}
"""  # noqa: S608 - composed at import from the constant above


async def ring_now(connection: Connection, job_id: JobId) -> tuple[Ring, ...] | None:
    """Retry now: make a waiting job due and ring it; None where nothing was changed."""
    async with connection.transaction():
        made_due = await connection.fetchval(RETRY_NOW, job_id) is not None
        rings = tuple(ring_of(row) for row in await connection.fetch(RING_JOB, job_id))
    return rings if rings or made_due else None
