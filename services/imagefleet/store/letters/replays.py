"""Replays: a failed job is run again as a new job, which names the one it replays.

Terminal stays terminal. What a replay is made of is the snapshot in the dead letter, and a failure
is replayed once: asking again, by whatever way, answers with the job that already replays it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from imagefleet.errors import RequestRejected
from imagefleet.jobs.kinds import JobKind
from imagefleet.jobs.model import JobId, Ring, Submission
from imagefleet.jobs.replays import ReplayOrder, ReplayOutcome, aimed, compose_replay, image_of
from imagefleet.jobs.shapes.jobs import OutcomesView
from imagefleet.jobs.shapes.letters import WholeLetter
from imagefleet.store.database import Connection
from imagefleet.store.images.originals import find_gone
from imagefleet.store.images.reprocessing import find_present
from imagefleet.store.jobs.endings import lock_targets
from imagefleet.store.jobs.rings import rings_for
from imagefleet.store.jobs.submissions import Answer, insert_submissions
from imagefleet.store.letters.letters import (
    LetterFilter,
    get_dead_letters,
    list_dead_letters,
)

MOST_AT_ONCE: Final = 100  # letters of one call: a short transaction, and a pace for its caller
REDRIVE: Final = "sqs-redrive"
_TOO_MANY: Final = f"At most {MOST_AT_ONCE} dead letters are replayed at once."


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The answer for one letter."""

    letter_id: UUID
    job_id: JobId | None
    """The job that failed."""
    outcome: ReplayOutcome
    replayed_as: JobId | None = None
    """The job that replays it, or for a duplicate the one that is in the way."""
    ring: Ring | None = None
    """To be rung after commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBatch:
    """A page of letters, and what became of each; empty when there are no more."""

    replayed: Sequence[Replayed]
    last: WholeLetter | None = None
    """Where the next page begins: also letters that could not be replayed are passed by."""
    as_of: datetime | None = None
    """Letters that died later are none of those that were to be replayed: some may be replays."""


class _DryRun(Exception):
    """On its way out of a transaction that must leave no trace."""


async def replay_letters(
    connection: Connection,
    ids: Sequence[UUID],
    order: ReplayOrder,
    kinds: Mapping[str, JobKind],
) -> list[Replayed]:
    """Replay these letters, by their own ids or by those of their jobs; unknown ids are left out.

    One transaction. Their letters are acknowledged with it: whoever replays has dealt with it.
    """
    if len(ids) > MOST_AT_ONCE:
        raise RequestRejected("invalid_request", _TOO_MANY)
    return await _replay(connection, await get_dead_letters(connection, ids), order, kinds)


READ_CLOCK: Final = """
SELECT now()
"""


async def replay_page(
    connection: Connection,
    filters: LetterFilter,
    order: ReplayOrder,
    kinds: Mapping[str, JobKind],
    *,
    after: WholeLetter | None = None,
    limit: int = MOST_AT_ONCE,
) -> ReplayBatch:
    """Replay the oldest letters that these filters name, `limit` at most.

    A canary is a small page. Whoever replays many asks for page after page, each `after` the last
    of the one before and with the first one's `as_of` as `died_until`, at their own pace, and stops
    when `count_outcomes` displeases.
    """
    if limit > MOST_AT_ONCE:
        raise RequestRejected("invalid_request", _TOO_MANY)
    as_of = filters.died_until or await connection.fetchval(READ_CLOCK)
    letters = await list_dead_letters(connection, filters, after=after, limit=limit)
    return ReplayBatch(
        as_of=as_of,
        replayed=await _replay(connection, letters, order, kinds),
        last=letters[-1] if letters else None,
    )


CLOSE_REPLAYED: Final = """
WITH known AS MATERIALIZED (
    SELECT letters.id, replays.id AS replayed_as, replays.created_by
      FROM dead_letters AS letters
      JOIN jobs AS replays ON replays.replay_of = letters.job_id
     WHERE letters.id = ANY ($1::uuid[]) AND letters.acknowledged_at IS NULL
     ORDER BY letters.id
       FOR UPDATE OF letters
)
UPDATE dead_letters
   SET acknowledged_at = now(), acknowledged_by = known.created_by,
       acknowledged_note = 'replayed as ' || known.replayed_as
  FROM known
 WHERE dead_letters.id = known.id
"""


async def _replay(
    connection: Connection,
    letters: Sequence[WholeLetter],
    order: ReplayOrder,
    kinds: Mapping[str, JobKind],
) -> list[Replayed]:
    with suppress(_DryRun):
        async with connection.transaction():
            answers = await submit_replays(connection, letters, order, kinds)
            await connection.execute(CLOSE_REPLAYED, [letter.id for letter in letters])
            if not order.dry_run:
                return answers
            raise _DryRun
    made = {answer.replayed_as for answer in answers if answer.outcome is ReplayOutcome.REPLAYED}
    return [
        replace(answer, replayed_as=None, ring=None) if answer.replayed_as in made else answer
        for answer in answers
    ]


async def replay_redriven(
    connection: Connection, job_id: JobId, kinds: Mapping[str, JobKind]
) -> Replayed | None:
    """Replay the job of a message that SQS moved back to a lane; None: it has no letter.

    For workers, which may submit jobs but not acknowledge: the sweep does that.
    """
    letters = await get_dead_letters(connection, [job_id])
    order = ReplayOrder(by=REDRIVE, reason="moved back from the dead-letter queue")
    async with connection.transaction():
        answers = await submit_replays(connection, letters, order, kinds)
    return answers[0] if answers else None


FIND_REPLAYED: Final = """
SELECT letters.id
  FROM dead_letters AS letters
 WHERE letters.acknowledged_at IS NULL
   AND EXISTS (SELECT FROM jobs WHERE jobs.replay_of = letters.job_id)
 LIMIT $1
