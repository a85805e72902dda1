"""Images: looked at, and deleted; and their originals, read back.

An original is read by an address of S3 that is good for minutes, never through the API. The answer
is no redirect: a client that follows one with its key, as many do, would be refused by S3, which
takes one way of signing at a time; and who only wants to know what there is, asks too.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final
from uuid import UUID

from fastapi import Query, Request
from starlette.responses import Response

from imagefleet.api.http.auth import OriginalsReader, Reader, Submitter
from imagefleet.api.http.openapi import Routes, described
from imagefleet.api.http.requests import Tools, ToolsHere, accepted, answer
from imagefleet.api.producers.ranges import CURSOR, IdPrefix, PageSize, range_alone
from imagefleet.api.producers.schemas import NO_CONTROLS, RunAt
from imagefleet.api.producers.submitting import (
    Admission,
    Admitted,
    draft,
    fingerprint,
    idempotency_header,
    key_of,
)
from imagefleet.errors import NotFound, RequestRejected
from imagefleet.jobs.images import ImageFormat, ImageStatus, image_target
from imagefleet.jobs.kinds import CancelJob, DeleteImage
from imagefleet.jobs.lifecycle import failure_sentence
from imagefleet.jobs.model import CancelCode, JobId, Submission, TenantId
from imagefleet.jobs.shapes.images import ImagePage, ImageView, OriginalView
from imagefleet.jobs.shapes.pictures import Addresses, Layout, Loading
from imagefleet.jobs.shapes.shape import AcceptedImage
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.images.deleting import delete_image, get_deletion
from imagefleet.store.images.images import get_image
from imagefleet.store.images.listing import ImageFilter, find_images_named, list_images
from imagefleet.store.images.originals import ORIGINAL_GONE, find_shown_original
from imagefleet.store.jobs.submissions import find_standing

ReferenceQuery = Annotated[
    str | None, Query(pattern=NO_CONTROLS, description="A name of yours, to find the image by.")
]

SHORT_TEXT: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{0,500}$"
SIZES: Final = (
    "Of `html`: how wide the page shows it; as wide as it is, or the window, if not given."
)
LOADING: Final = "Of `html`: `eager` for what is seen first on a page."
ADDRESSES: Final = "Of `html`: `immutable` for pages that are made anew with every revision."

VALID_FOR: Final = timedelta(minutes=5)
_EXTENSIONS: Final = {each.mime_type: each.extension for each in ImageFormat}

router = Routes(tags=["images"])


@router.get("/v1/images", **described("List images", ImagePage))
async def find_images(
    request: Request,
    key: Reader,
    tools: ToolsHere,
    reference: ReferenceQuery = None,
    id_prefix: IdPrefix = None,
    status: ImageStatus | None = None,
    created_after: Annotated[RunAt | None, Query(alias="createdAfter")] = None,
    created_before: Annotated[RunAt | None, Query(alias="createdBefore")] = None,
    limit: PageSize = 50,
    cursor: Annotated[UUID | None, Query(description=CURSOR)] = None,
) -> Response:
    """Newest first, those of which all of it is true; a page may be short and not the last.

    With `idPrefix`, alone, those whose ids begin so.
    """
    chosen = ImageFilter(
        reference=reference,
        status=status,
        created_after=created_after,
        created_before=created_before,
    )
    async with tools.pool.use("list_images", "images") as connection:
        if id_prefix is not None:
            ids = range_alone(request, id_prefix)
            page = await find_images_named(connection, key.tenant_id, *ids, limit=limit)
        else:
            page = await list_images(connection, key.tenant_id, chosen, after=cursor, limit=limit)
    base_url, kept_for = tools.settings.public_base_url, tools.originals_kept_for
    images = [image.at(base_url, kept_for=kept_for) for image in page.images]
    return answer(page.model_copy(update={"images": images}))


@router.get("/v1/images/{image_id}", **described("Look at an image", ImageView, 404))
async def show_image(
    image_id: UUID,
    key: Reader,
    tools: ToolsHere,
    alt: Annotated[str, Query(pattern=SHORT_TEXT, description="Of `html`; escaped there.")] = "",
    sizes: Annotated[str | None, Query(pattern=SHORT_TEXT, description=SIZES)] = None,
    loading: Annotated[Loading, Query(description=LOADING)] = "lazy",
    addresses: Annotated[Addresses, Query(description=ADDRESSES)] = "stable",
) -> Response:
    """The image as it is now; of a deleted one, the receipt of its deletion as far as it is."""
    async with tools.pool.use("get_image", "images") as connection:
        image = await get_image(connection, image_id, key.tenant_id)
        gone = None
        if image.status is ImageStatus.DELETED:
            gone = await get_deletion(connection, image_id, key.tenant_id)
    shown = image.at(tools.settings.public_base_url, gone, tools.originals_kept_for)
    return answer(shown.on_a(Layout(alt, sizes, loading, addresses)))


@router.delete(
    "/v1/images/{image_id}",
    name="delete_image",
    **described("Delete an image", AcceptedImage, 400, 404, status=202, takes=idempotency_header()),
)
async def remove_image(
    request: Request, image_id: UUID, key: Submitter, tools: ToolsHere
) -> Response:
    """Delete it with all it ever published. From now on it is gone; its job makes that true."""
    submission = deletion_of(request, tools, image_id, key, key.tenant_id, key_of(request))
    admission: Admission = request.app.state.admission
    async with tools.pool.use("delete_image", "image_tombstones") as connection:
        if await admission.admit_deletion(connection, key, submission) is Admitted.STANDS:
            standing = await find_standing(connection, submission)
            return accepted(AcceptedImage.answering(standing, image_id))
        cancelling = cancelling_for(request, tools, submission, key)
        deleting = await delete_image(connection, submission, image_id, cancelling=cancelling)
    tools.ring(deleting.submitted)
    return accepted(AcceptedImage.answering(deleting.answer, image_id))


def deletion_of(
    request: Request,
    tools: Tools,
    image_id: UUID,
    by: ApiKey,
    tenant_id: TenantId,
    own: str | None = None,
) -> Submission:
    """The job that deletes an image of this tenant."""
    payload = DeleteImage(image_id=image_id).model_dump(mode="json")
    return draft(
        request,
        tools.kinds["delete_image"],
        by=by,
        on_behalf_of=tenant_id,
        key=own,
        target=image_target(image_id),
        dedup_key=str(image_id),
    ).whole(payload, fingerprint=fingerprint("DELETE /v1/images/{id}", payload))


def cancelling_for(
    request: Request, tools: Tools, deletion: Submission, by: ApiKey
) -> Callable[[JobId], Submission]:
    """What tells a job of a deleted image to end, wherever it runs."""

    def cancelling(job_id: JobId) -> Submission:
        order = CancelJob(job_id=job_id, code=CancelCode.IMAGE_DELETED)
        return draft(
            request,
            tools.kinds["cancel_job"],
            by=by,
            on_behalf_of=deletion.tenant_id,
            correlation_id=deletion.correlation_id,
            dedup_key=str(job_id),
            parent_job_id=deletion.job_id,
        ).whole(order.model_dump(mode="json"))

    return cancelling


@router.get(
    "/v1/images/{image_id}/original",
    **described("Read an original back", OriginalView, 404, 409),
)
async def show_original(image_id: UUID, key: OriginalsReader, tools: ToolsHere) -> Response:
    """Where the original of what is shown lies, for the next five minutes."""
    async with tools.pool.use("find_shown_original", "images") as connection:
        original = await find_shown_original(connection, image_id, key.tenant_id)
    try:
        there = await tools.originals.head(original.key)
    except NotFound:
        raise RequestRejected("original_gone", ORIGINAL_GONE) from None
    if original.etag not in {None, there.etag}:  # of a form that was posted once more
        raise RequestRejected("source_changed", failure_sentence("source_changed"))
    name = f"{image_id}.{_EXTENSIONS.get(original.content_type, 'bin')}"
    expires_at = datetime.now(UTC) + VALID_FOR
    url = await tools.originals.presigned_get(original.key, name=name, expires=VALID_FOR)
    kept_for = tools.originals_kept_for
    shown = OriginalView(
        image_id=image_id,
        url=url,
        expires_at=expires_at,
        content_type=original.content_type,
        bytes=original.bytes,
        sha256=original.sha256,
        accepted_at=original.accepted_at,
        kept_until=None if kept_for is None else original.accepted_at + kept_for,
    )
    return answer(shown)
