"""Where a stable address leads: to what its image shows now."""

from collections.abc import Sequence
from typing import Final, TypeAlias
from uuid import UUID

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
