"""What the edge is owed: debts, one an image, and the batches of them on their way to CloudFront.

A debt is merged while no batch has taken it. A batch is frozen with the transaction that takes its
debts; from then on only what is known about it changes (sent, taken, complete), so that whatever is
unclear, exactly the same is sent again under the same reference.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID, uuid4

from imagefleet.store.database import Connection
from imagefleet.store.images.deleting import TELL_DARK

LONGEST_ERROR: Final = 500  # characters


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
),
told AS (
    INSERT INTO rollup_entries (invalidation_paths) SELECT paid.paths FROM paid
)
SELECT paid.paths, paid.debts, billed.paths AS month_paths FROM paid CROSS JOIN billed
"""


async def accept_batch(connection: Connection, batch_id: UUID, cloudfront_id: str) -> Taken | None:
    """CloudFront has it, under this id; None: that was known."""
    row = await connection.fetchrow(ACCEPT_BATCH, batch_id, cloudfront_id)
    return None if row is None else Taken(**dict(row))


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
    return [Accepted(**dict(row)) for row in await connection.fetch(LIST_ACCEPTED, limit)]


COMPLETE_BATCH: Final = f"""
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
),
{TELL_DARK}
SELECT coalesce((SELECT array_agg(dark.took) FROM dark), '{{}}') AS dark FROM done
"""  # noqa: S608 - composed at import from the constant of deleting.py


async def complete_batch(connection: Connection, accepted: Accepted) -> list[timedelta] | None:
    """The edge agrees; how long the deleted images took to be dark that it was the last word on.

    None: that it agrees was known.
    """
    row = await connection.fetchrow(COMPLETE_BATCH, accepted.batch_id, accepted.cloudfront_id)
    return None if row is None else list(row["dark"])


# The error stays when a later send succeeds: it tells why that was later.
SEND_AGAIN: Final = """
UPDATE invalidation_batches
   SET accepted_at = NULL, cloudfront_id = NULL, last_error = $3
 WHERE id = $1 AND cloudfront_id IS NOT DISTINCT FROM $2 AND completed_at IS NULL
"""


async def send_again(
    connection: Connection, batch_id: UUID, error: str, *, unknown: str | None = None
) -> None:
    """CloudFront did not take it, or nobody knows; or it has no invalidation of that id."""
    await connection.execute(SEND_AGAIN, batch_id, unknown, error[:LONGEST_ERROR])
