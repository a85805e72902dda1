"""Replaying many letters by one job: a page of replays and the cursor behind it, both or neither.

A worker may submit jobs, but not acknowledge letters: a letter whose job was replayed is not open
any more, whoever looks, and maintenance writes that down with its next sweep.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from imagefleet.jobs.bulk import ReplayWalk
from imagefleet.jobs.kinds import JobKind, ReplayJobs
from imagefleet.jobs.model import Claim, TenantId
from imagefleet.jobs.replays import ReplayOrder
from imagefleet.store.database import Connection
from imagefleet.store.images.reprocessing import CREATED_BY
from imagefleet.store.jobs.leases import Renewal, report_progress
from imagefleet.store.letters.letters import (
    LetterFilter,
    LetterPlace,
    count_open_letters,
    list_dead_letters,
)
from imagefleet.store.letters.replays import submit_replays

PAGE: Final = 25  # letters; the targets of their images stay locked for a few milliseconds
MOST_COUNTED: Final = 1_000_000  # letters; a longer walk has no total


def letters_of(wanted: ReplayJobs) -> LetterFilter:
    """Which letters an order names."""
    return LetterFilter(
        tenant_id=None if wanted.tenant is None else TenantId(wanted.tenant),
        type=wanted.job_type,
        reason=wanted.code,
        fingerprint=wanted.fingerprint,
        died_after=wanted.died_after,
        died_until=wanted.died_until,
    )


async def begin_replays(connection: Connection, wanted: ReplayJobs) -> ReplayWalk:
    """At the oldest letter."""
    counted = await count_open_letters(connection, letters_of(wanted), most=MOST_COUNTED + 1)
    return ReplayWalk(total=counted if counted <= MOST_COUNTED else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedPage:
    """What one step of a walk did."""

    walk: ReplayWalk
    over: bool
    cancelled: bool
    """Somebody asked the walk itself to stop: nothing of the page was replayed."""


class _Stopped(Exception):
    """On its way out of a transaction that must leave no trace."""


async def replay_next(
    connection: Connection,
    claim: Claim,
    renewal: Renewal,
    wanted: ReplayJobs,
    walk: ReplayWalk,
    kinds: Mapping[str, JobKind],
    most: int = PAGE,
) -> ReplayedPage:
    """Submit the replays of the next page and move the cursor behind it, both or neither.

    Raises ClaimLost if the claim does not stand any more; then the page belongs to another.
    """
    try:
        async with connection.transaction():
            return await _replay_in_transaction(
                connection, claim, renewal, wanted, walk, kinds, most
            )
    except _Stopped:
        return ReplayedPage(walk=walk, over=False, cancelled=True)


async def _replay_in_transaction(
    connection: Connection,
    claim: Claim,
    renewal: Renewal,
    wanted: ReplayJobs,
    walk: ReplayWalk,
    kinds: Mapping[str, JobKind],
    most: int,
) -> ReplayedPage:
    after = None
    if walk.died_at is not None and walk.before is not None:
        after = LetterPlace(walk.died_at, walk.before)
    letters = await list_dead_letters(connection, letters_of(wanted), after=after, limit=most)
    order = ReplayOrder(
        by=await connection.fetchval(CREATED_BY, claim.job_id),
        reason=wanted.reason,
        traceparent=claim.traceparent,
        tracestate=claim.tracestate,
    )
    answers = await submit_replays(connection, letters, order, kinds)
    counts = Counter(walk.outcomes) + Counter(answer.outcome.value for answer in answers)
    walked = walk.behind([letter.id for letter in letters], walk.seen + len(letters))
    more = {"died_at": letters[-1].died_at} if letters else {}
    walked = walked.model_copy(update={"outcomes": dict(counts), **more})
    # Last, and in the same transaction: targets are locked before jobs, and without the claim
    # nothing of the page is submitted either.
    if await report_progress(
        connection, renewal, done=walked.seen, total=walked.total, cursor=walked.cursor
    ):
        raise _Stopped
    return ReplayedPage(walk=walked, over=len(letters) < most, cancelled=False)
