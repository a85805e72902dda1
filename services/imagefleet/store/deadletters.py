"""Dead letters: what could not succeed, for people to look at, acknowledge and replay.

The rows are written by the database with the failure itself (migrations/0004_dead_letters.sql). A
letter is dealt with when somebody acknowledged it, or when a job exists that replays its job.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from asyncpg import Record

from imagefleet.errors import NotFound
from imagefleet.jobs.model import JobId, JsonObject, TenantId
from imagefleet.store.database import Connection, translated


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One failure. The snapshot is the job's row as it was when it failed."""

    id: UUID
    job_id: JobId | None
    tenant_id: TenantId | None
    type: str | None
    reason: str
    fingerprint: str
    message: str
    detail: str | None
    died_at: datetime
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    acknowledged_note: str | None
    replayed_as: JobId | None
    snapshot: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which letters; everything that is set must hold."""

    tenant_id: TenantId | None = None
    type: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    open_only: bool = True
    """Neither acknowledged nor replayed."""


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

GET_LETTER: Final = f"""
{_LETTER}
 WHERE letters.id = $1 OR letters.job_id = $1
"""


async def get_dead_letter(connection: Connection, letter_or_job_id: UUID) -> DeadLetter:
    """One letter, by its own id or by that of its job."""
    with translated():
        row = await connection.fetchrow(GET_LETTER, letter_or_job_id)
    if row is None:
        raise NotFound("dead letter")
    return _letter(row)


# Two statements: the open ones have an index of their own, so that history is never read for them.
# A page starts in the middle of the index, also by a plan that is made once for every page.
_MATCHES: Final = """
   AND ($1::text IS NULL OR letters.tenant_id = $1)
   AND ($2::text IS NULL OR letters.type = $2)
   AND ($3::text IS NULL OR letters.reason = $3)
   AND ($4::text IS NULL OR letters.fingerprint = $4)
   AND (letters.died_at, letters.id) > (coalesce($5::timestamptz, '-infinity'),
                                        coalesce($6::uuid, '00000000-0000-0000-0000-000000000000'))
 ORDER BY letters.died_at, letters.id
 LIMIT $7
"""

LIST_OPEN_LETTERS: Final = f"""
{_LETTER}
 WHERE letters.acknowledged_at IS NULL AND replays.id IS NULL
{_MATCHES}
"""

LIST_LETTERS: Final = f"""
{_LETTER}
 WHERE true
{_MATCHES}
"""


async def list_dead_letters(
    connection: Connection,
    filters: LetterFilter,
    *,
    after: DeadLetter | None = None,
    limit: int = 50,
) -> list[DeadLetter]:
    """A page, oldest first: the order in which they are to be dealt with."""
    with translated():
        rows = await connection.fetch(
            LIST_OPEN_LETTERS if filters.open_only else LIST_LETTERS,
            filters.tenant_id,
            filters.type,
            filters.reason,
            filters.fingerprint,
            after.died_at if after else None,
            after.id if after else None,
            limit,
        )
    return [_letter(row) for row in rows]


def _letter(row: Record) -> DeadLetter:
    return DeadLetter(**dict(row))


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterGroup:
    """Open letters of the same fault."""

    fingerprint: str
    type: str | None
    reason: str
    letters: int
    first_died_at: datetime
    last_died_at: datetime
    example: UUID


GROUP_LETTERS: Final = """
SELECT letters.fingerprint, min(letters.type) AS type, min(letters.reason) AS reason,
       count(*) AS letters, min(letters.died_at) AS first_died_at,
       max(letters.died_at) AS last_died_at,
       (array_agg(letters.id ORDER BY letters.died_at DESC))[1] AS example
  FROM dead_letters AS letters
 WHERE letters.acknowledged_at IS NULL
   AND NOT EXISTS (SELECT FROM jobs WHERE jobs.replay_of = letters.job_id)
 GROUP BY letters.fingerprint
 ORDER BY count(*) DESC
 LIMIT $1
"""


async def group_dead_letters(connection: Connection, *, limit: int = 50) -> list[LetterGroup]:
    """The faults behind the open letters, the most frequent first."""
    with translated():
        rows = await connection.fetch(GROUP_LETTERS, limit)
    return [LetterGroup(**dict(row)) for row in rows]


ACKNOWLEDGE: Final = """
UPDATE dead_letters
   SET acknowledged_at = now(), acknowledged_by = $2, acknowledged_note = $3
 WHERE id = ANY ($1::uuid[]) AND acknowledged_at IS NULL
RETURNING id
"""


async def acknowledge_dead_letters(
    connection: Connection, ids: Sequence[UUID], *, by: str, note: str | None
) -> int:
    """Say that somebody knows and nothing is to be done; how many were still open."""
    with translated():
        return len(await connection.fetch(ACKNOWLEDGE, list(ids), by, note))
