"""Who does what one process should do: offices held by a lease row, and periodic steps.

An office is a lease by the database's clock, not a lock: it survives poolers, it is free ten
seconds after its holder went silent, and two holders for a moment are harmless by the design of
what they do.
"""

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from imagefleet.jobs.shapes.edge import FlusherView
from imagefleet.jobs.shapes.fleet import PruneRunView
from imagefleet.store.database import Connection

HOLD_ELECTION: Final = """
INSERT INTO elections AS held (name, holder, until)
VALUES ($1, $2, now() + interval '10 seconds')
    ON CONFLICT (name) DO UPDATE
       SET holder = excluded.holder, until = excluded.until,
           term = held.term + (held.holder <> excluded.holder)::int
     WHERE held.holder = excluded.holder OR held.until <= now()
RETURNING term
"""


async def hold_election(connection: Connection, name: str, holder: UUID) -> int | None:
    """Win or keep an office for ten seconds; the term, or None: somebody else holds it."""
    term: int | None = await connection.fetchval(HOLD_ELECTION, name, holder)
    return term


# The row stays, so that its term does: a term that came twice would tell nothing apart.
RESIGN: Final = "UPDATE elections SET until = now() WHERE name = $1 AND holder = $2"


async def resign(connection: Connection, name: str, holder: UUID) -> None:
    """Give the office back at once instead of letting it run out."""
    await connection.execute(RESIGN, name, holder)


FIND_FLUSHER: Final = """
SELECT elections.holder, elections.term, elections.until, elections.until > now() AS holds
  FROM elections
 WHERE elections.name = 'flusher'
"""


async def find_flusher(connection: Connection) -> FlusherView | None:
    """Who tells CloudFront; None: nobody ever did."""
    row = await connection.fetchrow(FIND_FLUSHER)
    return None if row is None else FlusherView.of(row)


BEGIN_PERIOD: Final = """
INSERT INTO periods (name, period_start, holder)
SELECT $1, date_bin($2::interval, now(), timestamptz '2000-01-01 00:00+00'), $3
    ON CONFLICT DO NOTHING
RETURNING period_start
"""


async def begin_period(
    connection: Connection, name: str, every: timedelta, holder: UUID
) -> datetime | None:
    """Take the current period of a step; None when somebody has it. Missed ones are not made up."""
    start: datetime | None = await connection.fetchval(BEGIN_PERIOD, name, every, holder)
    return start


FINISH_PERIOD: Final = """
UPDATE periods SET finished_at = now(), report = $3 WHERE name = $1 AND period_start = $2
"""


async def finish_period(
    connection: Connection, name: str, period_start: datetime, report: dict[str, object]
) -> None:
    """Write down what a periodic step did."""
    await connection.execute(FINISH_PERIOD, name, period_start, report)


LIST_PRUNE_RUNS: Final = """
SELECT periods.period_start, periods.started_at, periods.finished_at, periods.report
  FROM periods
 WHERE periods.name = 'prune'
 ORDER BY periods.period_start DESC
 LIMIT $1
"""


async def list_prune_runs(connection: Connection, *, limit: int) -> list[PruneRunView]:
    """When jobs were pruned last, and what that did; the newest first."""
    return [PruneRunView.of(row) for row in await connection.fetch(LIST_PRUNE_RUNS, limit)]


FORGET_PERIODS: Final = """
DELETE FROM periods
 WHERE periods.started_at < now() - interval '1 day'
   AND periods.period_start < (SELECT max(newest.period_start) FROM periods AS newest
                                WHERE newest.name = periods.name)
"""


async def forget_periods(connection: Connection) -> None:
    """Forget old periods, but for the newest of each step; who asks what ran is told of these."""
    await connection.execute(FORGET_PERIODS)
