"""Forgetting what images leave behind: uploads, old revisions, what the edge was told, tombstones.

What an image is made of and shows is kept for as long as it lives: only its producer ends that. Of
a revision that is shown no more the objects go first, by `maintenance/sweeper.py`; who may go, and
when, is said here. Past retention its row is pruned, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from imagefleet.store.database import Connection
from imagefleet.store.jobs.pruning import PAGE_SEEN, Page, Place, page_of, past_retention


async def _prune_page(
    connection: Connection, statement: str, limit: int, after: Place | None
) -> Page:
    """Run a statement that ends in PAGE_SEEN."""
    (row,) = await connection.fetch(statement, limit, *(after or (None, None)))
    return page_of(row)


# As long as the job of an upload is there, a repeat of its request is answered by it.
PRUNE_UPLOADS: Final = f"""
WITH old AS MATERIALIZED (
    SELECT uploads.id, uploads.job_id, uploads.used_at AS due_at
      FROM uploads
     WHERE uploads.job_id IS NOT NULL
       AND {past_retention("uploads", "used_at")}
),
pruned AS (
    DELETE FROM uploads
     WHERE uploads.id = ANY (ARRAY (
               SELECT old.id FROM old
                WHERE (SELECT count(*) FROM jobs WHERE jobs.id = old.job_id) = 0))
    RETURNING uploads.id
)
{PAGE_SEEN}
"""  # noqa: S608 - composed at import by jobs/pruning.py


async def prune_uploads(connection: Connection, *, limit: int, after: Place | None = None) -> Page:
    """Forget uploads that became an image before retention, and whose job is forgotten."""
    return await _prune_page(connection, PRUNE_UPLOADS, limit, after)


# Its variants went when it was swept; what is left is who made what, and when.
PRUNE_REVISIONS: Final = """
WITH pruned AS (
    DELETE FROM image_revisions
     -- Each is of one job; by an array, as in PRUNE_JOBS.
     WHERE image_revisions.job_id = ANY (ARRAY (
               SELECT revisions.job_id
                 FROM image_revisions AS revisions
                WHERE revisions.swept_at < now() - (SELECT fleet.retention FROM fleet)
                ORDER BY revisions.swept_at
                LIMIT $1))
    RETURNING image_revisions.job_id
)
SELECT count(*) FROM pruned
"""


async def prune_revisions(
    connection: Connection, *, limit: int, after: Place | None = None
) -> Page:
    """Forget revisions whose objects were swept before retention."""
    del after  # none that is past retention is kept
    pruned: int = await connection.fetchval(PRUNE_REVISIONS, limit)
    return Page(seen=pruned, pruned=pruned)


# Somebody still has to read the completion of what keeps a batch: who sweeps the objects of a
# superseded revision, and who writes down when a deleted image went dark.
PRUNE_BATCHES: Final = f"""
WITH old AS MATERIALIZED (
    SELECT batches.id, batches.completed_at AS due_at
      FROM invalidation_batches AS batches
     WHERE {past_retention("batches", "completed_at")}
),
free AS MATERIALIZED (
    SELECT batches.id
      FROM invalidation_batches AS batches
     WHERE batches.id = ANY (ARRAY (SELECT old.id FROM old))
       AND (SELECT count(*)
              FROM invalidations AS debts
              JOIN image_revisions AS shown
                ON shown.image_id = debts.image_id AND shown.invalidation_id = debts.id
             WHERE debts.batch_id = batches.id AND shown.swept_at IS NULL) = 0
       AND (SELECT count(*)
              FROM invalidations AS debts
              JOIN image_tombstones AS tombstones
                ON tombstones.image_id = debts.image_id AND tombstones.invalidation_id = debts.id
             WHERE debts.batch_id = batches.id AND tombstones.dark_at IS NULL) = 0
     ORDER BY batches.id
       FOR UPDATE OF batches SKIP LOCKED
),
debts_too AS (
    DELETE FROM invalidations WHERE invalidations.batch_id = ANY (ARRAY (SELECT free.id FROM free))
),
pruned AS (
    DELETE FROM invalidation_batches
     WHERE invalidation_batches.id = ANY (ARRAY (SELECT free.id FROM free))
    RETURNING invalidation_batches.id
)
{PAGE_SEEN}
"""  # noqa: S608 - composed at import by jobs/pruning.py


async def prune_batches(connection: Connection, *, limit: int, after: Place | None = None) -> Page:
    """Forget batches that were completed before retention, and their debts; looks at `limit`."""
    return await _prune_page(connection, PRUNE_BATCHES, limit, after)


LIST_DARK: Final = f"""
SELECT tombstones.image_id, tombstones.dark_at,
       now() - (SELECT fleet.retention FROM fleet) - tombstones.dark_at AS behind
  FROM image_tombstones AS tombstones
 WHERE tombstones.emptied_again_at IS NOT NULL
   AND {past_retention("tombstones", "dark_at", "image_id")}
