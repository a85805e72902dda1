"""What is shown no more: revisions, from superseded to swept.

Who may sweep one, and when, is said here; the objects are `maintenance/sweeper.py`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from imagefleet.store.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """A revision that is not shown any more."""

    image_id: UUID
    revision: int
    superseded_at: datetime
    ripe: bool
    """Its invalidation is complete, and long enough ago; and nobody deletes its image just now."""
    keys: tuple[str, ...]
    bytes: int


LIST_SUPERSEDED: Final = """
WITH old AS MATERIALIZED (
    SELECT old.image_id, old.revision, old.superseded_at, old.invalidation_id
      FROM image_revisions AS old
     WHERE old.superseded_at IS NOT NULL AND old.swept_at IS NULL
       AND old.superseded_at < now() - $1::interval
       AND old.superseded_at >= coalesce($3::timestamptz, '-infinity')
       AND ($3::timestamptz IS NULL
            OR (old.superseded_at, old.image_id, old.revision) > ($3, $4::uuid, $5::bigint))
     ORDER BY old.superseded_at, old.image_id, old.revision
     LIMIT $6
)
SELECT old.image_id, old.revision, old.superseded_at, made.keys, made.bytes,
       (NOT $2::bool OR coalesce(told.completed_at < now() - $1::interval, false))
       AND (SELECT count(*) FROM image_tombstones AS tombstones
             WHERE tombstones.image_id = old.image_id
               AND tombstones.objects_deleted_at IS NULL) = 0 AS ripe
  FROM old
  LEFT JOIN LATERAL (
      SELECT batches.completed_at
        FROM invalidations
        JOIN invalidation_batches AS batches ON batches.id = invalidations.batch_id
       WHERE invalidations.id = old.invalidation_id
       LIMIT 1
  ) AS told ON true
  CROSS JOIN LATERAL (
      SELECT coalesce(array_agg(variants.key), '{}') AS keys,
             coalesce(sum(variants.bytes), 0)::bigint AS bytes
        FROM variants
       WHERE variants.image_id = old.image_id AND variants.revision = old.revision
  ) AS made
 ORDER BY old.superseded_at, old.image_id, old.revision
"""


async def list_superseded(
    connection: Connection,
    *,
    kept_for: timedelta,
    has_edge: bool,
    after: Superseded | None,
    limit: int,
) -> list[Superseded]:
    """Revisions superseded that long ago, oldest first, behind `after`; the ripe ones may go.

    With an edge the time counts from the completion of their own invalidation.
    """
    place: tuple[datetime | None, UUID | None, int | None] = (None, None, None)
    if after is not None:
        place = (after.superseded_at, after.image_id, after.revision)
    rows = await connection.fetch(LIST_SUPERSEDED, kept_for, has_edge, *place, limit)
    return [Superseded(**dict(row) | {"keys": tuple(row["keys"])}) for row in rows]


RECORD_SWEPT: Final = """
WITH gone AS MATERIALIZED (
    SELECT revisions.image_id, revisions.revision
      FROM image_revisions AS revisions
      JOIN unnest($1::uuid[], $2::bigint[]) AS wanted (image_id, revision)
        ON wanted.image_id = revisions.image_id AND wanted.revision = revisions.revision
     WHERE revisions.superseded_at IS NOT NULL AND revisions.swept_at IS NULL
     ORDER BY revisions.image_id, revisions.revision
       FOR UPDATE OF revisions
),
marked AS (
    UPDATE image_revisions
       SET swept_at = now()
      FROM gone
     WHERE image_revisions.image_id = gone.image_id AND image_revisions.revision = gone.revision
),
unlisted AS (
    DELETE FROM variants
     USING gone
     WHERE variants.image_id = gone.image_id AND variants.revision = gone.revision
)
SELECT count(*) FROM gone
"""


async def record_swept(connection: Connection, swept: Sequence[Superseded]) -> int:
    """Forget the objects of these revisions; how many were not forgotten before."""
    images = [one.image_id for one in swept]
    gone: int = await connection.fetchval(RECORD_SWEPT, images, [one.revision for one in swept])
    return gone


COUNT_SUPERSEDED: Final = """
SELECT count(*)
  FROM (SELECT FROM image_revisions AS old
         WHERE old.superseded_at IS NOT NULL AND old.swept_at IS NULL
         LIMIT $1) AS waiting
"""


async def count_superseded(connection: Connection, *, most: int) -> int:
    """How many revisions are neither shown nor swept; `most` or more are one."""
    waiting: int = await connection.fetchval(COUNT_SUPERSEDED, most)
    return waiting
