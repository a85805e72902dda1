"""Dead letters: what could not succeed, for people to look at, acknowledge and replay.

The protocol: the row is written by a trigger, with the failure itself and by whichever statement
failed the job (migrations/0004_dead_letters.sql), and with it the send of a copy to the dead-letter
queue. A letter is dealt with when somebody acknowledged it, or when a job exists that replays its
job. A letter of no job tells of a message that nobody could read, or whose job nobody knows.

What it promises: no failed job without its one letter, and no letter without a failure. A job whose
letter is open is not pruned. What a letter has of its job is a snapshot, enough to submit it again
(`replays`); terminal stays terminal, so a replay is a new job that names the one it replays, and a
failure is replayed once, by whatever way it is asked for.

The rows are the truth and SQS has a copy (`dead_letter_queue`), for those who look there and for
SQS's own redrive: a message that comes back that way is known by its job and replayed. It is not
left to SQS to say what is dead: it counts receives, not attempts, and an outage of the database
would move healthy jobs there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from imagefleet.errors import NotFound, RequestRejected
from imagefleet.jobs.model import TenantId
from imagefleet.jobs.shapes.letters import WholeLetter
from imagefleet.store.database import Connection
from imagefleet.store.jobs.pruning import Page, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which letters; everything that is set must hold.

    The open ones are few, and any filter may be asked of them. The history is read by its indexes
    only: whole, or by one tenant, or by one fingerprint.
    """

    tenant_id: TenantId | None = None
    type: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    open_only: bool = True
    """Neither acknowledged nor replayed."""
    died_until: datetime | None = None
    """Only those that there were at this time of the database."""
    died_after: datetime | None = None


class LetterPlace(NamedTuple):
    """Where a letter stands among those that are listed."""

    died_at: datetime
    id: UUID


_LETTER: Final = """
SELECT letters.id, letters.job_id, letters.tenant_id, letters.type, letters.reason,
       letters.fingerprint, letters.message, letters.detail, letters.died_at,
       letters.acknowledged_at, letters.acknowledged_by, letters.acknowledged_note,
       replays.id AS replayed_as, letters.snapshot
  FROM dead_letters AS letters
  LEFT JOIN LATERAL (
      -- Unique anyway; the LIMIT keeps it a look into the index for each letter of the page.
      SELECT jobs.id FROM jobs WHERE jobs.replay_of = letters.job_id LIMIT 1
  ) AS replays ON true
"""

_LETTERS_NAME: Final = "dead letter"

LAST_ID: Final = UUID(int=2**128 - 1)

GET_LETTERS: Final = f"""
{_LETTER}
 WHERE letters.id = ANY ($1::uuid[]) OR letters.job_id = ANY ($1::uuid[])
 ORDER BY letters.died_at, letters.id
"""


async def get_dead_letters(
    connection: Connection, letter_or_job_ids: Sequence[UUID]
) -> list[WholeLetter]:
    """Those of these letters that there are, by their own ids or by those of their jobs."""
    rows = await connection.fetch(GET_LETTERS, list(letter_or_job_ids))
    return [WholeLetter.of(row) for row in rows]


FIND_LETTERS: Final = f"""
{_LETTER}
 WHERE letters.id = ANY (ARRAY (
           (SELECT known.id FROM dead_letters AS known
             WHERE known.id >= $1 AND known.id < $2 ORDER BY known.id LIMIT $3)
           UNION
           (SELECT known.id FROM dead_letters AS known
             WHERE known.job_id >= $1 AND known.job_id < $2 ORDER BY known.job_id LIMIT $3)))
 ORDER BY letters.died_at, letters.id
 LIMIT $3
"""  # noqa: S608 - composed at import from the constant above


async def find_dead_letters(
    connection: Connection, first: UUID, before: UUID, *, limit: int
) -> list[WholeLetter]:
    """Letters whose own id, or that of their job, lies there."""
    rows = await connection.fetch(FIND_LETTERS, first, before, limit)
    return [WholeLetter.of(row) for row in rows]


async def get_dead_letter(connection: Connection, letter_or_job_id: UUID) -> WholeLetter:
    """The one letter with this id, or of the job with it."""
    letters = await get_dead_letters(connection, [letter_or_job_id])
    if not letters:
        raise NotFound(_LETTERS_NAME)
    return letters[0]


# A page starts in the middle of its index, also by a plan that is made once for every page.
_BETWEEN: Final = """
   AND (letters.died_at, letters.id) > (coalesce($1::timestamptz, '-infinity'),
                                        coalesce($2::uuid, '00000000-0000-0000-0000-000000000000'))
   AND letters.died_at <= coalesce($4::timestamptz, 'infinity')
"""

_PAGE: Final = f"""
{_BETWEEN}
 ORDER BY letters.died_at, letters.id
 LIMIT $3
"""

# The open ones have an index of their own: history is never read for them.
_OPEN: Final = """
 WHERE letters.acknowledged_at IS NULL
   AND ($5::text IS NULL OR letters.tenant_id = $5)
   AND ($6::text IS NULL OR letters.type = $6)
   AND ($7::text IS NULL OR letters.reason = $7)
   AND ($8::text IS NULL OR letters.fingerprint = $8)
"""

