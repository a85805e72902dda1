"""Repair, under the maintenance role: the rescue of what dead workers held."""

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import asyncpg

from imagefleet.jobs.lifecycle import Failed, Outcome, Retry, decide, failure_sentence
from imagefleet.jobs.model import JobId, Ring, WorkerId
from imagefleet.jobs.retry import RetryPolicy
from imagefleet.store.database import Connection, translated
from imagefleet.store.endings import Held, end_claims, lock_claims
from imagefleet.store.targets import free_targets, lock_targets

# A pooled connection is none: whoever says "the same session" would be given another each time.
Session: TypeAlias = asyncpg.Connection

RESCUE_SPREAD: Final = timedelta(seconds=5)  # a dead worker's jobs come back one after the other

LOOK_AT_WORKERS: Final = """
SELECT workers.id, workers.beats, clock_timestamp() AS seen_at
  FROM workers
 WHERE workers.dead_at IS NULL
 ORDER BY workers.id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """One look at one living worker: how often it had beaten, and when that was seen."""

    worker_id: WorkerId
    beats: int
    seen_at: datetime


async def look_at_workers(connection: Connection) -> list[WorkerSeen]:
    """All that are not known to be dead."""
    with translated():
        rows = await connection.fetch(LOOK_AT_WORKERS)
    return [
        WorkerSeen(worker_id=WorkerId(row["id"]), beats=row["beats"], seen_at=row["seen_at"])
        for row in rows
    ]


CONDEMN_WORKER: Final = """
WITH silent AS MATERIALIZED (
    -- Excludes the claim, which holds this row FOR KEY SHARE, and any beat since the last look.
    SELECT workers.id
      FROM workers
     WHERE workers.id = $1 AND workers.beats = $2 AND workers.dead_at IS NULL
       FOR UPDATE
)
UPDATE workers SET dead_at = now(), dead_why = 'silent'
  FROM silent
 WHERE workers.id = silent.id
RETURNING workers.id
"""

HELD_BY_WORKER: Final = """
SELECT jobs.id, jobs.claim_no FROM jobs
 WHERE jobs.locked_by = $1 AND jobs.state = 'processing'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescue:
    """What the rescue of one worker's jobs did."""

    retried: tuple[JobId, ...]
    failed: tuple[JobId, ...]
    """Lost twice and then once more alone in quarantine (`poison`), or flagged to be cancelled."""
    rings: tuple[Ring, ...]


async def rescue_worker(connection: Connection, seen: WorkerSeen) -> Rescue | None:
    """Declare a silent worker dead and take its jobs back; None when it has beaten since that look.

    One transaction. A dead id can neither beat nor claim, so nothing is left behind.
    """
    with translated():
        async with connection.transaction():
            if await connection.fetchrow(CONDEMN_WORKER, seen.worker_id, seen.beats) is None:
                return None
            rows = await connection.fetch(HELD_BY_WORKER, seen.worker_id)
            claims = [(JobId(row["id"]), row["claim_no"]) for row in rows]
            targets = await lock_targets(connection, [job_id for job_id, _ in claims])
            held = await lock_claims(connection, claims)
            endings = [(one, _rescued(one)) for one in held.values()]
            await end_claims(connection, endings, retried_as="rescued", failed_as="rescued")
            rings = await free_targets(connection, targets, list(held))
    return Rescue(
        retried=tuple(one.job_id for one, outcome in endings if isinstance(outcome, Retry)),
        failed=tuple(one.job_id for one, outcome in endings if isinstance(outcome, Failed)),
        rings=tuple(rings),
    )


def _rescued(held: Held) -> Outcome:
    dice = random.random()  # noqa: S311 - spreads retries, guards nothing
    lost = Retry(
        code="worker_lost",
        message=failure_sentence("worker_lost"),
        detail=f"worker {held.worker_id} went silent",
        crashed=True,
        run_at=held.now + RESCUE_SPREAD * dice,
    )
    return decide(lost, held.standing, RetryPolicy(), held.now, jitter=dice)
