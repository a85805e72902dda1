"""Forgetting what images leave behind: used uploads, swept revisions, and deleted images.

What an image is made of and shows is kept for as long as it lives: only its producer ends that.
"""

from typing import Final

from imagefleet.store.database import Connection
from imagefleet.store.jobs.pruning import Page, Place, page_of

# As long as the job of an upload is there, a repeat of its request is answered by it.
PRUNE_UPLOADS: Final = """
WITH old AS MATERIALIZED (
    SELECT uploads.id, uploads.job_id, uploads.used_at
      FROM uploads
     WHERE uploads.job_id IS NOT NULL
       AND uploads.used_at < now() - (SELECT fleet.retention FROM fleet)
       AND uploads.used_at >= coalesce($2::timestamptz, '-infinity')
       AND ($2::timestamptz IS NULL OR (uploads.used_at, uploads.id) > ($2, $3::uuid))
     ORDER BY uploads.used_at, uploads.id
     LIMIT $1
),
pruned AS (
    DELETE FROM uploads
     WHERE uploads.id = ANY (ARRAY (
               SELECT old.id FROM old
                WHERE (SELECT count(*) FROM jobs WHERE jobs.id = old.job_id) = 0))
    RETURNING uploads.id
)
SELECT (SELECT count(*) FROM old) AS seen, (SELECT count(*) FROM pruned) AS pruned,
       last.used_at AS last_at, last.id AS last_id,
       now() - (SELECT fleet.retention FROM fleet) - last.used_at AS behind
  FROM (SELECT) AS always
  LEFT JOIN (SELECT old.used_at, old.id
               FROM old ORDER BY old.used_at DESC, old.id DESC LIMIT 1) AS last ON true
"""


async def prune_uploads(connection: Connection, *, limit: int, after: Place | None = None) -> Page:
    """Forget uploads that became an image before retention, and whose job is forgotten."""
    row = await connection.fetchrow(PRUNE_UPLOADS, limit, *(after or (None, None)))
    assert row is not None  # noqa: S101 - of one row
    return page_of(row)


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


LIST_DARK: Final = """
SELECT tombstones.image_id, tombstones.dark_at,
       now() - (SELECT fleet.retention FROM fleet) - tombstones.dark_at AS behind
  FROM image_tombstones AS tombstones
 WHERE tombstones.dark_at < now() - (SELECT fleet.retention FROM fleet)
   AND tombstones.emptied_again_at IS NOT NULL
   AND tombstones.dark_at >= coalesce($2::timestamptz, '-infinity')
   AND ($2::timestamptz IS NULL OR (tombstones.dark_at, tombstones.image_id) > ($2, $3::uuid))
 ORDER BY tombstones.dark_at, tombstones.image_id
 LIMIT $1
"""

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
