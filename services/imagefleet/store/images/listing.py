"""Lists of images, page by page, each by the index that knows most of what is asked; and one whole.

A status is no column, so a page that is filtered looks at a bounded number of candidates and ends
there, short or empty, with where to go on. Candidates of what is rare are not every image: failed
and pending ones are found by their jobs, and deleted ones by their tombstones.
One image, of any tenant, is told with its past: its originals, and what it showed of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import UUID

from imagefleet.errors import NotFound
from imagefleet.jobs.images import ImageStatus
from imagefleet.jobs.model import TenantId
from imagefleet.jobs.shapes.edge import Deletion
from imagefleet.jobs.shapes.images import (
    ImagePage,
    ImageView,
    OriginalOfImage,
    OverseenImage,
    OverseenImagePage,
    RevisionOfImage,
    WholeImage,
)
from imagefleet.jobs.shapes.shape import Row
from imagefleet.store.database import Connection
from imagefleet.store.images.deleting import get_deletion
from imagefleet.store.images.images import FATE, IMAGE, STATUS
from imagefleet.store.jobs.reports import newest_first

MOST_LOOKED_AT: Final = 2_000
"""Candidates of one page; each costs two probes of an index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFilter:
    """Which images; everything that is set must hold."""

    status: ImageStatus | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    """Neither of the two moments itself."""
    reference: str | None = None


_PAGE: Final = newest_first("images")

LIST_IMAGES: Final = f"{IMAGE} WHERE images.tenant_id = $1 {_PAGE}"
LIST_BY_REFERENCE: Final = f"{IMAGE} WHERE images.tenant_id = $1 AND images.reference = $4 {_PAGE}"


def _filtered(candidates: str) -> str:
    """A page of those of these candidates, the first first, that are what is asked for."""
    return f"""
WITH looked AS MATERIALIZED (
    SELECT walked.*, row_number() OVER () AS nth FROM ({candidates} LIMIT $8) AS walked
),
found AS (
    SELECT looked.nth, looked.place, looked.image_id
      FROM (SELECT * FROM looked ORDER BY looked.nth) AS looked -- so that a full page ends it
      CROSS JOIN LATERAL (
          SELECT images.* FROM images
           WHERE images.id = looked.image_id AND ($1::text IS NULL OR images.tenant_id = $1)
           LIMIT 1
      ) AS images
      {FATE}
     WHERE ($4::text IS NULL OR {STATUS} = $4)
       AND ($5::timestamptz IS NULL OR images.created_at > $5)
       AND ($6::timestamptz IS NULL OR images.created_at < $6)
       AND ($7::text IS NULL OR images.reference = $7)
       AND (looked.job_id IS NULL OR looked.job_id = newest.job_id)
     ORDER BY looked.nth
     LIMIT $3
)
SELECT (SELECT count(*) FROM looked) AS looked,
       (SELECT looked.place FROM looked ORDER BY looked.nth DESC LIMIT 1) AS last,
       found.place, image.*
  FROM (SELECT) AS always
  LEFT JOIN found ON true
  LEFT JOIN LATERAL ({IMAGE} WHERE images.id = found.image_id) AS image ON true
 ORDER BY found.nth
"""  # noqa: S608 - composed at import


def _by_jobs(states: str) -> str:
    """The images of the jobs in these states, the newest job first; of each image only its last."""
    return f"""
    SELECT job.id AS place, job.id AS job_id, CASE
               WHEN job.target ~ '^image:[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}$'
               THEN substr(job.target, 7)::uuid END AS image_id
      FROM unnest('{{{states}}}'::text[]) AS wanted (state)
      CROSS JOIN LATERAL (
          SELECT jobs.id, jobs.target FROM jobs
           WHERE jobs.tenant_id = $1 AND jobs.type = 'process_image' AND jobs.state = wanted.state
             AND jobs.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
           ORDER BY jobs.id DESC NULLS LAST
           LIMIT $8
      ) AS job
     ORDER BY job.id DESC"""  # noqa: S608 - composed at import


_THEMSELVES: Final = """
    SELECT images.id AS place, NULL::uuid AS job_id, images.id AS image_id
      FROM images
     WHERE images.tenant_id = $1"""