"""  # noqa: S608 - composed at import by jobs/pruning.py

# Under it nothing about an image is submitted, settled or published. One that is locked is in use.
LOCK_BURIED: Final = """
SELECT tombstones.image_id
  FROM image_tombstones AS tombstones
  JOIN targets ON targets.tenant_id = tombstones.tenant_id
              AND targets.target = 'image:' || tombstones.image_id
 WHERE tombstones.image_id = ANY ($1::uuid[]) AND targets.running_job IS NULL
 ORDER BY targets.tenant_id, targets.target
   FOR UPDATE OF targets SKIP LOCKED
"""

# While one of its jobs is there, replays may ask for the image, and must find its tombstone.
PRUNE_IMAGES: Final = """
WITH free AS MATERIALIZED (
    SELECT tombstones.image_id, tombstones.tenant_id
      FROM image_tombstones AS tombstones
     WHERE tombstones.image_id = ANY ($1::uuid[])
       AND (SELECT count(*)
              FROM (SELECT FROM jobs
                     WHERE jobs.tenant_id = tombstones.tenant_id
                       AND jobs.target = 'image:' || tombstones.image_id
                     LIMIT 1) AS any_job) = 0
),
ids AS MATERIALIZED (SELECT array_agg(free.image_id) AS ids FROM free),
variants_too AS (DELETE FROM variants USING ids WHERE variants.image_id = ANY (ids.ids)),
revisions_too AS (
    DELETE FROM image_revisions USING ids WHERE image_revisions.image_id = ANY (ids.ids)
),
sources_too AS (
    DELETE FROM image_sources USING ids WHERE image_sources.image_id = ANY (ids.ids)
),
-- Owed where there is no edge, so never told.
debts_too AS (
    DELETE FROM invalidations
     USING ids
     WHERE invalidations.image_id = ANY (ids.ids) AND invalidations.batch_id IS NULL
       AND invalidations.last_owed_at < now() - (SELECT fleet.retention FROM fleet)
),
targets_too AS (
    DELETE FROM targets
     USING free
     WHERE targets.tenant_id = free.tenant_id AND targets.target = 'image:' || free.image_id
),
images_too AS (DELETE FROM images USING ids WHERE images.id = ANY (ids.ids)),
pruned AS (
    DELETE FROM image_tombstones USING ids WHERE image_tombstones.image_id = ANY (ids.ids)
    RETURNING image_tombstones.image_id
)
SELECT count(*) FROM pruned
"""


async def prune_images(connection: Connection, *, limit: int, after: Place | None = None) -> Page:
    """Forget deleted images whose receipt was readable for as long as retention.

    Only when they are dark, were emptied again, and their jobs are forgotten; from then on such an
    image never was.
    """
    async with connection.transaction():
        rows = await connection.fetch(LIST_DARK, limit, *(after or (None, None)))
        if not rows:
            return Page(seen=0, pruned=0)
        locked = await connection.fetch(LOCK_BURIED, [row["image_id"] for row in rows])
        pruned: int = await connection.fetchval(PRUNE_IMAGES, [row["image_id"] for row in locked])
    last = rows[-1]
    return Page(
        seen=len(rows),
        pruned=pruned,
        last=(last["dark_at"], last["image_id"]),
        behind=last["behind"],
    )


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
      SELECT coalesce(array_agg(objects.key), '{}') AS keys,
             coalesce(sum(objects.bytes), 0)::bigint AS bytes
        FROM (SELECT DISTINCT variants.key, variants.bytes
                FROM variants
               WHERE variants.image_id = old.image_id AND variants.revision = old.revision
             ) AS objects
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
)
DELETE FROM variants
 USING gone
 WHERE variants.image_id = gone.image_id AND variants.revision = gone.revision
"""


async def record_swept(connection: Connection, swept: Sequence[Superseded]) -> None:
    """Forget the objects of these revisions, but for what was forgotten before."""
    images = [old.image_id for old in swept]
    await connection.execute(RECORD_SWEPT, images, [old.revision for old in swept])
