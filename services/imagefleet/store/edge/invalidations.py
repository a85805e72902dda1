"""What the edge owes: debts, one an image, and how a batch of them comes to be.

A debt is merged while no batch has taken it. A batch is frozen with the transaction that takes its
debts: whatever is unclear afterwards (`batches.py`), exactly the same is sent again under the same
reference.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID, uuid4

from imagefleet.store.database import Connection


@dataclass(frozen=True, slots=True)
class Debt:
    """An owed invalidation as it was last merged; another merge makes it another debt."""

    id: UUID
    last_owed_at: datetime


@dataclass(frozen=True, slots=True)
class Owed:
    """One look at one debt."""

    debt: Debt
    owed_at: datetime
    seen_at: datetime
    """Later than the commit of whoever merged it last."""


LOOK_AT_OWED: Final = """
SELECT invalidations.id, invalidations.last_owed_at, invalidations.owed_at,
       clock_timestamp() AS seen_at
  FROM invalidations
 WHERE invalidations.batch_id IS NULL
 ORDER BY invalidations.owed_at
 LIMIT $1
"""


async def look_at_owed(connection: Connection, *, limit: int) -> list[Owed]:
    """The oldest debts that no batch has taken."""
    rows = await connection.fetch(LOOK_AT_OWED, limit)
    return [
        Owed(Debt(row["id"], row["last_owed_at"]), row["owed_at"], row["seen_at"]) for row in rows
    ]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What CloudFront may have in hand at once; the two are independent of each other."""

    paths: int
    """Files and tags."""
    wildcards: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A frozen list, on its way to CloudFront."""

    id: UUID
    items: Sequence[str]
    last_error: str | None = None


# What CloudFront has refused for good is not in its hands, and must not stand in the way of others.
COUNT_IN_FLIGHT: Final = """
SELECT coalesce(sum(batches.paths - each_of.wildcards), 0)::integer AS paths,
       coalesce(sum(each_of.wildcards), 0)::integer AS wildcards
  FROM invalidation_batches AS batches
  CROSS JOIN LATERAL (
      SELECT count(*) AS wildcards
        FROM jsonb_array_elements_text(batches.items) AS item
       WHERE item.value LIKE '%*'
  ) AS each_of
 WHERE batches.completed_at IS NULL
   AND (batches.accepted_at IS NOT NULL OR batches.last_error IS NULL
        OR NOT starts_with(batches.last_error, 'cloudfront_rejected:'))
"""

# What is being merged this moment is passed over; what was merged since it was seen is another.
TAKE_OWED: Final = """
SELECT debts.id, debts.image_id
  FROM unnest($1::uuid[], $2::timestamptz[]) WITH ORDINALITY AS seen (id, last_owed_at, place)
  JOIN invalidations AS debts
    ON debts.id = seen.id AND debts.last_owed_at = seen.last_owed_at AND debts.batch_id IS NULL
 ORDER BY seen.place
 LIMIT $3
   FOR UPDATE OF debts SKIP LOCKED
"""

FREEZE_BATCH: Final = """
WITH batch AS (
    INSERT INTO invalidation_batches (id, items, paths)
    VALUES ($1, $2::jsonb, jsonb_array_length($2::jsonb))
    RETURNING invalidation_batches.id
)
UPDATE invalidations
   SET batch_id = batch.id
  FROM batch
 WHERE invalidations.id = ANY ($3::uuid[])
"""

# A deleted image is dark when the last of its debts is settled, so its receipt names the new one.
OWE_AGAIN: Final = """
WITH owed AS (
    INSERT INTO invalidations (image_id, tenant_id, reason)
    SELECT stamped.image_id, stamped.tenant_id, stamped.reason
      FROM invalidations AS stamped
     WHERE stamped.id = ANY ($1::uuid[])
     ORDER BY stamped.image_id
        ON CONFLICT (image_id) WHERE batch_id IS NULL DO NOTHING
    RETURNING invalidations.id, invalidations.image_id
)
UPDATE image_tombstones
   SET invalidation_id = owed.id
  FROM owed
 WHERE image_tombstones.image_id = owed.image_id
   AND image_tombstones.invalidation_id = ANY ($1::uuid[])
   AND image_tombstones.dark_at IS NULL
"""


async def commit_batch(
    connection: Connection,
    debts: Sequence[Debt],
    item: Callable[[UUID], str],
    *,
    within: BatchLimits,
    again: Collection[Debt] = (),
) -> Batch | None:
    """Freeze a batch of these debts, one item an image; None when there is nothing or no room.

    Of those in `again` the image owes another one from now on.
    """
    async with connection.transaction():
        room = await _room(connection, item, within)
        if room <= 0:
            return None
        ids, times = [debt.id for debt in debts], [debt.last_owed_at for debt in debts]
        taken = await connection.fetch(TAKE_OWED, ids, times, room)
        if not taken:
            return None
        batch = Batch(uuid4(), [item(row["image_id"]) for row in taken])
        stamped = [row["id"] for row in taken]
        await connection.execute(FREEZE_BATCH, batch.id, batch.items, stamped)
        restless = {debt.id for debt in again}.intersection(stamped)
        if restless:
            await connection.execute(OWE_AGAIN, list(restless))
    return batch


async def _room(connection: Connection, item: Callable[[UUID], str], within: BatchLimits) -> int:
    (in_flight,) = await connection.fetch(COUNT_IN_FLIGHT)
    if item(UUID(int=0)).endswith("*"):
        return within.wildcards - int(in_flight["wildcards"])
    return within.paths - int(in_flight["paths"])