LIST_OPEN_LETTERS: Final = f"""
{_LETTER}
{_OPEN} AND replays.id IS NULL
{_PAGE}
"""

# In the order of the index that has all that is asked of them, so that it ends where it has enough.
COUNT_OPEN_LETTERS: Final = f"""
SELECT count(*)
  FROM (SELECT FROM dead_letters AS letters
        {_OPEN}
           AND NOT EXISTS (SELECT FROM jobs WHERE jobs.replay_of = letters.job_id)
        {_BETWEEN}
         ORDER BY letters.fingerprint, letters.died_at, letters.id
         LIMIT $3) AS bounded
"""  # noqa: S608 - composed at import


async def count_open_letters(connection: Connection, filters: LetterFilter, *, most: int) -> int:
    """How many open letters these filters name; counts no further than `most`."""
    page = filters.died_after, LAST_ID, most, filters.died_until
    return int(await connection.fetchval(COUNT_OPEN_LETTERS, *page, *all_of(filters)))


LIST_LETTERS: Final = f"{_LETTER} WHERE true {_PAGE}"
LIST_LETTERS_OF_TENANT: Final = f"{_LETTER} WHERE letters.tenant_id = $5 {_PAGE}"
LIST_LETTERS_OF_FAULT: Final = f"{_LETTER} WHERE letters.fingerprint = $5 {_PAGE}"

HISTORY_FILTERS: Final = (
    "The history of dead letters is listed whole, by one tenant, or by one fingerprint."
)


async def list_dead_letters(
    connection: Connection,
    filters: LetterFilter,
    *,
    after: WholeLetter | LetterPlace | None = None,
    limit: int = 50,
) -> list[WholeLetter]:
    """A page, oldest first: the order in which they are to be dealt with."""
    statement, arguments = _listing(filters)
    start = (after.died_at, after.id) if after else (filters.died_after, LAST_ID)
    rows = await connection.fetch(statement, *start, limit, filters.died_until, *arguments)
    return [WholeLetter.of(row) for row in rows]


def _listing(filters: LetterFilter) -> tuple[str, tuple[str | None, ...]]:
    if filters.open_only:
        return LIST_OPEN_LETTERS, all_of(filters)
    match filters:
        case LetterFilter(tenant_id=None, type=None, reason=None, fingerprint=None):
            return LIST_LETTERS, ()
        case LetterFilter(tenant_id=str(tenant_id), type=None, reason=None, fingerprint=None):
            return LIST_LETTERS_OF_TENANT, (tenant_id,)
        case LetterFilter(tenant_id=None, type=None, reason=None, fingerprint=str(fingerprint)):
            return LIST_LETTERS_OF_FAULT, (fingerprint,)
        case _:
            raise RequestRejected("invalid_filter", HISTORY_FILTERS)


def all_of(filters: LetterFilter) -> tuple[str | None, ...]:
    """What it says of a letter, as the statements of the open ones take it."""
    return filters.tenant_id, filters.type, filters.reason, filters.fingerprint


ACKNOWLEDGE: Final = """
WITH known AS MATERIALIZED (
    SELECT letters.id
      FROM dead_letters AS letters
     WHERE letters.id = ANY ($1::uuid[]) AND letters.acknowledged_at IS NULL
     ORDER BY letters.id
       FOR UPDATE
)
UPDATE dead_letters
   SET acknowledged_at = now(), acknowledged_by = $2, acknowledged_note = $3
 WHERE dead_letters.id = ANY (ARRAY (SELECT known.id FROM known))
RETURNING dead_letters.id
"""


async def acknowledge_dead_letters(
    connection: Connection, ids: Sequence[UUID], *, by: str, note: str | None
) -> int:
    """Say that somebody knows and nothing is to be done; how many were still open."""
    return len(await connection.fetch(ACKNOWLEDGE, list(ids), by, note))


# Of no job, so that none takes them with it.
PRUNE_STRAYS: Final = """
WITH pruned AS (
    DELETE FROM dead_letters
     WHERE dead_letters.id = ANY (ARRAY (
               SELECT strays.id
                 FROM dead_letters AS strays
                WHERE strays.job_id IS NULL
                  AND strays.acknowledged_at < now() - (SELECT fleet.retention FROM fleet)
                ORDER BY strays.acknowledged_at
                LIMIT $1))
    RETURNING dead_letters.id
),
sends_too AS (
    DELETE FROM dead_letter_sends
     WHERE dead_letter_sends.dead_letter_id = ANY (ARRAY (SELECT pruned.id FROM pruned))
)
SELECT count(*) FROM pruned
"""


async def prune_strays(connection: Connection, *, limit: int, after: Place | None = None) -> Page:
    """Forget letters of messages that were of no job, long after somebody acknowledged them."""
    del after  # none that is past retention is kept
    pruned: int = await connection.fetchval(PRUNE_STRAYS, limit)
    return Page(seen=pruned, pruned=pruned)


COUNT_UNACKNOWLEDGED: Final = """
SELECT count(*) FROM dead_letters WHERE dead_letters.acknowledged_at IS NULL
"""


async def count_unacknowledged(connection: Connection) -> int:
    """How many letters wait for somebody: the number that alerts."""
    return int(await connection.fetchval(COUNT_UNACKNOWLEDGED))