"""


async def close_replayed(connection: Connection, *, limit: int) -> int:
    """Acknowledge letters whose jobs were replayed by somebody who may not; how many."""
    ids = [row["id"] for row in await connection.fetch(FIND_REPLAYED, limit)]
    if ids:
        await connection.execute(CLOSE_REPLAYED, ids)
    return len(ids)


FIND_REPLAYS: Final = """
SELECT jobs.replay_of, jobs.id FROM jobs WHERE jobs.replay_of = ANY ($1::uuid[])
"""


async def submit_replays(
    connection: Connection,
    letters: Sequence[WholeLetter],
    order: ReplayOrder,
    kinds: Mapping[str, JobKind],
) -> list[Replayed]:
    """Submit what replays these, in the transaction around this; their letters stay as they are."""
    judged: dict[UUID, Submission | Replayed] = {
        letter.id: _judge(letter, order, kinds) for letter in letters
    }
    await _as_images_are(connection, letters, judged)
    wanted = {id_: replay for id_, replay in judged.items() if isinstance(replay, Submission)}
    submitted = await insert_submissions(connection, list(wanted.values())) if wanted else []
    rows = await connection.fetch(FIND_REPLAYS, [replay.replay_of for replay in wanted.values()])
    replays = {row["replay_of"]: JobId(row["id"]) for row in rows}
    for letter_id, answer in zip(wanted, submitted, strict=True):
        judged[letter_id] = _answered(letter_id, wanted[letter_id], answer, replays)
    return [answer for answer in judged.values() if isinstance(answer, Replayed)]


async def _as_images_are(
    connection: Connection,
    letters: Sequence[WholeLetter],
    judged: dict[UUID, Submission | Replayed],
) -> None:
    """Of an image that was deleted nothing is rendered, though its deletion itself is replayed.

    Nor of one of which the original is not kept any more. What was moved since stays moved.
    """
    images = {
        id_: (image_id, replay)
        for id_, replay in judged.items()
        if isinstance(replay, Submission) and (image_id := image_of(replay)) is not None
    }
    if not images:
        return
    about = [letter for letter in letters if letter.id in images]
    # A tombstone is written under this lock: it stands by now, or finds the replay and ends it; so
    # are originals forgotten.
    await lock_targets(connection, [letter.job_id for letter in about if letter.job_id is not None])
    present = await find_present(connection, [image_id for image_id, _ in images.values()])
    keys = [str(replay.payload.get("source_key")) for _, replay in images.values()]
    lost = await find_gone(connection, keys)
    for letter in about:
        image_id, replay = images[letter.id]
        deleted, source_seq, focal = present[image_id]
        judged[letter.id] = aimed(replay, source_seq, focal)
        if deleted:
            judged[letter.id] = _refused(letter, ReplayOutcome.IMAGE_DELETED)
        elif replay.payload.get("source_key") in lost:
            judged[letter.id] = _refused(letter, ReplayOutcome.ORIGINAL_GONE)


def _judge(
    letter: WholeLetter, order: ReplayOrder, kinds: Mapping[str, JobKind]
) -> Submission | Replayed:
    if letter.replayed_as is not None:
        return _refused(letter, ReplayOutcome.ALREADY_REPLAYED)
    if letter.job_id is None:
        return _refused(letter, ReplayOutcome.NOT_REPLAYABLE)
    if letter.acknowledged_at is not None and not order.force:
        return _refused(letter, ReplayOutcome.ACKNOWLEDGED)
    try:
        return compose_replay(letter.snapshot, order, kinds)
    except ValueError:
        return _refused(letter, ReplayOutcome.NOT_REPLAYABLE)


def _refused(letter: WholeLetter, outcome: ReplayOutcome) -> Replayed:
    return Replayed(
        letter_id=letter.id,
        job_id=letter.job_id,
        outcome=outcome,
        replayed_as=letter.replayed_as,
    )


def _answered(
    letter_id: UUID, submission: Submission, answer: Answer, replays: Mapping[JobId, JobId]
) -> Replayed:
    if isinstance(answer, RequestRejected):  # a replay has no such key
        raise answer
    failed = submission.replay_of
    outcome = ReplayOutcome.REPLAYED
    if not answer.created:
        standing = failed is not None and replays.get(failed) == answer.job_id
        outcome = ReplayOutcome.ALREADY_REPLAYED if standing else ReplayOutcome.DUPLICATE
    return Replayed(
        letter_id=letter_id,
        job_id=failed,
        outcome=outcome,
        replayed_as=answer.job_id,
        ring=next(iter(rings_for([(submission, answer)])), None),
    )


COUNT_OUTCOMES: Final = """
SELECT count(*) FILTER (WHERE jobs.state IN ('queued', 'processing', 'failed_retryable')) AS open,
       count(*) FILTER (WHERE jobs.state = 'completed') AS completed,
       count(*) FILTER (WHERE jobs.state = 'failed') AS failed
  FROM jobs
 WHERE jobs.id = ANY ($1::uuid[])
"""


async def count_outcomes(connection: Connection, job_ids: Sequence[JobId]) -> OutcomesView:
    """Tell how replays went, so that whoever replays many can stop before all have failed again."""
    (row,) = await connection.fetch(COUNT_OUTCOMES, list(job_ids))
    return OutcomesView.of(row)
