"""What is shown: the one read behind every stable address, and what an image is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from imagefleet.errors import NotFound
from imagefleet.jobs.model import TenantId
from imagefleet.store.database import Connection

# Asked of each in turn: as a join it could become a hash of every image there is.
FIND_CURRENT: Final = """
SELECT wanted.image_id, wanted.name, wanted.format,
       (SELECT variants.key
          FROM images
          JOIN variants ON variants.image_id = images.id AND variants.revision = images.revision
         WHERE images.id = wanted.image_id
           AND variants.name = wanted.name AND variants.format = wanted.format
           AND (SELECT count(*) FROM image_tombstones AS tombstones
                 WHERE tombstones.image_id = images.id) = 0) AS key
  FROM unnest($1::uuid[], $2::text[], $3::text[]) AS wanted (image_id, name, format)
"""


Address: TypeAlias = tuple[UUID, str, str]
"""An image, the name of a variant and its format."""


async def find_current(
    connection: Connection, wanted: Sequence[Address], *, within: float
) -> dict[Address, str]:
    """The keys of current revisions; none of what is not yet, no more, or never was."""
    rows = await connection.fetch(
        FIND_CURRENT,
        [image_id for image_id, _, _ in wanted],
        [name for _, name, _ in wanted],
        [image_format for _, _, image_format in wanted],
        within=within,
    )
    return {
        (row["image_id"], row["name"], row["format"]): row["key"]
        for row in rows
        if row["key"] is not None
    }


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
