"""One image, of any tenant, with its past: the originals it was given, what it showed of them."""

from typing import Final
from uuid import UUID

from imagefleet.errors import NotFound
from imagefleet.jobs.images import ImageStatus
from imagefleet.jobs.model import TenantId
from imagefleet.jobs.shapes.edge import Deletion
from imagefleet.jobs.shapes.images import OriginalOfImage, RevisionOfImage, WholeImage
from imagefleet.store.database import Connection
from imagefleet.store.images.deleting import get_deletion
from imagefleet.store.images.images import IMAGE

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