FILTER_BY_TIME: Final = _filtered(f"""{_THEMSELVES}
       AND images.created_at > coalesce($5::timestamptz, '-infinity')
       AND images.created_at < coalesce($6::timestamptz, 'infinity')
       AND (images.created_at, images.id)
           < (coalesce((SELECT shown.created_at FROM images AS shown
                         WHERE shown.id = $2 AND shown.tenant_id = $1), 'infinity'),
              coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
     ORDER BY images.created_at DESC, images.id DESC""")  # noqa: S608 - composed at import

FILTER_BY_REFERENCE: Final = _filtered(f"""{_THEMSELVES}
       AND images.reference = $7
       AND images.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
     ORDER BY images.id DESC NULLS LAST""")

FILTER_DELETED: Final = _filtered("""
    SELECT tombstones.image_id AS place, NULL::uuid AS job_id, tombstones.image_id
      FROM image_tombstones AS tombstones
     WHERE tombstones.tenant_id = $1
       AND tombstones.image_id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
     ORDER BY tombstones.image_id DESC NULLS LAST""")

FILTER_FAILED: Final = _filtered(_by_jobs("failed"))
FILTER_PENDING: Final = _filtered(_by_jobs("queued,processing,failed_retryable"))

_RARE: Final[Mapping[ImageStatus | None, str]] = MappingProxyType(
    {
        ImageStatus.DELETED: FILTER_DELETED,
        ImageStatus.FAILED: FILTER_FAILED,
        ImageStatus.PENDING: FILTER_PENDING,
    }
)


async def list_images(
    connection: Connection,
    tenant_id: TenantId,
    chosen: ImageFilter,
    *,
    after: UUID | None = None,
    limit: int = 50,
) -> ImagePage:
    """A page of a tenant's images; the next one begins `after` its cursor.

    Newest first: of failed and pending ones the newest job. One that is filtered by status or time
    may be short, or empty, and yet not be the last.
    """
    rows, more = await _list_rows(connection, tenant_id, chosen, after, limit)
    return ImagePage(images=[ImageView.of(row) for row in rows], next_cursor=more)


Rows: TypeAlias = tuple[Sequence[Row], UUID | None]
"""Those of a page, and where the next one begins."""


async def _list_rows(
    connection: Connection,
    tenant_id: TenantId,
    chosen: ImageFilter,
    after: UUID | None,
    limit: int,
) -> Rows:
    reference = chosen.reference
    if chosen in (ImageFilter(), ImageFilter(reference=reference)):
        statement = LIST_IMAGES if reference is None else LIST_BY_REFERENCE
        given = () if reference is None else (reference,)
        rows = await connection.fetch(statement, tenant_id, after, limit + 1, *given)
        return rows[:limit], rows[limit - 1]["image_id"] if len(rows) > limit else None
    by_status = _RARE.get(chosen.status, FILTER_BY_TIME)
    statement = by_status if reference is None else FILTER_BY_REFERENCE
    told = (tenant_id, after, limit + 1, *astuple(chosen), MOST_LOOKED_AT)
    return _looked_at(await connection.fetch(statement, *told), limit, MOST_LOOKED_AT)


def _looked_at(rows: Sequence[Row], limit: int, most: int) -> Rows:
    fitting = [row for row in rows if row["image_id"] is not None]
    if len(fitting) > limit:
        return fitting[:limit], fitting[limit - 1]["place"]
    return fitting, rows[0]["last"] if rows[0]["looked"] == most else None


# What no tenant's index knows is looked for among the newest of all.
OVERSEE_IMAGES: Final = _filtered("""
    SELECT images.id AS place, NULL::uuid AS job_id, images.id AS image_id
      FROM images
     WHERE images.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
       AND images.id >= coalesce($9::uuid, '00000000-0000-0000-0000-000000000000')
     ORDER BY images.id DESC""")

_OF_TENANT: Final = """
          SELECT images.id FROM images
           WHERE images.tenant_id = owner.tenant_id AND images.reference = $7
             AND images.id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
             AND images.id >= coalesce($9::uuid, '00000000-0000-0000-0000-000000000000')
           ORDER BY images.id DESC NULLS LAST"""

