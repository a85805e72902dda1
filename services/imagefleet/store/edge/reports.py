"""The edge from above: how it stands, what it costs, what operators ask of it.

What is owed and sent is in `invalidations.py`; nothing here holds up a job.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

from imagefleet.errors import NotFound
from imagefleet.jobs.shapes.edge import BatchView, InvalidationView, MonthView
from imagefleet.store.database import Connection


class InvalidationSample(NamedTuple):
    """How the edge stands."""

    owed: int
    """Images whose invalidation is not complete."""
    oldest_age: timedelta
    in_flight: int
    """Paths that CloudFront is at work on."""
    month_paths: int = 0
    """Paths that CloudFront has taken this month of UTC, which it bills."""


SAMPLE_INVALIDATIONS: Final = """
SELECT count(DISTINCT owed.image_id) AS owed,
       greatest(coalesce(max(now() - owed.owed_at), interval '0'), interval '0') AS oldest_age,
       (SELECT coalesce(sum(batches.paths), 0)::integer
          FROM invalidation_batches AS batches
         WHERE batches.completed_at IS NULL AND batches.accepted_at IS NOT NULL) AS in_flight,
       (SELECT coalesce(sum(months.paths), 0)::integer
          FROM invalidation_months AS months
         WHERE months.month = date_trunc('month', now() AT TIME ZONE 'UTC')::date) AS month_paths
  FROM (
      SELECT unstamped.image_id, unstamped.owed_at
        FROM invalidations AS unstamped
       WHERE unstamped.batch_id IS NULL
       UNION ALL
      SELECT stamped.image_id, stamped.owed_at
        FROM invalidation_batches AS batches
        JOIN invalidations AS stamped ON stamped.batch_id = batches.id
       WHERE batches.completed_at IS NULL
  ) AS owed
"""


async def sample_invalidations(connection: Connection) -> InvalidationSample:
    """Count what is owed and what is under way; nothing of what is complete is read."""
    (row,) = await connection.fetch(SAMPLE_INVALIDATIONS)
    return InvalidationSample(**dict(row))


READ_MONTH: Final = """
SELECT this.month, coalesce(months.paths, 0) AS paths, coalesce(months.debts, 0) AS debts,
       coalesce(months.batches, 0) AS batches
  FROM (SELECT date_trunc('month', now() AT TIME ZONE 'UTC')::date AS month) AS this
  LEFT JOIN invalidation_months AS months ON months.month = this.month
"""


async def read_month(connection: Connection) -> MonthView:
    """The month that it is now, by the clock of the database."""
    (row,) = await connection.fetch(READ_MONTH)
    return MonthView.of(row)


_BATCHES: Final = """
SELECT batches.id AS batch_id, batches.paths, batches.created_at, batches.sends,
       batches.accepted_at, batches.cloudfront_id, batches.completed_at, batches.last_error
  FROM invalidation_batches AS batches
"""

LIST_BATCHES: Final = f"""
({_BATCHES} WHERE batches.completed_at IS NULL ORDER BY batches.created_at LIMIT $1)
 UNION ALL
({_BATCHES} WHERE batches.completed_at IS NOT NULL ORDER BY batches.completed_at DESC LIMIT $2)
"""


async def list_batches(
    connection: Connection, *, unfinished: int, complete: int
) -> list[BatchView]:
    """The oldest ones that are not complete, then those that were completed last."""
    return [BatchView.of(row) for row in await connection.fetch(LIST_BATCHES, unfinished, complete)]


OWE_FOR_OPERATOR: Final = """
INSERT INTO invalidations AS debt (image_id, tenant_id, reason, requested_by, request_reason)
SELECT images.id, images.tenant_id, 'operator', $2, $3
  FROM images
 WHERE images.id = ANY ($1::uuid[])
 ORDER BY images.id
    ON CONFLICT (image_id) WHERE batch_id IS NULL
    DO UPDATE SET debts = debt.debts + 1, last_owed_at = clock_timestamp(),
                  requested_by = excluded.requested_by, request_reason = excluded.request_reason
RETURNING debt.id
"""

GET_INVALIDATIONS: Final = """
SELECT debts.id AS invalidation_id, debts.image_id, debts.tenant_id, debts.reason, debts.debts,
       debts.owed_at, debts.requested_by, debts.request_reason, batches.id AS batch_id,
       batches.sends, batches.accepted_at, batches.cloudfront_id, batches.completed_at,
       batches.last_error
  FROM invalidations AS debts
  LEFT JOIN invalidation_batches AS batches ON batches.id = debts.batch_id
 WHERE debts.id = ANY ($1::uuid[])
 ORDER BY debts.image_id
"""


async def owe_for_operator(
    connection: Connection, image_ids: Collection[UUID], *, by: str, reason: str | None
) -> list[InvalidationView]:
    """Owe the edge one invalidation of each of these images; all of them, or NotFound."""
    wanted = list(set(image_ids))
    async with connection.transaction():
        rows = await connection.fetch(OWE_FOR_OPERATOR, wanted, by, reason)
        if len(rows) < len(wanted):
            raise NotFound("image")
        return await _get(connection, [row["id"] for row in rows])


async def get_invalidation(connection: Connection, invalidation_id: UUID) -> InvalidationView:
    """How far one is; not found when it was forgotten."""
    invalidations = await _get(connection, [invalidation_id])
    if not invalidations:
        raise NotFound("invalidation")
    return invalidations[0]


async def _get(connection: Connection, ids: Sequence[UUID]) -> list[InvalidationView]:
    return [InvalidationView.of(row) for row in await connection.fetch(GET_INVALIDATIONS, ids)]
