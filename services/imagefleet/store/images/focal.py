"""The focal point of an image: moved by its producer, and what an edit of it leaves as it was.

`images` has the point that was asked for last, from the moment that its job is accepted: whatever
is rendered later has it. A revision has the one that it was made with, and that is what is shown to
producers: should the job of an edit fail, they see that nothing has moved, and may ask once more.
Jobs of one image run in order, so of two edits the later one is shown in the end.
"""

from dataclasses import replace
from typing import Final
from uuid import UUID

from pydantic import TypeAdapter

from imagefleet.jobs.images import (
    Focal,
    Made,
    PlaceholderFacts,
    PublishedVariant,
    SourceFacts,
    VariantFacts,
)
from imagefleet.jobs.kinds import Draft
from imagefleet.jobs.model import Submission, Submitted, TenantId
from imagefleet.jobs.shapes.images import FocalPoint, ImageView
from imagefleet.store.database import Connection
from imagefleet.store.images.images import get_image
from imagefleet.store.images.reprocessing import find_candidate
from imagefleet.store.jobs.admissions import is_standing
from imagefleet.store.jobs.submissions import insert_submission

MOVE_FOCAL: Final = """
UPDATE images SET focal_x = $2, focal_y = $3, updated_at = now() WHERE images.id = $1
"""


async def move_focal(
    connection: Connection,
    draft: Draft,
    image_id: UUID,
    focal: Focal | None,
    *,
    fingerprint: str = "",
) -> tuple[Submission, Submitted] | ImageView:
    """Accept the job that cuts the image anew; the image as it is, where nothing would change.

    The point is the image's with the same commit; None takes it away. A repeat of a request moves
    nothing: meanwhile it may have been moved by another. NotFound for another tenant's image.
    """
    async with connection.transaction():
        candidate = await find_candidate(connection, draft, image_id)
        shown = await get_image(connection, image_id, draft.tenant_id)
        at = focal and FocalPoint(x=focal.x, y=focal.y)
        moves = (candidate.focal, shown.focal_point) != (focal, at)
        if not moves and not await is_standing(connection, draft):
            return shown
        # In the version of its recipe that made what is shown, whichever is in force.
        payload = replace(candidate, focal=focal).payload(None, {}, crops_only=True)
        submission = draft.whole(payload, fingerprint=fingerprint)
        answer = await insert_submission(connection, submission)
        if answer.created:
            await connection.execute(MOVE_FOCAL, image_id, *(focal or (None, None)))
        return submission, answer


# No tombstone is asked for: over one nothing is published, whatever was copied.
FIND_SHOWN: Final = """
SELECT shown.format, shown.width, shown.height, shown.bytes, shown.sha256,
       shown.thumbhash, shown.color,
       (SELECT coalesce(jsonb_agg(to_jsonb(variants)), '[]'::jsonb)
          FROM variants
         WHERE variants.image_id = shown.image_id AND variants.revision = shown.revision
       ) AS variants
  FROM images
  JOIN image_revisions AS shown
    ON shown.image_id = images.id AND shown.revision = images.revision
 WHERE images.id = $1 AND images.tenant_id = $2 AND shown.source_seq = $3 AND shown.encoder = $4
"""

_SOURCE: Final = TypeAdapter(SourceFacts)
_VARIANTS: Final = TypeAdapter(list[VariantFacts])


async def find_shown(
    connection: Connection, image_id: UUID, tenant_id: TenantId, *, source_seq: int, encoder: str
) -> Made | None:
    """What is shown of an image, if it was made of this original in exactly this way."""
    row = await connection.fetchrow(FIND_SHOWN, image_id, tenant_id, source_seq, encoder)
    if row is None:
        return None
    facts = _VARIANTS.validate_python(row["variants"])
    keys = [variant["key"] for variant in row["variants"]]
    return Made(
        source=_SOURCE.validate_python(dict(row)),
        placeholder=PlaceholderFacts(thumbhash=row["thumbhash"], color=row["color"]),
        variants=tuple(
            PublishedVariant(key=key, facts=each) for key, each in zip(keys, facts, strict=True)
        ),
    )
