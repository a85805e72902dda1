"""Keeping jobs: the beat that renews a worker's claims, and the progress its handlers report.

The protocol: every two seconds a worker names all that it holds, each as `(job_id, claim_no)`. One
statement marks the worker's row, renews those claims, and answers with what the worker must let go:
claims that are flagged to be cancelled, claims that are lost, and claims that it has without
knowing, because the answer of a claim never arrived; and whether an operator asks it to drain. A
claim is renewed for as long as its type lets it run and no longer, so a handler that hangs loses
its job though its worker lives.

What it promises: one beat for a worker, not one for each job, so that a worker is alive or dead as
a whole. Whoever was declared dead is told so by his next beat, and what he held belongs to others.
That nobody works on what another has been given is the worker's own part (`worker/lease.py`): it
stops by its own clock 20 s after it sent the last beat that was acknowledged, and a rescuer that
watches needs 30 s of silence. Where nobody watches, a lock that was not renewed for ten minutes is
taken over by the next claim.

Two things this does not rest on. Clocks of different machines are never compared: beats are
counted, and every time is the database's. And a beat that comes too late does no harm, since what
is written later names the claim: a lease saves work, the fence keeps the truth.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from asyncpg import Record

from imagefleet.errors import ClaimLost
from imagefleet.jobs.model import Fence, JobId, JsonObject, WorkerId
from imagefleet.store.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """What a beat names: a claim, and for how long its type lets it renew the lock."""

    job_id: JobId
    claim_no: int
    renewable_for: timedelta
    """Counted from the claim: the type's timeout plus a margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a worker has heard of each of its lanes, in their order; None where that is nothing."""

    silent_for: Sequence[timedelta | None]
    """How long ago the newest long poll began that brought nothing."""
    heard_at: Sequence[datetime | None]
    """When the newest message was announced by which a job was claimed."""


NOTHING_HEARD: Final = Heard(silent_for=(), heard_at=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What the database answers to a beat."""

    alive: bool
    """False: this worker was declared dead, and everything it held belongs to others."""
    cancelled: frozenset[Fence]
    lost: frozenset[Fence]
    strays: frozenset[Fence]
    """Locked by this worker but not named: claims whose answer never arrived."""
    drains: bool = False
    """An operator asks this worker to end what it has, and itself."""


RENEW_CLAIMS: Final = """
WITH me AS (
    UPDATE workers
       SET beat_at = now(), beats = beats + 1, heard_at = $6::timestamptz[],
           silent_at = ARRAY (SELECT now() - silence.span
                                FROM unnest($5::interval[]) WITH ORDINALITY AS silence (span, place)
                               ORDER BY silence.place)
     WHERE id = $1 AND dead_at IS NULL
    RETURNING id, drain_requested_at IS NOT NULL AS drains
),
held AS (
    SELECT *
      FROM unnest($2::uuid[], $3::bigint[], $4::interval[]) AS held (id, claim_no, renewable_for)
),
mine AS MATERIALIZED (
    SELECT jobs.id, jobs.claim_no, jobs.locked_at, jobs.claimed_at,
           jobs.cancel_requested_at IS NOT NULL AS cancelled
      FROM jobs
     WHERE jobs.locked_by = $1 AND jobs.state = 'processing'
),
stale AS MATERIALIZED (
    SELECT jobs.id
      FROM jobs
      JOIN mine ON mine.id = jobs.id
      JOIN held ON held.id = jobs.id AND held.claim_no = jobs.claim_no
      CROSS JOIN fleet
     WHERE mine.locked_at < now() - fleet.lock_timeout / 3
       AND mine.claimed_at > now() - held.renewable_for
       AND jobs.locked_by = $1 AND jobs.state = 'processing'
     ORDER BY jobs.id
       FOR UPDATE OF jobs SKIP LOCKED
),
renewed AS (
    UPDATE jobs SET locked_at = now()
      FROM stale, me
     WHERE jobs.id = stale.id
    RETURNING jobs.id
)
SELECT coalesce(held.id, mine.id) AS id,
       coalesce(held.claim_no, mine.claim_no) AS claim_no,
       EXISTS (SELECT FROM me) AS alive,
       held.id IS NOT NULL AND mine.id IS NULL AS lost,
       held.id IS NULL AS stray,
       coalesce(mine.cancelled, false) AS cancelled,
       EXISTS (SELECT FROM me WHERE me.drains) AS drains
  FROM held
  FULL JOIN mine ON mine.id = held.id AND mine.claim_no = held.claim_no
UNION ALL
SELECT NULL, NULL, EXISTS (SELECT FROM me), false, false, false,
       EXISTS (SELECT FROM me WHERE me.drains)
"""


async def renew_claims(
    connection: Connection,
    worker_id: WorkerId,
    renewals: Sequence[Renewal],
    heard: Heard = NOTHING_HEARD,
) -> Beat:
    """The beat of one worker process: says what it holds, learns what it must stop."""
    rows = await connection.fetch(
        RENEW_CLAIMS,
        worker_id,
        [renewal.job_id for renewal in renewals],
        [renewal.claim_no for renewal in renewals],
        [renewal.renewable_for for renewal in renewals],
        list(heard.silent_for),
        list(heard.heard_at),
    )
    named = [row for row in rows if row["id"] is not None]
    return Beat(
        alive=rows[0]["alive"],
        cancelled=_fences(row for row in named if row["cancelled"] and not row["stray"]),
        lost=_fences(row for row in named if row["lost"]),
        strays=_fences(row for row in named if row["stray"]),
        drains=rows[0]["drains"],
    )


def _fences(rows: Iterable[Record]) -> frozenset[Fence]:
    return frozenset((row["id"], row["claim_no"]) for row in rows)


# `state = 'processing'`, as a constraint has it; but an index of what runs keeps all that ran since
# the oldest snapshot, and with few running it would be read instead of the key.
REPORT_PROGRESS: Final = """
UPDATE jobs
   SET progress_done = $3, progress_total = $4, progress_cursor = coalesce($5, progress_cursor),
       last_progress_at = now(), updated_at = now(),
       locked_at = CASE WHEN claimed_at > now() - $6::interval THEN now() ELSE locked_at END
 WHERE id = $1 AND claim_no = $2 AND locked_by IS NOT NULL
RETURNING cancel_requested_at IS NOT NULL AS cancelled
"""


async def report_progress(
    connection: Connection,
    renewal: Renewal,
    *,
    done: int,
    total: int | None,
    cursor: JsonObject | None,
) -> bool:
    """Write how far the job is and extend its lock; True when somebody asked it to stop."""
    row = await connection.fetchrow(
        REPORT_PROGRESS,
        renewal.job_id,
        renewal.claim_no,
        done,
        total,
        cursor,
        renewal.renewable_for,
    )
    if row is None:
        raise ClaimLost.of_job(renewal.job_id, renewal.claim_no)
    return bool(row["cancelled"])
