"""How far upkeep is behind its work: read by index, whatever the backlog."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from imagefleet.store.database import Connection

# The first id of the hour that follows what was proven: the milliseconds, and zeros.
SAMPLE_BEHIND: Final = """
SELECT 'fold' AS step,
       now() - (SELECT entries.at FROM ledger_entries AS entries
                 ORDER BY entries.id LIMIT 1) AS behind
 UNION ALL
SELECT 'prove',
       (SELECT now() - to_timestamp(3600.0 * (hour_of(jobs.id) + 2))
          FROM jobs
         WHERE jobs.id >= (
                   SELECT lpad(to_hex((proof.proven_until + 1) * 3600000::bigint), 12, '0')
                          || repeat('0', 20) FROM ledger_proof AS proof)::uuid
         ORDER BY jobs.id
         LIMIT 1)
 UNION ALL
SELECT 'announce_letters',
       now() - (SELECT sends.due_at FROM dead_letter_sends AS sends
                 ORDER BY sends.due_at LIMIT 1)
 UNION ALL
SELECT 'prune',
       (SELECT interval '1 second' * (periods.report ->> 'behind_seconds')::float
          FROM periods
         WHERE periods.name = 'prune' AND periods.finished_at IS NOT NULL
         ORDER BY periods.period_start DESC
         LIMIT 1)
 UNION ALL
SELECT 'walk',
       (SELECT now() - periods.period_start - $1::interval
          FROM periods
         WHERE periods.name = 'sweep_walk' AND periods.finished_at IS NULL
         ORDER BY periods.period_start DESC
         LIMIT 1)
"""


async def sample_behind(
    connection: Connection, *, walk_within: timedelta
) -> Mapping[str, timedelta]:
    """For how long the oldest piece of each step's work has waited beyond its time; zero: none has.

    A walk is behind when it takes longer than `walk_within`, after which the next one is due.
    """
    rows = await connection.fetch(SAMPLE_BEHIND, walk_within)
    return {row["step"]: max(row["behind"] or timedelta(0), timedelta(0)) for row in rows}
