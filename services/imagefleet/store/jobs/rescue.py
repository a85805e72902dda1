"""Repair, under the maintenance role: the rescue of what dead workers held."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias
from uuid import UUID, uuid4

import structlog

from imagefleet.errors import FleetError, IllegalTransition, StoreRejected
from imagefleet.jobs.lifecycle import Outcome, Retry, decide, failure_sentence
from imagefleet.jobs.model import Ended, Fence, JobId, JobState, Ring, WorkerId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection
from imagefleet.store.jobs.endings import (
    Held,
    end_claims,
    free_targets,
    lock_claims,
    rejected,
)

RESCUE_SPREAD: Final = timedelta(seconds=5)  # a dead worker's jobs come back one after the other

log = structlog.get_logger()

LOOK_AT_WORKERS: Final = """
SELECT workers.id AS worker_id, workers.beats, clock_timestamp() AS seen_at
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
    return [WorkerSeen(**dict(row)) for row in await connection.fetch(LOOK_AT_WORKERS)]


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


# Shorter than the gap that a rescuer allows between its looks: a row that somebody sits on must not
# cost the others their watches.
WAIT_BRIEFLY: Final = """
SELECT set_config('lock_timeout', '2s', true)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescue:
    """What the rescue of one worker's jobs did."""

    ended: tuple[Ended, ...]
    rings: tuple[Ring, ...]
    """Whom the freed targets are for; what was rescued itself is due within seconds."""

    @property
    def retried(self) -> tuple[JobId, ...]:
        """Those that run again."""
        return tuple(end.job_id for end in self.ended if end.state is JobState.FAILED_RETRYABLE)

    @property
    def failed(self) -> tuple[JobId, ...]:
        """Poison, flagged to be cancelled, or refused by the database as anything else."""
        return tuple(end.job_id for end in self.ended if end.state is JobState.FAILED)


_Endings: TypeAlias = list[tuple[Held, Outcome]]
_TakenBack: TypeAlias = tuple[list[Ended], list[Ring]]


@dataclass(frozen=True, slots=True)
class Rescuing:
    """Who rescues, and what he may have ended should he never get an answer."""

    by: UUID = field(default_factory=uuid4)
    claims: set[Fence] = field(default_factory=set)


async def rescue_worker(
    connection: Connection, seen: WorkerSeen, rescuing: Rescuing | None = None
) -> Rescue | None:
    """Declare a silent worker dead and take its jobs back; None when it has beaten since that look.

    One transaction. A dead id can neither beat nor claim, so nothing is left behind, but for a job
    that the database refuses to end in any way: that one waits for its lock to expire.
    """
    rescuing = rescuing or Rescuing()
    try:
        return await _rescue_in_transaction(connection, seen, rescuing, _take_back)
    except (StoreRejected, IllegalTransition):
        return await _rescue_in_transaction(connection, seen, rescuing, _take_back_apart)


async def _rescue_in_transaction(
    connection: Connection,
    seen: WorkerSeen,
    rescuing: Rescuing,
    take_back: Callable[[Connection, UUID, _Endings], Awaitable[_TakenBack]],
) -> Rescue | None:
    async with connection.transaction():
        await connection.execute(WAIT_BRIEFLY)
        if await connection.fetchrow(CONDEMN_WORKER, seen.worker_id, seen.beats) is None:
            return None
        rows = await connection.fetch(HELD_BY_WORKER, seen.worker_id)
        claims = [(JobId(row["id"]), row["claim_no"]) for row in rows]
        held = await lock_claims(connection, claims)
        rescuing.claims.update(held)  # before anything of it can be committed
        ended, rings = await take_back(
            connection,
            rescuing.by,
            [(claim, _rescued(claim, neighbours=len(claims) - 1)) for claim in held.values()],
        )
    return Rescue(ended=tuple(ended), rings=tuple(rings))


async def _take_back(connection: Connection, by: UUID, endings: _Endings) -> _TakenBack:
    ended = await end_claims(connection, endings, by)
    job_ids = [held.job_id for held, _ in endings]
    return ended, await free_targets(connection, job_ids, job_ids)


async def _take_back_apart(connection: Connection, by: UUID, endings: _Endings) -> _TakenBack:
    """Each in a savepoint: what is refused fails alone, and what is refused even that, stays."""
    ended: list[Ended] = []
    rings: list[Ring] = []
    for held, outcome in endings:
        try:
            ends, rung = await _take_back_or_fail(connection, by, held, outcome)
        except (StoreRejected, IllegalTransition) as error:
            _tell("rescue.refused", held, error)
        else:
            ended += ends
            rings += rung
    return ended, rings


async def _take_back_or_fail(
    connection: Connection, by: UUID, held: Held, outcome: Outcome
) -> _TakenBack:
    try:
        async with connection.transaction():
            return await _take_back(connection, by, [(held, outcome)])
    except (StoreRejected, IllegalTransition) as error:
        _tell("rescue.rejected", held, error)
        refused = rejected(error.code)
    async with connection.transaction():
        return await _take_back(connection, by, [(held, refused)])


def _tell(event: str, held: Held, error: FleetError) -> None:
    log.error(
        event,
        job_id=str(held.job_id),
        claim_no=held.claim_no,
        worker_id=str(held.worker_id),
        detail=error.detail,
    )


def _rescued(held: Held, *, neighbours: int) -> Outcome:
    """A suspect is blamed only where nothing else was held by the worker that died with it."""
    dice = random.random()  # noqa: S311 - spreads retries, guards nothing
    lost = Retry(
        code="worker_lost",
        message=failure_sentence("worker_lost"),
        detail=f"worker {held.worker_id} went silent, with {neighbours} other jobs",
        crashed=True,
        alone=neighbours == 0,
        run_at=held.now + RESCUE_SPREAD * dice,
    )
    return decide(lost, held, RetryPolicy(), held.now, jitter=dice)
