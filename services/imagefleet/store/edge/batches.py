"""Batches on their way: sent to CloudFront, taken by it, complete.

How they come to be is in `invalidations.py`; a batch never changes, only what is known about it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from imagefleet.store.database import Connection
from imagefleet.store.edge.invalidations import Batch

LONGEST_ERROR: Final = 500  # characters

# Those that were sent least often come first: one that CloudFront never takes holds up no other.
LIST_UNSENT: Final = """
SELECT batches.id, batches.items, batches.last_error
  FROM invalidation_batches AS batches
 WHERE batches.completed_at IS NULL AND batches.accepted_at IS NULL
 ORDER BY batches.sends, batches.created_at
 LIMIT $1
"""


async def list_unsent(connection: Connection, *, limit: int) -> list[Batch]:
    """Batches that CloudFront is not known to have."""
    rows = await connection.fetch(LIST_UNSENT, limit)
    return [Batch(row["id"], tuple(row["items"]), row["last_error"]) for row in rows]


BEGIN_SEND: Final = """
UPDATE invalidation_batches SET sends = sends + 1 WHERE id = $1 AND accepted_at IS NULL RETURNING id
"""


async def begin_send(connection: Connection, batch_id: UUID) -> bool:
    """Write down that it is about to be sent; False: CloudFront has it by now."""
    return await connection.fetchval(BEGIN_SEND, batch_id) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What CloudFront has just taken, and so will bill."""

    paths: int
    debts: int
    """How many debts those paths pay; merged ones count each."""
    month_paths: int
    """Of this month of UTC, these included."""


ACCEPT_BATCH: Final = """
WITH accepted AS (
    UPDATE invalidation_batches
       SET accepted_at = now(), cloudfront_id = $2
     WHERE id = $1 AND accepted_at IS NULL
    RETURNING id, paths
),
paid AS (
    SELECT accepted.paths, coalesce(sum(stamped.debts), 0)::integer AS debts
      FROM accepted
      LEFT JOIN invalidations AS stamped ON stamped.batch_id = accepted.id
     GROUP BY accepted.paths
),
billed AS (
    INSERT INTO invalidation_months AS months (month, paths, debts, batches)
    SELECT date_trunc('month', now() AT TIME ZONE 'UTC')::date, paid.paths, paid.debts, 1
      FROM paid
        ON CONFLICT (month) DO UPDATE
           SET paths = months.paths + excluded.paths, debts = months.debts + excluded.debts,
               batches = months.batches + 1
    RETURNING months.paths
)
SELECT paid.paths, paid.debts, billed.paths AS month_paths FROM paid CROSS JOIN billed
"""


async def accept_batch(connection: Connection, batch_id: UUID, cloudfront_id: str) -> Taken | None:
    """CloudFront has it, under this id; None: that was known."""
    row = await connection.fetchrow(ACCEPT_BATCH, batch_id, cloudfront_id)
    return None if row is None else Taken(**dict(row))


# The error stays when a later send succeeds: it tells why that was later.
DEFER_BATCH: Final = """
UPDATE invalidation_batches SET last_error = $2 WHERE id = $1 AND accepted_at IS NULL
"""


async def defer_batch(connection: Connection, batch_id: UUID, error: str) -> None:
    """CloudFront did not take it, or nobody knows; it will be sent again."""
    await connection.execute(DEFER_BATCH, batch_id, error[:LONGEST_ERROR])


@dataclass(frozen=True, slots=True)
class Accepted:
    """A batch that CloudFront is at work on."""

    batch_id: UUID
    cloudfront_id: str


LIST_ACCEPTED: Final = """
SELECT batches.id AS batch_id, batches.cloudfront_id
  FROM invalidation_batches AS batches
 WHERE batches.completed_at IS NULL AND batches.accepted_at IS NOT NULL
 ORDER BY batches.created_at
 LIMIT $1
"""


async def list_accepted(connection: Connection, *, limit: int) -> list[Accepted]:
    """The oldest batches that are not known to be complete."""
    rows = await connection.fetch(LIST_ACCEPTED, limit)
    return [Accepted(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the edge's agreement made known."""

    dark: Sequence[timedelta] = ()
    """Of the deleted images that it was the last word on: how long each took to be dark."""


COMPLETE_BATCH: Final = """
WITH done AS (
    UPDATE invalidation_batches
       SET completed_at = now()
     WHERE id = $1 AND cloudfront_id = $2 AND completed_at IS NULL
    RETURNING id, completed_at
),
dark AS (
    UPDATE image_tombstones
       SET dark_at = done.completed_at
      FROM done
      JOIN invalidations AS debts ON debts.batch_id = done.id
     WHERE image_tombstones.image_id = debts.image_id
       AND image_tombstones.invalidation_id = debts.id AND image_tombstones.dark_at IS NULL
    RETURNING image_tombstones.dark_at - image_tombstones.requested_at AS took
)
SELECT coalesce((SELECT array_agg(dark.took) FROM dark), '{}') AS dark FROM done
"""


async def complete_batch(connection: Connection, accepted: Accepted) -> Agreed | None:
    """The edge agrees, so the deleted images among it are dark; None: that was known."""
    row = await connection.fetchrow(COMPLETE_BATCH, accepted.batch_id, accepted.cloudfront_id)
    return None if row is None else Agreed(tuple(row["dark"]))


DOUBT_BATCH: Final = """
UPDATE invalidation_batches
   SET accepted_at = NULL, cloudfront_id = NULL, last_error = $3
 WHERE id = $1 AND cloudfront_id = $2 AND completed_at IS NULL
"""


async def doubt_batch(connection: Connection, accepted: Accepted, error: str) -> None:
    """CloudFront does not know it: to be sent again."""
    await connection.execute(
        DOUBT_BATCH, accepted.batch_id, accepted.cloudfront_id, error[:LONGEST_ERROR]
    )
