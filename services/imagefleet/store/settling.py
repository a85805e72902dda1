"""What a worker's attempts came to, written down: many outcomes in one transaction, each fenced.

Settling is idempotent. A claim that does not stand any more is looked up in `attempts`: if this
worker itself ended it, the reply of an earlier settle was lost on the way and nothing is left to
do; otherwise the claim is lost. So after a broken connection the worker just settles again.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import structlog

from imagefleet.errors import IllegalTransition, StoreRejected, Unavailable
from imagefleet.jobs.lifecycle import (
    Completed,
    Failed,
    Outcome,
    ResultReason,
    decide,
    failure_sentence,
)
from imagefleet.jobs.model import (
    Claim,
    Ended,
    Fence,
    JobId,
    JobState,
    Lane,
    Ring,
    TenantId,
    WorkerId,
)
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection
from imagefleet.store.images.emptying import record_emptied
from imagefleet.store.images.images import publish_images
from imagefleet.store.jobs.endings import Held, end_claims, lock_claims
from imagefleet.store.jobs.rings import rings_for
from imagefleet.store.jobs.submissions import insert_submissions
from imagefleet.store.jobs.targets import free_targets, lock_targets

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """One claim and the outcome its attempt asks for."""

    job_id: JobId
    claim_no: int
    outcome: Outcome
    policy: RetryPolicy

    @classmethod
    def of(cls, claim: Claim, outcome: Outcome, policy: RetryPolicy) -> "Settlement":
        """The settlement of this claim."""
        return cls(job_id=claim.job_id, claim_no=claim.claim_no, outcome=outcome, policy=policy)

    @property
    def fence(self) -> Fence:
        """The claim that it is about."""
        return (self.job_id, self.claim_no)


class Settled(StrEnum):
    """How the database answered a settlement."""

    WRITTEN = "written"
    ALREADY = "already"
    """An earlier settle of the same claim had succeeded; only its reply was lost."""
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The answer to one settlement."""

    job_id: JobId
    settled: Settled
    outcome: Outcome | None
    """What was written, after `decide`; None unless this call wrote it."""
    ended: Ended | None
    """How the claim ended, by this call or the earlier one; None where that is not ours to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleReport:
    """One receipt for each settlement, in order, and the doorbells to ring now."""

    receipts: tuple[Receipt, ...]
    rings: tuple[Ring, ...]


async def settle_jobs(
    connection: Connection, worker_id: WorkerId, settlements: Sequence[Settlement]
) -> SettleReport:
    """Write every outcome. One that cannot be written does not hold up the others: it is rejected.

    What Unavailable leaves behind is not known, and settling again is safe.
    """
    if not settlements:
        return SettleReport(receipts=(), rings=())
    try:
        return await _settle_at_once(connection, worker_id, settlements)
    except Unavailable:
        raise
    except Exception:  # noqa: BLE001 - whose it is, and what of it is told, is found one by one
        reports = [await _settle_alone(connection, worker_id, one) for one in settlements]
    return SettleReport(
        receipts=tuple(receipt for report in reports for receipt in report.receipts),
        rings=tuple(ring for report in reports for ring in report.rings),
    )


async def _settle_alone(
    connection: Connection, worker_id: WorkerId, settlement: Settlement
) -> SettleReport:
    try:
        return await _settle_at_once(connection, worker_id, [settlement])
    except Unavailable:
        raise
    except (StoreRejected, IllegalTransition) as error:
        log.error(  # noqa: TRY400 - translated: the trace ends at the driver
            "settle.rejected",
            job_id=str(settlement.job_id),
            claim_no=settlement.claim_no,
            outcome=type(settlement.outcome).__name__,
            detail=error.detail,
        )
        why = error.code  # a fixed word: the refused value must not come back in by it
    except Exception:
        log.exception("settle.broken", job_id=str(settlement.job_id))
        why = None
    rejected = Failed(
        code="settle_rejected", message=failure_sentence("settle_rejected"), detail=why
    )
    return await _settle_at_once(connection, worker_id, [replace(settlement, outcome=rejected)])


async def _settle_at_once(
    connection: Connection, worker_id: WorkerId, settlements: Sequence[Settlement]
) -> SettleReport:
    async with connection.transaction():
        return await _settle_in_transaction(connection, worker_id, settlements)


async def _settle_in_transaction(
    connection: Connection, worker_id: WorkerId, settlements: Sequence[Settlement]
) -> SettleReport:
    job_ids = [settlement.job_id for settlement in settlements]
    targets = await lock_targets(connection, job_ids)
    held = await lock_claims(connection, [one.fence for one in settlements])
    mine = {fence: one for fence, one in held.items() if one.worker_id == worker_id}
    endings = {
        one.fence: (mine[one.fence], _decided(one, mine[one.fence]))
        for one in settlements
        if one.fence in mine
    }
    await _publish(connection, endings)
    ended = await end_claims(connection, list(endings.values()))
    rings = await _follow_up(connection, list(endings.values()))
    rings += await free_targets(connection, targets, [job_id for job_id, _ in endings])
    unheld = [one.job_id for one in settlements if one.fence not in endings]
    ended += await _ended_by(connection, worker_id, unheld)
    known = {one.fence: one for one in ended}
    return SettleReport(
        receipts=tuple(_receipt(one, endings, known) for one in settlements), rings=tuple(rings)
    )


def _decided(settlement: Settlement, held: Held) -> Outcome:
    dice = random.random()  # noqa: S311 - spreads retries, guards nothing
    return decide(settlement.outcome, held.standing, settlement.policy, held.now, jitter=dice)


def _receipt(
    settlement: Settlement,
    endings: dict[Fence, tuple[Held, Outcome]],
    known: dict[Fence, Ended],
) -> Receipt:
    outcome, settled, ended = None, Settled.LOST, known.get(settlement.fence)
    if settlement.fence in endings:
        outcome, settled = endings[settlement.fence][1], Settled.WRITTEN
    elif ended is not None:
        settled = Settled.ALREADY
    return Receipt(job_id=settlement.job_id, settled=settled, outcome=outcome, ended=ended)


async def _publish(connection: Connection, endings: dict[Fence, tuple[Held, Outcome]]) -> None:
    """Flip the pointers of what completes; whoever finds something newer there is superseded.

    And write the receipts of what was deleted.
    """
    publications = {
        fence: outcome.publication
        for fence, (_, outcome) in endings.items()
        if isinstance(outcome, Completed) and outcome.publication is not None
    }
    flipped = await publish_images(connection, list(publications.values()))
    for fence in publications:
        held, outcome = endings[fence]
        if held.job_id not in flipped and isinstance(outcome, Completed):
            endings[fence] = (held, replace(outcome, reason=ResultReason.SUPERSEDED))
    completed = [one for _, one in endings.values() if isinstance(one, Completed)]
    emptied = [one.emptied for one in completed if one.emptied is not None]
    if emptied:
        await record_emptied(connection, emptied)


async def _follow_up(connection: Connection, endings: Sequence[tuple[Held, Outcome]]) -> list[Ring]:
    """A cancellation that came too late for the job itself still drops what was to follow it."""
    follow_ups = [
        submission
        for held, outcome in endings
        if isinstance(outcome, Completed) and held.standing.cancel_code is None
        for submission in outcome.follow_ups
    ]
    if not follow_ups:
        return []
    answers = await insert_submissions(connection, follow_ups)
    return list(rings_for(zip(follow_ups, answers, strict=True)))


# A run that was given back was charged while it lasted; of a worker's own ends only the settling of
# a flagged job, which fails it, never was.
ENDED_BY: Final = """
SELECT attempts.job_id, attempts.claim_no, attempts.tenant_id, attempts.type, attempts.lane,
       attempts.worker_id, attempts.duration, attempts.queue_time, attempts.outcome, attempts.why,
       (SELECT count(*) FROM attempts AS earlier
         WHERE earlier.job_id = attempts.job_id AND earlier.claim_no < attempts.claim_no
           AND earlier.charged)
       + (attempts.charged OR attempts.outcome <> 'failed')::int AS attempts,
       jobs.max_attempts, jobs.correlation_id, jobs.traceparent
  FROM attempts
  JOIN jobs ON jobs.id = attempts.job_id
 WHERE attempts.job_id = ANY ($1::uuid[])
   AND attempts.worker_id = $2
   AND attempts.outcome IN ('completed', 'retried', 'failed', 'released')
"""
LEAVES: Final = MappingProxyType(
    {
        "completed": JobState.COMPLETED,
        "retried": JobState.FAILED_RETRYABLE,
        "failed": JobState.FAILED,
        "released": JobState.FAILED_RETRYABLE,
    }
)


async def _ended_by(
    connection: Connection, worker_id: WorkerId, job_ids: Sequence[JobId]
) -> list[Ended]:
    if not job_ids:
        return []
    rows = await connection.fetch(ENDED_BY, list(job_ids), worker_id)
    return [
        Ended(
            job_id=JobId(row["job_id"]),
            claim_no=row["claim_no"],
            tenant_id=TenantId(row["tenant_id"]),
            type=row["type"],
            lane=Lane(row["lane"]),
            worker_id=worker_id,
            duration=row["duration"],
            queue_time=row["queue_time"],
            outcome=row["outcome"],
            why=row["why"],
            state=LEAVES[row["outcome"]],
            attempts=row["attempts"],
            max_attempts=row["max_attempts"],
            correlation_id=row["correlation_id"],
            traceparent=row["traceparent"],
        )
        for row in rows
    ]
