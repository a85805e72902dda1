"""Rendering again what is published: one image for its producer, or a page of a set for its job.

Both lock the targets of their images first. A deletion writes its tombstone under that lock too, so
nothing is submitted here for an image that was deleted before; and the original found is the newest
one, whatever is being uploaded meanwhile. A handler that is given no original asks for that one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias
from uuid import UUID

from imagefleet.errors import NotFound, RequestRejected
from imagefleet.imaging.lanes import rendering, why_slow
from imagefleet.jobs.bulk import Candidate, SetWalk, follow_up, is_wanted
from imagefleet.jobs.images import Focal, ImageFormat, image_target
from imagefleet.jobs.kinds import Draft, ReprocessImages
from imagefleet.jobs.model import Claim, Submission, Submitted, TenantId
from imagefleet.jobs.shapes.images import FocalPoint, ImageView
from imagefleet.store.database import Connection
from imagefleet.store.images.images import IMAGE_DELETED, RECIPE_HASH, get_image
from imagefleet.store.images.originals import ORIGINAL_GONE
from imagefleet.store.jobs.admissions import is_standing
from imagefleet.store.jobs.leases import Renewal, report_progress
from imagefleet.store.jobs.reports import newest_first
from imagefleet.store.jobs.submissions import insert_submission, insert_submissions

Makes: TypeAlias = Mapping[str, Collection[ImageFormat]]
"""Which formats the versions in force make, by hash."""
NOTHING_KNOWN: Final[Makes] = {}
PAGE: Final = 25  # images; their targets stay locked for a few milliseconds
MOST_COUNTED: Final = 1_000_000  # images; a larger set has no total

LOCK_IMAGES: Final = """
SELECT targets.target
  FROM targets
 WHERE targets.tenant_id = $1 AND targets.target = ANY ($2::text[])
 ORDER BY targets.tenant_id, targets.target
   FOR UPDATE OF targets
"""

FIND_CANDIDATES: Final = f"""
SELECT images.id AS image_id, images.recipe, {RECIPE_HASH},
       tombstone.image_id IS NOT NULL AS deleted, images.focal_x, images.focal_y,
       newest.gone_at IS NOT NULL AS gone,
       newest.source_seq, newest.key, newest.bytes, newest.sha256, newest.etag, newest.content_type,
       newest.width, newest.height
  FROM unnest($2::uuid[]) AS wanted (id)
  JOIN images ON images.id = wanted.id AND images.tenant_id = $1
  LEFT JOIN image_tombstones AS tombstone ON tombstone.image_id = images.id
  LEFT JOIN image_revisions AS shown
         ON shown.image_id = images.id AND shown.revision = images.revision
  CROSS JOIN LATERAL (
      SELECT sources.source_seq, sources.key, sources.bytes, sources.sha256, sources.etag,
             sources.content_type, sources.width, sources.height, sources.gone_at
        FROM image_sources AS sources
       WHERE sources.image_id = images.id
       ORDER BY sources.source_seq DESC
       LIMIT 1
  ) AS newest
 ORDER BY images.id DESC
"""  # noqa: S608 - composed at import


async def _find_candidates(
    connection: Connection, tenant_id: TenantId, image_ids: Sequence[UUID]
) -> list[Candidate]:
    """Those of these images that are the tenant's, newest first, with their newest originals."""
    await connection.execute(LOCK_IMAGES, tenant_id, list(map(image_target, image_ids)))
    rows = await connection.fetch(FIND_CANDIDATES, tenant_id, list(image_ids))
    return [_candidate(**dict(row)) for row in rows]


def _candidate(focal_x: float | None, focal_y: float | None, **columns: Any) -> Candidate:  # noqa: ANN401 - of a row
    return Candidate(focal=Focal.of(focal_x, focal_y), **columns)


