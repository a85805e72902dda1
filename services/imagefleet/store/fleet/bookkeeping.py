"""Keeping the ledger's book: entries are folded into sums, and the hours compared with the rows.

Folding changes no total at any moment. A proof reads an hour of the book and its rows in one
snapshot, the rows page by page. The difference between rows and entries of one snapshot is a number
that no later move changes, as every move is in both; so it may be written down as one more entry at
leisure, and the hour need not be over. That is how the jobs of a release that had no book came into
it (`opening`), and how the book agrees with the rows again after somebody went past the triggers:
then the ledger does not balance from there on, which is what it is for.

Two who prove at once cannot both write: the row that says how far they are is updated in the same
snapshot, which Postgres grants to one of them.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias
from uuid import UUID

from imagefleet.jobs.model import JobState
from imagefleet.store.database import Connection

COLUMNS: Final = ", ".join(JobState)
"""Entries and sums have one for each state."""

# In the order of their ids, so that a job's move is never summed up before the one that led to it.
FOLD_ENTRIES: Final = f"""
WITH oldest AS MATERIALIZED (
    SELECT entries.id FROM ledger_entries AS entries
     ORDER BY entries.id
     LIMIT $1
),
folded AS (
    DELETE FROM ledger_entries WHERE id = ANY (ARRAY (SELECT oldest.id FROM oldest))
    RETURNING at, hour, type, lane, {COLUMNS}
),
-- What only adds queued jobs is a submit: no other move does.
born AS (
    INSERT INTO rollup_entries (at, type, lane, submitted)
    SELECT date_trunc('minute', folded.at), folded.type, folded.lane, sum(folded.queued)
      FROM folded
     WHERE folded.queued > 0
     GROUP BY 1, 2, 3
),
summed AS (
    INSERT INTO ledger_counts AS counts (hour, type, lane, {COLUMNS})
    SELECT folded.hour, folded.type, folded.lane,
           {", ".join(f"sum(folded.{state})" for state in JobState)}
      FROM folded
     GROUP BY folded.hour, folded.type, folded.lane
     ORDER BY folded.hour, folded.type, folded.lane
        ON CONFLICT (hour, type, lane) DO UPDATE
           SET {", ".join(f"{state} = counts.{state} + excluded.{state}" for state in JobState)}
)
SELECT count(*) FROM folded
"""  # noqa: S608 - composed at import of the names of states


async def fold_entries(connection: Connection, *, limit: int) -> int:
    """Add the oldest entries to the sums, and how many; the totals stay the same at every moment.

    Of two who fold at once, one finds nothing left.
    """
    return int(await connection.fetchval(FOLD_ENTRIES, limit))


# One entry alone is a sum already.
FOLD_LEDGER: Final = """
WITH oldest AS MATERIALIZED (
    SELECT ledger.id FROM ledger ORDER BY ledger.id LIMIT $1
),
folded AS (
    DELETE FROM ledger
     WHERE id = ANY (ARRAY (SELECT oldest.id FROM oldest))
       AND (SELECT count(*) FROM oldest) > 1
    RETURNING accepted, pruned
),
summed AS (
    INSERT INTO ledger (accepted, pruned)
    SELECT sum(folded.accepted), sum(folded.pruned) FROM folded HAVING count(*) > 0
)
SELECT count(*) FROM folded
"""


async def fold_ledger(connection: Connection, *, limit: int) -> int:
    """Replace many small entries by their sum, and how many; the totals stay the same."""
    return int(await connection.fetchval(FOLD_LEDGER, limit))


FORGET_EMPTY_COUNTS: Final = f"""
DELETE FROM ledger_counts WHERE ({COLUMNS}) = (0, 0, 0, 0, 0)
"""  # noqa: S608 - composed at import of the names of states


async def forget_empty_counts(connection: Connection) -> None:
    """Forget the sums of hours of which no job is left."""
    await connection.execute(FORGET_EMPTY_COUNTS)


HOUR_IN_MS: Final = 3_600_000
LAST_MS: Final = 2**48 - 1
TIME_SHIFT: Final = 80  # bits of an id behind its milliseconds

Place: TypeAlias = tuple[str, str, str]
"""Type, lane and state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What one hour came to."""

    hour: int
    opening: bool
    """It was the first look at jobs that no trigger had counted: then differences are no fault."""
    jobs: int
    differences: Mapping[Place, int]
    """Rows that the book did not have; negative: rows that it had, and that are not there."""


READ_PROGRESS: Final = """
SELECT proof.opened_at IS NULL AS opening, proof.proven_until, proof.round_at,
       proof.round_until,
       now() - proof.round_began_at AS round_age,
       (extract(epoch FROM now()) / 3600)::integer - 2 AS closed
  FROM ledger_proof AS proof
