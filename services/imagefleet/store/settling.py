"""What a worker's attempts came to, written down: many outcomes in one transaction, each fenced.

The protocol, as the transaction below goes through it: lock the targets, then the claims that still
stand; decide each outcome under that lock; flip the pointers of what completes; end the claims,
each with its one row of `attempts`; submit what follows; free the targets and ring who is next.
Where all complete and there is nothing else to it, one statement locks the claims and ends them.

What it promises: an attempt's outcome counts once, and only while its claim `(job_id, claim_no)`
stands and is this worker's. A job is completed if and only if its image was published or found
superseded, its deletion has its receipt, and its follow-ups are there. No target stays taken by a
job that ended. The worker deletes the message afterwards: a crash in between costs a verdict.

Settling is idempotent. A claim that does not stand any more is looked up in `attempts`: if this
worker itself ended it, the reply of an earlier settle was lost on the way and nothing is left to
do; otherwise the claim is lost. So after a broken connection the worker just settles again.

What an attempt asks for is not what is written: `decide` sees the flags, crashes and charges of the
locked row, so that a cancellation that came first wins, whatever the worker had heard of it. And
many are settled at once for the price of one commit; but one outcome that the database refuses
would take its neighbours with it. So after a refusal each is settled alone, and what is refused
alone fails as `settle_rejected`, with a word of ours and never the refused value. A savepoint for
each job would make every batch pay for what a broken one needs.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

import structlog

from imagefleet.errors import IllegalTransition, StoreRejected, Unavailable
from imagefleet.jobs.lifecycle import Completed, Outcome, ResultReason, decide
from imagefleet.jobs.model import Claim, Ended, Fence, JobId, Ring, WorkerId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection
from imagefleet.store.images.deleting import record_emptied
from imagefleet.store.images.images import publish_images
from imagefleet.store.jobs.endings import (
    Held,
    Used,
    complete_jobs,
    end_claims,
    free_targets,
    lock_claims,
    rejected,
)
from imagefleet.store.jobs.rings import rings_for
from imagefleet.store.jobs.submissions import insert_submissions
from imagefleet.store.jobs.unheard import find_own_ends

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """One claim and the outcome its attempt asks for."""

    job_id: JobId
    claim_no: int
    outcome: Outcome
    policy: RetryPolicy
    may_have_target: bool = True
    """Told by the claim, where that is at hand."""
    used: Used = field(default_factory=dict)
    """What the attempt's children took."""

    @classmethod
    def of(
        cls, claim: Claim, outcome: Outcome, policy: RetryPolicy, used: Used | None = None
    ) -> "Settlement":
        """The settlement of this claim."""
        return cls(
            job_id=claim.job_id,
            claim_no=claim.claim_no,
            outcome=outcome,
            policy=policy,
            may_have_target=claim.target is not None,
            used=used or {},
        )

    @property
    def fence(self) -> Fence:
        """The claim that it is about."""
        return (self.job_id, self.claim_no)

    @property
    def only_completes(self) -> bool:
        """Whether nothing of the locked row is to be asked, and nothing else is to be written."""
        if self.may_have_target or not isinstance(self.outcome, Completed):
            return False
        return not (self.outcome.publication or self.outcome.emptied or self.outcome.follow_ups)


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
        reports = [
            await _settle_alone(connection, worker_id, settlement) for settlement in settlements
        ]
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
        refused = rejected(error.code)
    except Exception:
        log.exception("settle.broken", job_id=str(settlement.job_id))
        refused = rejected(None)
    return await _settle_at_once(connection, worker_id, [replace(settlement, outcome=refused)])


async def _settle_at_once(
    connection: Connection, worker_id: WorkerId, settlements: Sequence[Settlement]
) -> SettleReport:
    if all(settlement.only_completes for settlement in settlements):
        asked = {settlement.fence: settlement.outcome for settlement in settlements}
        ended = await complete_jobs(connection, worker_id, asked, _used(settlements))
        written = {end.fence: asked[end.fence] for end in ended}
        return await _report(connection, worker_id, settlements, written, ended)
    async with connection.transaction():
        return await _settle_in_transaction(connection, worker_id, settlements)


