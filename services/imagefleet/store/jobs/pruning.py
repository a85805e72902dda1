"""Forgetting, under the maintenance role: what is past retention, a page at a time.

A page is rows looked at, not rows that go: some are kept (a failure that nobody has acknowledged),
and whoever asks goes on behind them instead of reading them again with every statement.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias
from uuid import UUID

from asyncpg import Record

from imagefleet.store.database import Connection

Place: TypeAlias = tuple[datetime, UUID]
"""Since when a row could be forgotten but for retention, and its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What one statement looked at, oldest first."""

    seen: int
    pruned: int
    last: Place | None = None
    """To go on behind; None where nothing that was seen is left."""
    behind: timedelta = timedelta(0)
    """For how long the last of them has been past retention."""


def page_of(row: Record) -> Page:
    """By the columns seen, pruned, last_at, last_id and behind."""
    return Page(
        seen=row["seen"],
        pruned=row["pruned"],
        last=None if row["last_at"] is None else (row["last_at"], row["last_id"]),
        behind=row["behind"] or timedelta(0),
    )


# What a statement tells of its `old`: ids, and when each was due but for retention.
PAGE_SEEN: Final = """
SELECT (SELECT count(*) FROM old) AS seen, (SELECT count(*) FROM pruned) AS pruned,
       last.due_at AS last_at, last.id AS last_id,
       now() - (SELECT fleet.retention FROM fleet) - last.due_at AS behind
  FROM (SELECT) AS always
  LEFT JOIN (SELECT old.due_at, old.id
               FROM old ORDER BY old.due_at DESC, old.id DESC LIMIT 1) AS last ON true
"""


def past_retention(rows: str, due_at: str, key: str = "id") -> str:
    """Which of them a page looks at: $1, of those due before retention, behind the place $2, $3."""
    return f"""
           {rows}.{due_at} < now() - (SELECT fleet.retention FROM fleet)
       AND {rows}.{due_at} >= coalesce($2::timestamptz, '-infinity')
       AND ($2::timestamptz IS NULL OR ({rows}.{due_at}, {rows}.{key}) > ($2, $3::uuid))
     ORDER BY {rows}.{due_at}, {rows}.{key}
     LIMIT $1
"""  # noqa: S608 - of names of columns, at import


PRUNE_JOBS: Final = f"""
WITH old AS MATERIALIZED (
    SELECT jobs.id, jobs.finished_at AS due_at
      FROM jobs
     WHERE jobs.state IN ('completed', 'failed')
       AND {past_retention("jobs", "finished_at")}
),
free AS MATERIALIZED (
    SELECT jobs.id
      FROM jobs
     WHERE jobs.id = ANY (ARRAY (SELECT old.id FROM old))
       -- Asked of each candidate in turn; as NOT EXISTS it could be a join with all dead letters.
       AND (SELECT count(*) FROM dead_letters
             WHERE dead_letters.job_id = jobs.id AND dead_letters.acknowledged_at IS NULL) = 0
     ORDER BY jobs.id
       FOR UPDATE OF jobs SKIP LOCKED
),
-- By an array: how many ids a join would bring the planner cannot know, and reads whole tables.
pruned AS (
    DELETE FROM jobs WHERE jobs.id = ANY (ARRAY (SELECT free.id FROM free))
    RETURNING jobs.tenant_id, jobs.target
),
attempts_too AS (
    DELETE FROM attempts WHERE attempts.job_id = ANY (ARRAY (SELECT free.id FROM free))
),
letters_too AS (
    DELETE FROM dead_letters WHERE dead_letters.job_id = ANY (ARRAY (SELECT free.id FROM free))
    RETURNING dead_letters.id
),
sends_too AS (
    DELETE FROM dead_letter_sends
     WHERE dead_letter_sends.dead_letter_id = ANY (ARRAY (SELECT letters_too.id FROM letters_too))
),
aliases_too AS (
    DELETE FROM idempotency_aliases
     WHERE idempotency_aliases.job_id = ANY (ARRAY (SELECT free.id FROM free))
),
counted AS (
    INSERT INTO ledger (pruned) SELECT count(*) FROM pruned HAVING count(*) > 0
),
idle AS (
    SELECT DISTINCT pruned.tenant_id, pruned.target
      FROM pruned
     WHERE pruned.target IS NOT NULL AND pruned.target NOT LIKE 'image:%'
)
SELECT page.*,
       ARRAY (SELECT idle.tenant_id FROM idle ORDER BY idle.tenant_id, idle.target) AS tenants,
       ARRAY (SELECT idle.target FROM idle ORDER BY idle.tenant_id, idle.target) AS targets
  FROM ({PAGE_SEEN}) AS page
"""  # noqa: S608 - composed at import from the constants above

# Whoever submits about a target holds its row until the job is there; what is locked is in use.
LOCK_IDLE_TARGETS: Final = """
SELECT targets.tenant_id, targets.target
  FROM targets
  JOIN unnest($1::text[], $2::text[]) AS wanted (tenant_id, target)
    ON wanted.tenant_id = targets.tenant_id AND wanted.target = targets.target
 WHERE targets.running_job IS NULL
 ORDER BY targets.tenant_id, targets.target
   FOR UPDATE OF targets SKIP LOCKED
"""

# A statement of its own: its snapshot sees whatever was committed before the row was locked.
PRUNE_TARGETS: Final = """
DELETE FROM targets
 USING unnest($1::text[], $2::text[]) AS idle (tenant_id, target)
 WHERE targets.tenant_id = idle.tenant_id AND targets.target = idle.target
   AND (SELECT count(*)
          FROM (SELECT FROM jobs
                 WHERE jobs.tenant_id = idle.tenant_id AND jobs.target = idle.target
                 LIMIT 1) AS any_job) = 0
"""


async def prune_jobs(connection: Connection, *, limit: int, after: Place | None = None) -> Page:
    """Forget finished jobs past retention, never one with an open dead letter.

    With its last job a target is forgotten too, and its order begins anew. Never an image's: its
    revisions are numbers of that order, and it goes with the image.
    """
    async with connection.transaction():
        (row,) = await connection.fetch(PRUNE_JOBS, limit, *(after or (None, None)))
        if row["targets"]:
            locked = await connection.fetch(LOCK_IDLE_TARGETS, row["tenants"], row["targets"])
            tenants = [each["tenant_id"] for each in locked]
            await connection.execute(PRUNE_TARGETS, tenants, [each["target"] for each in locked])
    return page_of(row)