async def reprocess_image(
    connection: Connection,
    draft: Draft,
    image_id: UUID,
    *,
    recipe: str | None,
    versions: Mapping[str, str],
    makes: Makes = NOTHING_KNOWN,
    fingerprint: str = "",
) -> tuple[Submission, Submitted]:
    """Accept the job that renders an image's newest original once more, which is known here.

    In the versions that are in force, where they say of its recipe which that is.
    NotFound for another tenant's. Of a deleted image only the repeat of a request is answered.
    """
    async with connection.transaction():
        candidate = await find_candidate(connection, draft, image_id)
        payload = candidate.payload(recipe, versions)
        submission = _rendering(draft, candidate, payload, makes, fingerprint)
        return submission, await insert_submission(connection, submission)


def _rendering(
    draft: Draft, source: Candidate, payload: dict[str, Any], makes: Makes, fingerprint: str
) -> Submission:
    slow = why_slow(source, makes.get(payload.get("recipe_hash", "")))
    return rendering(draft, payload, slow, fingerprint=fingerprint)


async def find_candidate(connection: Connection, draft: Draft, image_id: UUID) -> Candidate:
    """The same of an image, whose target stays locked until the transaction around this ends."""
    candidates = await _find_candidates(connection, draft.tenant_id, [image_id])
    if not candidates:
        raise NotFound("image")
    [candidate] = candidates
    # What stands by a dedup key may be gone a moment later, and this would be its successor.
    own = replace(draft, dedup_key=None)
    if (candidate.deleted or candidate.gone) and not await is_standing(connection, own):
        if candidate.deleted:
            raise RequestRejected("image_deleted", IMAGE_DELETED)
        raise RequestRejected("original_gone", ORIGINAL_GONE)
    return candidate


# `images` has the point that was asked for last, as soon as its job is accepted: what is rendered
# later has it. A revision has the one that it was made with, and that is shown to producers: where
# the job of a move fails they see that nothing has moved, and may ask once more.
MOVE_FOCAL: Final = """
UPDATE images SET focal_x = $2, focal_y = $3, updated_at = now() WHERE images.id = $1
"""