# As with jobs: a page has nothing of those whose newest are older than a page of others' newest.
OVERSEE_BY_REFERENCE: Final = _filtered(f"""
    SELECT images.id AS place, NULL::uuid AS job_id, images.id AS image_id
      FROM (SELECT owner.tenant_id
              FROM (SELECT tenants.id AS tenant_id FROM tenants) AS owner
              CROSS JOIN LATERAL ({_OF_TENANT} LIMIT 1) AS newest
             ORDER BY newest.id DESC
             LIMIT $8) AS owner
      CROSS JOIN LATERAL ({_OF_TENANT} LIMIT $8) AS images
     ORDER BY images.id DESC""")  # noqa: S608 - composed at import


async def oversee_images(
    connection: Connection,
    tenant_id: TenantId | None,
    chosen: ImageFilter,
    *,
    first: UUID | None = None,
    before: UUID | None = None,
    limit: int = 50,
) -> OverseenImagePage:
    """A page of images of one tenant or of all, of which the ids lie there; newest first.

    Without a tenant what is asked for is looked for among the newest, but for a reference.
    """
    if tenant_id is not None and first is None:
        rows, more = await _list_rows(connection, tenant_id, chosen, before, limit)
    else:
        by_reference = tenant_id is None and chosen.reference is not None
        statement = OVERSEE_BY_REFERENCE if by_reference else OVERSEE_IMAGES
        exact = tenant_id is None and chosen == ImageFilter(reference=chosen.reference)
        most = limit + 1 if exact else MOST_LOOKED_AT
        told = (tenant_id, before, limit + 1, *astuple(chosen), most, first)
        rows, more = _looked_at(await connection.fetch(statement, *told), limit, most)
    return OverseenImagePage(images=[OverseenImage.of(row) for row in rows], next_cursor=more)


FIND_IMAGES_NAMED: Final = f"""
{IMAGE}
 WHERE images.tenant_id = $1 AND images.id >= $2 AND images.id < $3
 ORDER BY images.id DESC NULLS LAST
 LIMIT $4
"""


async def find_images_named(
    connection: Connection, tenant_id: TenantId, first: UUID, before: UUID, *, limit: int
) -> ImagePage:
    """Those of a tenant's images whose ids lie there, the newest first."""
    rows = await connection.fetch(FIND_IMAGES_NAMED, tenant_id, first, before, limit)
    return ImagePage(images=[ImageView.of(row) for row in rows])


MOST_TOLD: Final = 50  # of either, the newest

GET_WHOLE_IMAGE: Final = f"{IMAGE} WHERE images.id = $1"

LIST_REVISIONS: Final = """
SELECT revisions.revision, revisions.source_seq, revisions.job_id, revisions.recipe,
       revisions.recipe_hash, revisions.format, revisions.width, revisions.height,
       revisions.bytes, revisions.focal_x, revisions.focal_y, revisions.published_at,
       revisions.superseded_at, revisions.swept_at
  FROM image_revisions AS revisions
 WHERE revisions.image_id = $1
 ORDER BY revisions.revision DESC
 LIMIT $2
"""

LIST_SOURCES: Final = """
SELECT sources.source_seq, sources.content_type, sources.bytes, sources.width, sources.height,
       sources.sha256, sources.created_at AS accepted_at, sources.gone_at
  FROM image_sources AS sources
 WHERE sources.image_id = $1
 ORDER BY sources.source_seq DESC
 LIMIT $2
"""


async def get_whole_image(
    connection: Connection, image_id: UUID
) -> tuple[WholeImage, Deletion | None]:
    """It with its past, and what became of it where it was deleted."""
    row = await connection.fetchrow(GET_WHOLE_IMAGE, image_id)
    if row is None:
        raise NotFound("image")
    revisions = await connection.fetch(LIST_REVISIONS, image_id, MOST_TOLD)
    sources = await connection.fetch(LIST_SOURCES, image_id, MOST_TOLD)
    past = {
        "revisions": [RevisionOfImage.of(revision) for revision in revisions],
        "originals": [OriginalOfImage.of(source) for source in sources],
    }
    image = WholeImage.of(dict(row) | past)
    if image.status is not ImageStatus.DELETED:
        return image, None
    return image, await get_deletion(connection, image_id, TenantId(image.tenant))