"""

# Of the hours behind $1, by rows from $2 on and by the book, the first.
FIND_HOUR: Final = """
SELECT least(
    (SELECT hour_of(jobs.id) FROM jobs WHERE jobs.id >= $2 ORDER BY jobs.id LIMIT 1),
    (SELECT counts.hour FROM ledger_counts AS counts
      WHERE counts.hour > $1 ORDER BY counts.hour LIMIT 1),
    (SELECT min(entries.hour) FROM ledger_entries AS entries WHERE entries.hour > $1)
)
"""

READ_HOUR: Final = f"""
SELECT book.type, book.lane,
       {", ".join(f"sum(book.{state})::bigint AS {state}" for state in JobState)}
  FROM ledger_book AS book
 WHERE book.hour = $1
 GROUP BY book.type, book.lane
"""  # noqa: S608 - composed at import of the names of states

COUNT_PAGE: Final = """
WITH page AS MATERIALIZED (
    SELECT jobs.id, jobs.type, jobs.lane, jobs.state
      FROM jobs
     WHERE jobs.id >= $1 AND jobs.id < $2
     ORDER BY jobs.id
     LIMIT $3
)
SELECT page.type, page.lane, page.state, count(*) AS jobs,
       (SELECT last.id FROM page AS last ORDER BY last.id DESC LIMIT 1) AS last
  FROM page
 GROUP BY page.type, page.lane, page.state
"""

_JOBS_IN: Final = "coalesce(sum(new.jobs) FILTER (WHERE new.state = '{}'), 0)"

CORRECT_BOOK: Final = f"""
INSERT INTO ledger_entries (hour, type, lane, {COLUMNS})
SELECT $1, new.type, new.lane, {", ".join(map(_JOBS_IN.format, JobState))}
  FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) AS new (type, lane, state, jobs)
 GROUP BY new.type, new.lane
"""  # noqa: S608 - composed at import of the names of states

SAVE_PROGRESS: Final = "UPDATE ledger_proof SET proven_until = $1, round_at = $2"

# Of clocks that are ahead, hours may have been opened that are still to come.
OPEN_BOOK: Final = """
UPDATE ledger_proof
   SET opened_at = now(), proven_until = least(proven_until, $1), round_began_at = now()
"""

BEGIN_ROUND: Final = """
UPDATE ledger_proof SET round_at = -1, round_until = proven_until, round_began_at = now()
"""


async def prove_hour(
    connection: Connection,
    *,
    every: timedelta,
    page: int,
    between: Callable[[], Awaitable[None]],
) -> Proof | None:
    """Compare the next hour with its rows, and correct the book; None when nothing is to do now.

    An hour is compared when it is over, and again once in `every`. `between` is awaited after each
    page; what it raises ends the proof without a trace.
    """
    async with connection.transaction(isolation="repeatable_read"):
        (row,) = await connection.fetch(READ_PROGRESS)
        opening, until, closed = row["opening"], row["proven_until"], row["closed"]
        hour = await _next_hour(connection, until)
        if hour is not None and (opening or hour <= closed):
            proof = await _prove(connection, hour, opening=opening, page=page, between=between)
            await connection.execute(SAVE_PROGRESS, hour, row["round_at"])
            return proof
        if opening:
            await connection.execute(OPEN_BOOK, closed)
            return None
        hour = await _next_hour(connection, row["round_at"])
        if hour is not None and hour <= row["round_until"]:
            proof = await _prove(connection, hour, opening=False, page=page, between=between)
            await connection.execute(SAVE_PROGRESS, until, hour)
            return proof
        if row["round_age"] > every:
            await connection.execute(BEGIN_ROUND)
        return None


async def _next_hour(connection: Connection, after: int) -> int | None:
    hour: int | None = await connection.fetchval(FIND_HOUR, after, _first_of(after + 1))
    return hour


async def _prove(
    connection: Connection,
    hour: int,
    *,
    opening: bool,
    page: int,
    between: Callable[[], Awaitable[None]],
) -> Proof:
    differences: Counter[Place] = Counter()
    for row in await connection.fetch(READ_HOUR, hour):
        for state in JobState:
            differences[row["type"], row["lane"], state] -= row[state]
    jobs, start, end = 0, _first_of(hour), _first_of(hour + 1)
    while True:
        rows = await connection.fetch(COUNT_PAGE, start, end, page)
        for row in rows:
            differences[row["type"], row["lane"], row["state"]] += row["jobs"]
        counted = sum(row["jobs"] for row in rows)
        jobs += counted
        if counted < page:
            break
        start = UUID(int=rows[0]["last"].int + 1)
        await between()
    wrong = {place: jobs for place, jobs in differences.items() if jobs}
    if wrong:
        await connection.execute(
            CORRECT_BOOK,
            hour,
            [job_type for job_type, _, _ in wrong],
            [lane for _, lane, _ in wrong],
            [state for _, _, state in wrong],
            list(wrong.values()),
        )
    return Proof(hour=hour, opening=opening, jobs=jobs, differences=wrong)


def _first_of(hour: int) -> UUID:
    """The least id of an hour."""
    return UUID(int=min(hour * HOUR_IN_MS, LAST_MS) << TIME_SHIFT)