async def move_focal(
    connection: Connection,
    draft: Draft,
    image_id: UUID,
    focal: Focal | None,
    *,
    makes: Makes = NOTHING_KNOWN,
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
        payload = replace(candidate, focal=focal).payload(None, {})
        payload |= {"crops_only": True}
        submission = _rendering(draft, candidate, payload, makes, fingerprint)
        answer = await insert_submission(connection, submission)
        if answer.created:
            await connection.execute(MOVE_FOCAL, image_id, *(focal or (None, None)))
        return submission, answer


FIND_PRESENT: Final = """
SELECT wanted.id AS image_id, tombstone.image_id IS NOT NULL AS deleted,
       (SELECT max(source_seq) FROM image_sources WHERE image_id = wanted.id) AS source_seq,
       images.focal_x, images.focal_y
  FROM unnest($1::uuid[]) AS wanted (id)
  LEFT JOIN images ON images.id = wanted.id
  LEFT JOIN image_tombstones AS tombstone ON tombstone.image_id = wanted.id
"""


async def find_present(
    connection: Connection, image_ids: Sequence[UUID]
) -> dict[UUID, tuple[bool, int | None, Focal | None]]:
    """Of each: whether it was deleted, its newest source, and its point, which is of that.

    For whoever holds the locks of their targets.
    """
    rows = await connection.fetch(FIND_PRESENT, list(image_ids))
    return {id_: (deleted, newest, Focal.of(x, y)) for id_, deleted, newest, x, y in rows}


_WALK: Final = newest_first("images")
_IMAGES: Final = "SELECT images.id FROM images WHERE images.tenant_id = $1"

WALK_IMAGES: Final = f"{_IMAGES} {_WALK}"
WALK_REFERENCE: Final = f"{_IMAGES} AND images.reference = $4 {_WALK}"


async def _next_images(
    connection: Connection,
    tenant_id: TenantId,
    wanted: ReprocessImages,
    before: UUID | None,
    most: int,
) -> list[UUID]:
    """The ids of the next page, newest first; those that a payload names are taken at its word."""
    if wanted.image_ids is not None:
        named = sorted(set(wanted.image_ids), reverse=True)
        return [image_id for image_id in named if before is None or image_id < before][:most]
    if wanted.reference is not None:
        rows = await connection.fetch(WALK_REFERENCE, tenant_id, before, most, wanted.reference)
    else:
        rows = await connection.fetch(WALK_IMAGES, tenant_id, before, most)
    return [row["id"] for row in rows]


_SOME_OF: Final = f"SELECT count(*) FROM ({_IMAGES}"  # noqa: S608 - of the constant above

COUNT_IMAGES: Final = f"{_SOME_OF} LIMIT $2) AS counted"
COUNT_REFERENCE: Final = f"{_SOME_OF} AND images.reference = $3 LIMIT $2) AS counted"


async def count_set(
    connection: Connection, tenant_id: TenantId, wanted: ReprocessImages
) -> int | None:
    """How many images a walk over this set looks at; None if they are more than are counted."""
    if wanted.image_ids is not None:
        return len(set(wanted.image_ids))
    most = MOST_COUNTED + 1
    if wanted.reference is not None:
        counted = await connection.fetchval(COUNT_REFERENCE, tenant_id, most, wanted.reference)
    else:
        counted = await connection.fetchval(COUNT_IMAGES, tenant_id, most)
    return int(counted) if counted < most else None


CREATED_BY: Final = """
SELECT jobs.created_by FROM jobs WHERE jobs.id = $1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedPage:
    """What one step of a walk did."""

    walk: SetWalk
    over: bool
    cancelled: bool
    """Somebody asked the set's job to stop: nothing of the page was submitted."""


class _Stopped(Exception):
    """On its way out of a transaction that must leave no trace."""


async def submit_page(
    connection: Connection,
    claim: Claim,
    renewal: Renewal,
    wanted: ReprocessImages,
    walk: SetWalk,
    most: int = PAGE,
) -> SubmittedPage:
    """Submit the jobs of the next page and move the cursor behind it, both or neither.

    A page is at most so many images, as the tenant may not have room for more jobs. Raises
    ClaimLost if the claim does not stand any more; then the page belongs to another.
    """
    try:
        async with connection.transaction():
            return await _submit_in_transaction(connection, claim, renewal, wanted, walk, most)
    except _Stopped:
        return SubmittedPage(walk=walk, over=False, cancelled=True)


async def _submit_in_transaction(
    connection: Connection,
    claim: Claim,
    renewal: Renewal,
    wanted: ReprocessImages,
    walk: SetWalk,
    most: int,
) -> SubmittedPage:
    page = await _next_images(connection, claim.tenant_id, wanted, walk.before, most)
    candidates = await _find_candidates(connection, claim.tenant_id, page)
    created_by = await connection.fetchval(CREATED_BY, claim.job_id)
    submissions = [
        follow_up(claim, candidate, wanted, created_by=created_by)
        for candidate in candidates
        if not (candidate.deleted or candidate.gone) and is_wanted(candidate, wanted)
    ]
    if submissions:
        await insert_submissions(connection, submissions)
    unknown = len(page) - len(candidates)
    walked = walk.behind(
        page,
        walk.seen + len(page),
        submitted=walk.submitted + len(submissions),
        skipped=walk.skipped + sum(each.deleted or each.gone for each in candidates) + unknown,
    )
    # Last, and in the same transaction: targets are locked before jobs, and without the claim
    # nothing of the page is submitted either.
    if await report_progress(
        connection, renewal, done=walked.seen, total=walked.total, cursor=walked.cursor
    ):
        raise _Stopped
    return SubmittedPage(walk=walked, over=len(page) < most, cancelled=False)
