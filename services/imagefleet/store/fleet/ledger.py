"""The ledger: accepted = open + completed + failed + pruned, without anybody counting jobs.

Two sides that nobody writes with one hand. `ledger` has what was accepted (a trigger) and what was
pruned (the statement that prunes); the book has what is there: triggers write an entry for every
statement that creates, moves or removes jobs, and `bookkeeping` folds them into sums. Entries are
only ever inserted and deleted, so no two claims wait for each other. What is read is the sums and
the entries since: a few thousand rows, however many jobs there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

from imagefleet.jobs.shapes.fleet import DepthView
from imagefleet.store.database import Connection

READ_LEDGER: Final = """
SELECT (SELECT coalesce(sum(ledger.accepted), 0)::bigint FROM ledger) AS accepted,
       (SELECT coalesce(sum(ledger.pruned), 0)::bigint FROM ledger) AS pruned,
       coalesce(sum(book.queued + book.processing + book.failed_retryable), 0)::bigint AS open,
       coalesce(sum(book.completed), 0)::bigint AS completed,
       coalesce(sum(book.failed), 0)::bigint AS failed
  FROM ledger_book AS book
HAVING (SELECT proof.opened_at IS NOT NULL FROM ledger_proof AS proof)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Where every accepted job is, read in one statement: it balances at any moment."""

    accepted: int
    open: int
    completed: int
    failed: int
    pruned: int

    @property
    def missing(self) -> int:
        """Accepted jobs that are nowhere: zero, or something was lost (forged, if negative)."""
        return self.accepted - self.open - self.completed - self.failed - self.pruned


async def read_ledger(connection: Connection) -> Ledger | None:
    """Tell whether anything was lost; None while the jobs of an older release are being counted."""
    row = await connection.fetchrow(READ_LEDGER)
    return None if row is None else Ledger(**row)


# The only one that counts all jobs.
READ_BALANCE: Final = """
SELECT balance.accepted, balance.open, balance.completed, balance.failed, balance.pruned
  FROM ledger_balance AS balance
"""


async def read_balance(connection: Connection) -> Ledger:
    """Tell whether anything was lost, by the book; by counting all jobs until it is open."""
    if (ledger := await read_ledger(connection)) is not None:
        return ledger
    (row,) = await connection.fetch(READ_BALANCE)
    return Ledger(**row)


# From the first row of a type and state to that of the next: one probe of the index for each pair.
_OLDEST: Final = """
WITH RECURSIVE oldest AS (
    (SELECT jobs.type, jobs.state, jobs.run_at
       FROM jobs
      WHERE jobs.state IN ('queued', 'processing', 'failed_retryable')
      ORDER BY jobs.type, jobs.state, jobs.run_at
      LIMIT 1)
    UNION ALL
    SELECT following.type, following.state, following.run_at
      FROM oldest
      CROSS JOIN LATERAL (
          SELECT jobs.type, jobs.state, jobs.run_at
            FROM jobs
           WHERE jobs.state IN ('queued', 'processing', 'failed_retryable')
             AND (jobs.type, jobs.state) > (oldest.type, oldest.state)
           ORDER BY jobs.type, jobs.state, jobs.run_at
           LIMIT 1
      ) AS following
)
"""

# Until the book is open the open jobs are counted, $1 of each type and state at the most.
SAMPLE_DEPTHS: Final = f"""
{_OLDEST}
SELECT counts.type, states.state, counts.lane, states.jobs
  FROM (SELECT book.type, book.lane, sum(book.queued)::bigint AS queued,
               sum(book.processing)::bigint AS processing,
               sum(book.failed_retryable)::bigint AS failed_retryable
          FROM ledger_book AS book
         WHERE (SELECT proof.opened_at IS NOT NULL FROM ledger_proof AS proof)
         GROUP BY book.type, book.lane) AS counts
  CROSS JOIN LATERAL (
      VALUES ('queued', counts.queued), ('processing', counts.processing),
             ('failed_retryable', counts.failed_retryable)
  ) AS states (state, jobs)
 WHERE states.jobs > 0
 UNION ALL
SELECT oldest.type, oldest.state, counted.lane, count(*)
  FROM oldest
  CROSS JOIN LATERAL (
      SELECT jobs.lane FROM jobs
       WHERE jobs.state IN ('queued', 'processing', 'failed_retryable')
         AND jobs.type = oldest.type AND jobs.state = oldest.state
       ORDER BY jobs.run_at
       LIMIT $1
  ) AS counted
 WHERE (SELECT proof.opened_at IS NULL FROM ledger_proof AS proof)
 GROUP BY oldest.type, oldest.state, counted.lane
"""  # noqa: S608 - composed at import from the constant above


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How many open jobs of one type, state and lane there are."""

    type: str
    state: str
    lane: str
    jobs: int


async def sample_depths(connection: Connection, *, limit: int = 10_000) -> Sequence[Depth]:
    """Counts for gauges, from the book; of each no further than `limit` while that is not open."""
    return [Depth(**row) for row in await connection.fetch(SAMPLE_DEPTHS, limit)]


# The oldest of each: the first of its lane among the first of its type and state.
_WALKED: Final = """
SELECT jobs.lane, jobs.run_at
  FROM jobs
 WHERE jobs.state IN ('queued', 'processing', 'failed_retryable')
   AND jobs.type = depths.type AND jobs.state = depths.state
 ORDER BY jobs.run_at
 LIMIT $2
"""
READ_QUEUE_HEALTH: Final = f"""
WITH depths AS MATERIALIZED ({SAMPLE_DEPTHS})
SELECT depths.type, depths.state, depths.lane, depths.jobs,
       coalesce((SELECT walked.run_at FROM ({_WALKED}) AS walked
                  WHERE walked.lane = depths.lane
                  ORDER BY walked.run_at
                  LIMIT 1),
                (SELECT max(walked.run_at) FROM ({_WALKED}) AS walked), now()) AS oldest_due
  FROM depths
 ORDER BY depths.type, depths.lane, depths.state
"""  # noqa: S608 - composed at import from the constants above
ALL: Final = 2**62
MOST_WALKED: Final = 2_000


async def read_queue_health(connection: Connection) -> list[DepthView]:
    """Open jobs by type, state and lane; counts those of an older release until the book is open.

    Of a lane that has none among the first MOST_WALKED of a type, the oldest may be younger than
    is told.
    """
    rows = await connection.fetch(READ_QUEUE_HEALTH, ALL, MOST_WALKED)
    return [DepthView.of(row) for row in rows]


SAMPLE_OLDEST: Final = f"""
{_OLDEST}
SELECT oldest.type, oldest.state, now() - oldest.run_at AS age FROM oldest
"""  # noqa: S608 - composed at import from the constant above


class OldestJob(NamedTuple):
    """For how long the oldest open job of a type and state has been due; negative: none is."""

    type: str
    state: str
    age: timedelta


async def sample_oldest(connection: Connection) -> Sequence[OldestJob]:
    """Ages for gauges; reads one index entry for each type and state."""
    return [OldestJob(**row) for row in await connection.fetch(SAMPLE_OLDEST)]
