"""What may be swept from S3.

An object goes when Postgres says so after it was listed. What is said stays true: a job that has
ended never publishes, an upload that was forgotten never becomes an image, and no key comes twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from imagefleet.jobs.images import OutputKey
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


# The row before the object: whoever still has it could make an image of what is being deleted.
FORGET_UPLOADS: Final = """
WITH forgotten AS (
    DELETE FROM uploads
     WHERE uploads.id = ANY (ARRAY (
               SELECT unused.id
                 FROM uploads AS unused
                WHERE unused.job_id IS NULL AND unused.expires_at < now() - $1::interval
                ORDER BY unused.expires_at
                LIMIT $2))
       -- Of the row itself, once more: meanwhile somebody may have gone through.
       AND uploads.job_id IS NULL
    RETURNING uploads.id
)
SELECT count(*) FROM forgotten
"""


async def forget_uploads(connection: Connection, *, expired_for: timedelta, limit: int) -> int:
    """Close the gate of uploads that expired that long ago and became nothing; how many."""
    forgotten: int = await connection.fetchval(FORGET_UPLOADS, expired_for, limit)
    return forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What is to be done about listed objects that are old enough; the others stay."""

    litter: frozenset[str]
    unknown: frozenset[str]
    """Of images that this database has never heard of: perhaps it is not the one they belong to."""


# Each condition is asked of each object in turn, as in PRUNE_JOBS. An open job keeps all that its
# claims ever stored, as its progress may name it; one that is past retention had ended.
JUDGE_OUTPUTS: Final = """
SELECT found.key, target.target IS NULL AS is_unknown
  FROM unnest($1::text[], $2::timestamptz[], $3::uuid[], $4::bigint[], $5::bigint[])
    AS found (key, modified_at, image_id, revision, claim_no)
  LEFT JOIN LATERAL (
      SELECT images.tenant_id FROM images WHERE images.id = found.image_id LIMIT 1
  ) AS image ON true
  LEFT JOIN LATERAL (
      SELECT targets.tenant_id, targets.target
        FROM targets
       WHERE targets.tenant_id = image.tenant_id AND targets.target = 'image:' || found.image_id
         AND targets.next_seq > found.revision
       LIMIT 1
  ) AS target ON true
 WHERE found.modified_at < now() - $6::interval
   AND (SELECT count(*) FROM variants WHERE variants.key = found.key) = 0
   AND (SELECT count(*)
          FROM image_revisions AS revisions
         WHERE revisions.image_id = found.image_id AND revisions.revision = found.revision
           AND revisions.claim_no = found.claim_no AND revisions.swept_at IS NULL) = 0
   AND (SELECT count(*)
          FROM jobs
         WHERE jobs.tenant_id = target.tenant_id AND jobs.target = target.target
           AND jobs.target_seq = found.revision
           AND jobs.state IN ('queued', 'processing', 'failed_retryable')) = 0
"""


async def judge_outputs(
    connection: Connection,
    found: Sequence[tuple[str, datetime, OutputKey]],
    *,
    older_than: timedelta,
) -> Judged:
    """Which of these objects nothing names and no job can publish any more."""
    rows = await connection.fetch(
        JUDGE_OUTPUTS,
        [key for key, _, _ in found],
        [modified_at for _, modified_at, _ in found],
        [place.image_id for _, _, place in found],
        [place.revision for _, _, place in found],
        [place.claim_no for _, _, place in found],
        older_than,
    )
    return Judged(
        litter=frozenset(row["key"] for row in rows if not row["is_unknown"]),
        unknown=frozenset(row["key"] for row in rows if row["is_unknown"]),
    )


# Jobs are no evidence about originals: what is accepted has a row of its own.
JUDGE_ORIGINALS: Final = """
SELECT found.key
  FROM unnest($1::text[], $2::timestamptz[]) AS found (key, modified_at)
 WHERE found.modified_at < now() - $3::interval
   AND (SELECT count(*) FROM image_sources WHERE image_sources.key = found.key) = 0
   AND (SELECT count(*) FROM uploads WHERE uploads.key = found.key) = 0
"""


async def judge_originals(
    connection: Connection, found: Sequence[tuple[str, datetime]], *, older_than: timedelta
) -> frozenset[str]:
    """Which of these objects are neither an accepted original nor may become one."""
    keys, modified = [key for key, _ in found], [modified_at for _, modified_at in found]
    rows = await connection.fetch(JUDGE_ORIGINALS, keys, modified, older_than)
    return frozenset(row["key"] for row in rows)
