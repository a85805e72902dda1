"""Faults: what letters have in common, and which one is meant by how its fingerprint begins."""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from imagefleet.errors import RequestRejected
from imagefleet.jobs.shapes.letters import LetterGroupView
from imagefleet.store.database import Connection
from imagefleet.store.letters.letters import LetterFilter, all_of

WHOLE: Final = 64  # digits of a fingerprint
MOST_TOLD: Final = 5  # of those that begin alike
HOURS: Final = 24
MOST_AN_HOUR: Final = 100  # letters that are counted

# Neither acknowledged nor replayed, and let through by all filters. Replays are asked for with each
# letter, by their index. To join with all of them is quicker while there are none, and the planner
# hears late that thousands were replayed: then it would compare each letter with each of them.
_OPEN: Final = """
           letters.acknowledged_at IS NULL
       AND ($2::text IS NULL OR letters.tenant_id = $2)
       AND ($3::text IS NULL OR letters.type = $3)
       AND ($4::text IS NULL OR letters.reason = $4)
       AND ($5::text IS NULL OR letters.fingerprint = $5)
       AND ($7::timestamptz IS NULL OR letters.died_at > $7)
       AND ($8::timestamptz IS NULL OR letters.died_at <= $8)
       AND NOT EXISTS (SELECT FROM jobs WHERE jobs.replay_of = letters.job_id)
"""

# All are counted, in the order of the index; tenants and the example are looked up of those alone
# that are told.
GROUP_LETTERS: Final = f"""
WITH faults AS MATERIALIZED (
    SELECT letters.fingerprint, count(*) AS letters, count(letters.job_id) AS replayable,
           min(letters.died_at) AS first_died_at, max(letters.died_at) AS last_died_at,
           CASE WHEN $6::boolean THEN letters.tenant_id END AS tenant_id
      FROM dead_letters AS letters
     WHERE {_OPEN}
     GROUP BY letters.fingerprint, CASE WHEN $6::boolean THEN letters.tenant_id END
     ORDER BY count(*) DESC
     LIMIT $1
)
SELECT faults.fingerprint, newest.type, newest.reason, faults.letters, faults.replayable,
       faults.first_died_at, faults.last_died_at, newest.id AS example, faults.tenant_id,
       named.tenants, coalesce(named.tenant_names, '{{}}') AS tenant_names, newest.message,
       newest.detail
  FROM faults
  CROSS JOIN LATERAL (
      SELECT letters.id, letters.type, letters.reason, letters.message, letters.detail
        FROM dead_letters AS letters
       WHERE letters.fingerprint = faults.fingerprint AND letters.died_at = faults.last_died_at
         AND (NOT $6::boolean OR letters.tenant_id IS NOT DISTINCT FROM faults.tenant_id)
         AND {_OPEN}
       ORDER BY letters.id DESC
       LIMIT 1
  ) AS newest
  CROSS JOIN LATERAL (
      SELECT count(*) AS tenants,
             (array_agg(theirs.tenant_id ORDER BY theirs.tenant_id))[1:5] AS tenant_names
        FROM (SELECT DISTINCT letters.tenant_id
                FROM dead_letters AS letters
               WHERE letters.fingerprint = faults.fingerprint AND letters.tenant_id IS NOT NULL
                 AND (NOT $6::boolean OR letters.tenant_id = faults.tenant_id)
                 AND {_OPEN}) AS theirs
  ) AS named
 ORDER BY faults.letters DESC
"""  # noqa: S608 - composed at import from the constant above


async def group_dead_letters(
    connection: Connection,
    filters: LetterFilter | None = None,
    *,
    by_tenant: bool = False,
    limit: int = 50,
) -> list[LetterGroupView]:
    """The faults behind the open letters, or each tenant's of each; the most frequent first."""
    chosen = filters or LetterFilter()
    times = chosen.died_after, chosen.died_until
    rows = await connection.fetch(GROUP_LETTERS, limit, *all_of(chosen), by_tenant, *times)
    return [LetterGroupView.of(row) for row in rows]


# A look at the index for each hour of each fault, which ends at the bound, however many there are.
COUNT_HOURLY: Final = """
SELECT faults.fingerprint, array_agg(died.count ORDER BY hours.ago DESC) AS hourly
  FROM unnest($1::text[]) AS faults (fingerprint)
 CROSS JOIN generate_series(1, $2::integer) AS hours (ago)
 CROSS JOIN LATERAL (
     SELECT count(*) AS count
       FROM (SELECT FROM dead_letters AS letters
              WHERE letters.fingerprint = faults.fingerprint
                AND letters.died_at > now() - hours.ago * interval '1 hour'
                AND letters.died_at <= now() - (hours.ago - 1) * interval '1 hour'
              LIMIT $3) AS few
 ) AS died
 GROUP BY faults.fingerprint
"""


async def count_hourly(
    connection: Connection, fingerprints: Collection[str]
) -> dict[str, list[int]]:
    """How often each fault struck in each hour of the last day, whoever has seen to it since."""
    rows = await connection.fetch(COUNT_HOURLY, [*fingerprints], HOURS, MOST_AN_HOUR)
    return {row["fingerprint"]: row["hourly"] for row in rows}


FIND_FAULTS: Final = """
WITH RECURSIVE faults AS (
    (SELECT min(letters.fingerprint) AS fingerprint
       FROM dead_letters AS letters
      WHERE letters.fingerprint >= $1::text AND letters.fingerprint <= $1::text || 'g')
    UNION ALL
    SELECT (SELECT min(letters.fingerprint)
              FROM dead_letters AS letters
             WHERE letters.fingerprint > faults.fingerprint
               AND letters.fingerprint <= $1::text || 'g')
      FROM faults
     WHERE faults.fingerprint IS NOT NULL
)
SELECT faults.fingerprint FROM faults WHERE faults.fingerprint IS NOT NULL LIMIT $2
"""


async def with_whole_fault(connection: Connection, filters: LetterFilter) -> LetterFilter:
    """The same, of the one fault whose fingerprint begins so; RequestRejected if several do."""
    begins = filters.fingerprint
    if begins is None or len(begins) == WHOLE:
        return filters
    rows = await connection.fetch(FIND_FAULTS, begins, MOST_TOLD)
    known = [row["fingerprint"] for row in rows]
    if len(known) > 1:
        sentence = f"Several faults begin with {begins}: {', '.join(known)}."
        raise RequestRejected("invalid_filter", sentence)
    return replace(filters, fingerprint=known[0]) if known else filters
