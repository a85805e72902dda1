"""Originals: which one is meant, for how long they are kept, and what they leave behind.

The row of an original outlives its object, as what is shown was made of it. It says that the object
is gone before S3 is asked to delete it, and under the lock of the image's target, under which
whatever renders it again is submitted: either finds the other. What S3 did not delete then is
litter, which a later walk meets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from imagefleet.errors import NotFound, RequestRejected
from imagefleet.jobs.images import ImageSource, Original
from imagefleet.jobs.model import TenantId
from imagefleet.store.database import Connection
from imagefleet.store.images.images import IMAGE_DELETED

ORIGINAL_GONE: Final = (
    "The original of this image is not kept any more. What is shown stays; upload it anew."
)

FIND_ORIGINAL: Final = """
SELECT sources.key, sources.bytes, sources.content_type, sources.etag, sources.sha256
  FROM image_sources AS sources
 WHERE sources.image_id = $1 AND sources.tenant_id = $2 AND sources.gone_at IS NULL
   AND NOT EXISTS (SELECT FROM image_tombstones
                    WHERE image_tombstones.image_id = sources.image_id)
 ORDER BY sources.source_seq DESC
 LIMIT 1
"""


async def find_original(connection: Connection, image_id: UUID, tenant_id: TenantId) -> Original:
    """The newest original of an image; NotFound of another tenant's, and of a deleted one."""
    row = await connection.fetchrow(FIND_ORIGINAL, image_id, tenant_id)
    if row is None:
        raise NotFound("image")
    return Original(**dict(row))


FIND_SOURCE: Final = """
SELECT images.tenant_id, sources.source_seq, sources.key, sources.bytes, sources.content_type,
       sources.etag, sources.sha256, sources.width, sources.height
  FROM images
 CROSS JOIN LATERAL (
      SELECT each.* FROM image_sources AS each
       WHERE each.image_id = images.id AND each.source_seq = coalesce($2, each.source_seq)
       ORDER BY each.source_seq DESC
       LIMIT 1
 ) AS sources
 WHERE images.id = $1 AND sources.gone_at IS NULL
   AND NOT EXISTS (SELECT FROM image_tombstones
                    WHERE image_tombstones.image_id = images.id)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOfImage(ImageSource):
    """One of the originals that an image was given, and whose it is."""

    tenant_id: TenantId
    source_seq: int


async def find_source(
    connection: Connection, image_id: UUID, source_seq: int | None = None
) -> SourceOfImage:
    """This original of an image, or its newest; NotFound where it is not kept, or deleted."""
    row = await connection.fetchrow(FIND_SOURCE, image_id, source_seq)
    if row is None:
        raise NotFound("original")
    return SourceOfImage(image_id=image_id, **dict(row))


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedOriginal(Original):
    """The same, and since when we have it."""

    accepted_at: datetime


FIND_SHOWN_ORIGINAL: Final = """
SELECT shown.key, shown.bytes, shown.content_type, shown.etag, shown.sha256,
       shown.created_at AS accepted_at, shown.gone_at IS NOT NULL AS gone,
       EXISTS (SELECT FROM image_tombstones
                WHERE image_tombstones.image_id = images.id) AS deleted
  FROM images
 CROSS JOIN LATERAL (
      SELECT sources.*
        FROM image_sources AS sources
       WHERE sources.image_id = images.id
         AND sources.source_seq = coalesce(images.source_seq, sources.source_seq)
       ORDER BY sources.source_seq DESC
       LIMIT 1
 ) AS shown
 WHERE images.id = $1 AND images.tenant_id = $2
"""


async def find_shown_original(
    connection: Connection, image_id: UUID, tenant_id: TenantId
) -> AcceptedOriginal:
    """What is shown was made of this one; where nothing is shown yet, the newest that came.

    NotFound of another tenant's image; RequestRejected of one that was deleted, and of an original
    that is not kept any more.
    """
    row = await connection.fetchrow(FIND_SHOWN_ORIGINAL, image_id, tenant_id)
    if row is None:
        raise NotFound("image")
    columns = dict(row)
    gone = columns.pop("gone")
    if columns.pop("deleted"):
        raise RequestRejected("image_deleted", IMAGE_DELETED)
    if gone:
        raise RequestRejected("original_gone", ORIGINAL_GONE)
    return AcceptedOriginal(**columns)


FIND_GONE: Final = """
SELECT sources.key
  FROM image_sources AS sources
 WHERE sources.key = ANY ($1::text[]) AND sources.gone_at IS NOT NULL
"""


async def find_gone(connection: Connection, keys: Sequence[str]) -> frozenset[str]:
    """Those of these originals that are not kept; for who holds the locks of their targets."""
    return frozenset(row["key"] for row in await connection.fetch(FIND_GONE, keys))


# One whose target is locked is in use, and is met by the next walk.
LOCK_EXPIRED: Final = """
SELECT sources.key
  FROM image_sources AS sources
  JOIN targets ON targets.tenant_id = sources.tenant_id
              AND targets.target = 'image:' || sources.image_id
 WHERE sources.key = ANY ($1::text[])
   AND sources.gone_at IS NULL AND sources.created_at < now() - $2::interval
   AND targets.running_job IS NULL
 ORDER BY targets.tenant_id, targets.target
   FOR UPDATE OF targets SKIP LOCKED
"""

# What is open, or failed and waits for somebody who may replay it, needs its original. A deleted
# image has its own way out.
FORGET_ORIGINALS: Final = """
UPDATE image_sources
   SET gone_at = now()
 WHERE image_sources.key = ANY ($1::text[]) AND image_sources.gone_at IS NULL
   AND (SELECT count(*)
          FROM jobs
          LEFT JOIN dead_letters AS letters
                 ON letters.job_id = jobs.id AND letters.acknowledged_at IS NULL
         WHERE jobs.tenant_id = image_sources.tenant_id
           AND jobs.target = 'image:' || image_sources.image_id
           AND (letters.id IS NOT NULL
                OR jobs.state IN ('queued', 'processing', 'failed_retryable'))) = 0
   AND (SELECT count(*) FROM image_tombstones AS tombstones
         WHERE tombstones.image_id = image_sources.image_id) = 0
RETURNING image_sources.key
"""


async def forget_originals(
    connection: Connection, keys: Sequence[str], *, kept_for: timedelta
) -> frozenset[str]:
    """Those of these originals that are past the time that they are kept, and that nobody needs.

    From the commit on nothing is made of them any more, and their objects may go.
    """
    async with connection.transaction():
        locked = await connection.fetch(LOCK_EXPIRED, keys, kept_for)
        expired = [row["key"] for row in locked]
        rows = await connection.fetch(FORGET_ORIGINALS, expired) if expired else []
    return frozenset(row["key"] for row in rows)