async def _settle_in_transaction(
    connection: Connection, worker_id: WorkerId, settlements: Sequence[Settlement]
) -> SettleReport:
    """Write them; the order of the locks is that of everybody who locks jobs."""
    held = await lock_claims(connection, [settlement.fence for settlement in settlements])
    endings = _decide(worker_id, settlements, held)
    await _publish(connection, endings)
    decided = {fence: outcome for fence, (_, outcome) in endings.items()}
    used = _used(settlements)
    ended = await complete_jobs(connection, worker_id, decided, used)
    ended += await end_claims(connection, list(endings.values()), used=used)
    rings = await _follow_up(connection, list(endings.values()))
    if about := [settlement.job_id for settlement in settlements if settlement.may_have_target]:
        rings += await free_targets(connection, about, [job_id for job_id, _ in endings])
    return await _report(connection, worker_id, settlements, decided, ended, rings)


def _used(settlements: Sequence[Settlement]) -> dict[Fence, Used]:
    return {settlement.fence: settlement.used for settlement in settlements if settlement.used}


_Endings: TypeAlias = dict[Fence, tuple[Held, Outcome]]


def _decide(
    worker_id: WorkerId, settlements: Sequence[Settlement], held: dict[Fence, Held]
) -> _Endings:
    """What becomes of the claims that are this worker's own, as their locked rows say."""
    mine = {fence: claim for fence, claim in held.items() if claim.worker_id == worker_id}
    return {
        settlement.fence: (mine[settlement.fence], _decided(settlement, mine[settlement.fence]))
        for settlement in settlements
        if settlement.fence in mine
    }


def _decided(settlement: Settlement, held: Held) -> Outcome:
    dice = random.random()  # noqa: S311 - spreads retries, guards nothing
    return decide(settlement.outcome, held, settlement.policy, held.now, jitter=dice)


async def _publish(connection: Connection, endings: _Endings) -> None:
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
    completed = [outcome for _, outcome in endings.values() if isinstance(outcome, Completed)]
    emptied = [outcome.emptied for outcome in completed if outcome.emptied is not None]
    if emptied:
        await record_emptied(connection, emptied)


async def _follow_up(connection: Connection, endings: Sequence[tuple[Held, Outcome]]) -> list[Ring]:
    """A cancellation that came too late for the job itself still drops what was to follow it."""
    follow_ups = [
        submission
        for held, outcome in endings
        if isinstance(outcome, Completed) and held.cancel_code is None
        for submission in outcome.follow_ups
    ]
    if not follow_ups:
        return []
    answers = await insert_submissions(connection, follow_ups)
    return list(rings_for(zip(follow_ups, answers, strict=True)))


async def _report(
    connection: Connection,
    worker_id: WorkerId,
    settlements: Sequence[Settlement],
    written: Mapping[Fence, Outcome],
    ended: Sequence[Ended],
    rings: Sequence[Ring] = (),
) -> SettleReport:
    if unheld := [each.job_id for each in settlements if each.fence not in written]:
        ended = [*ended, *await find_own_ends(connection, worker_id, unheld)]
    known = {end.fence: end for end in ended}
    receipts = tuple(
        _receipt(settlement.job_id, written.get(settlement.fence), known.get(settlement.fence))
        for settlement in settlements
    )
    return SettleReport(receipts=receipts, rings=tuple(rings))


def _receipt(job_id: JobId, outcome: Outcome | None, ended: Ended | None) -> Receipt:
    earlier = Settled.LOST if ended is None else Settled.ALREADY
    settled = earlier if outcome is None else Settled.WRITTEN
    return Receipt(job_id=job_id, settled=settled, outcome=outcome, ended=ended)
