"""Uploaded originals: which one an image is made of now."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from imagefleet.errors import NotFound
from imagefleet.jobs.model import TenantId
from imagefleet.store.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """An uploaded file, as it was accepted."""

    key: str
    bytes: int
    content_type: str
    etag: str | None
    sha256: str | None


FIND_ORIGINAL: Final = """
SELECT sources.key, sources.bytes, sources.content_type, sources.etag, sources.sha256
  FROM image_sources AS sources
 WHERE sources.image_id = $1 AND sources.tenant_id = $2
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
