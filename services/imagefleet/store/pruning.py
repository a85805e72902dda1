"""Forgetting, under the maintenance role: finished jobs past retention, workers long dead."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from imagefleet.store.database import Connection, translated

PRUNE_JOBS: Final = """
WITH old AS MATERIALIZED (
    SELECT jobs.id
      FROM jobs
     WHERE jobs.state IN ('completed', 'failed')
       AND jobs.finished_at < now() - (SELECT fleet.retention FROM fleet)
       -- Asked of each candidate in turn; as NOT EXISTS it could be a join with all dead letters.
       AND (SELECT count(*) FROM dead_letters
             WHERE dead_letters.job_id = jobs.id AND dead_letters.acknowledged_at IS NULL) = 0
     ORDER BY jobs.finished_at
     LIMIT $1
       FOR UPDATE OF jobs SKIP LOCKED
),
-- By an array: how many ids a join would bring the planner cannot know, and reads whole tables.
pruned AS (
    DELETE FROM jobs WHERE jobs.id = ANY (ARRAY (SELECT old.id FROM old)) RETURNING jobs.id
),
attempts_too AS (
    DELETE FROM attempts WHERE attempts.job_id = ANY (ARRAY (SELECT old.id FROM old))
),
letters_too AS (
    DELETE FROM dead_letters WHERE dead_letters.job_id = ANY (ARRAY (SELECT old.id FROM old))
    RETURNING dead_letters.id
),
sends_too AS (
    DELETE FROM dead_letter_sends
     WHERE dead_letter_sends.dead_letter_id = ANY (ARRAY (SELECT letters_too.id FROM letters_too))
),
aliases_too AS (
    DELETE FROM idempotency_aliases
     WHERE idempotency_aliases.job_id = ANY (ARRAY (SELECT old.id FROM old))
),
counted AS (
    INSERT INTO ledger (pruned) SELECT count(*) FROM pruned HAVING count(*) > 0
)
SELECT count(*) FROM pruned
"""


async def prune_jobs(connection: Connection, *, limit: int) -> int:
    """Forget finished jobs past retention, at most `limit`, never one with an open dead letter."""
    with translated():
        pruned: int = await connection.fetchval(PRUNE_JOBS, limit)
    return pruned


PRUNE_WORKERS: Final = """
DELETE FROM workers WHERE dead_at < now() - interval '7 days'
"""


async def prune_workers(connection: Connection) -> None:
    """Forget worker processes that ended long ago."""
    with translated():
        await connection.execute(PRUNE_WORKERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRun:
    """One period in which somebody pruned."""

    period_start: datetime
    holder: UUID
    started_at: datetime
    finished_at: datetime | None
    report: Mapping[str, object] | None


LIST_PRUNE_RUNS: Final = """
SELECT periods.period_start, periods.holder, periods.started_at, periods.finished_at,
       periods.report
  FROM periods
 WHERE periods.name = 'prune'
 ORDER BY periods.period_start DESC
 LIMIT $1
"""


async def list_prune_runs(connection: Connection, *, limit: int) -> list[PruneRun]:
    """When jobs were pruned last, and what that did; the newest first."""
    with translated():
        rows = await connection.fetch(LIST_PRUNE_RUNS, limit)
    return [PruneRun(**dict(row)) for row in rows]


COUNT_PRUNABLE: Final = """
SELECT fleet.retention,
       (SELECT count(*)
          FROM (SELECT
                  FROM jobs
                 WHERE jobs.state IN ('completed', 'failed')
                   AND jobs.finished_at < now() - fleet.retention
                   AND (SELECT count(*) FROM dead_letters
                         WHERE dead_letters.job_id = jobs.id
                           AND dead_letters.acknowledged_at IS NULL) = 0
                 LIMIT $1) AS old) AS prunable
  FROM fleet
"""


async def count_prunable(connection: Connection, *, most: int) -> tuple[timedelta, int]:
    """The retention, and how many jobs are past it and wait to be pruned; `most` or more are one.

    As the pruner sees it: a job with an open dead letter is kept.
    """
    with translated():
        row = await connection.fetchrow(COUNT_PRUNABLE, most)
    assert row is not None  # noqa: S101 - the fleet has one row
    return row["retention"], row["prunable"]
