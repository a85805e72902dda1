"""The one read behind every stable address."""

from typing import Final
from uuid import UUID

from imagefleet.store.database import Connection, translated

FIND_CURRENT: Final = """
SELECT variants.key
  FROM images
  JOIN variants ON variants.image_id = images.id AND variants.revision = images.revision
 WHERE images.id = $1 AND variants.name = $2 AND variants.format = $3
   AND NOT EXISTS (SELECT FROM image_tombstones WHERE image_tombstones.image_id = images.id)
"""


async def find_current(
    connection: Connection, image_id: UUID, name: str, image_format: str, *, within: float
) -> str | None:
    """The key of a variant's current revision; None: not yet, no more, or never."""
    with translated():
        key: str | None = await connection.fetchval(
            FIND_CURRENT, image_id, name, image_format, timeout=within
        )
    return key
