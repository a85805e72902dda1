"""Images: uploaded, replaced, looked at, deleted.

The original is stored before anything is recorded, and deleted long after.
"""

from dataclasses import replace
from typing import Annotated, Final
from uuid import UUID, uuid4

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Reader, Submitter
from imagefleet.api.http.intake import Intake, image_body, media_type
from imagefleet.api.http.openapi import described
from imagefleet.api.http.requests import Tools, ToolsHere, accepted, answer
from imagefleet.api.producers.jobs import CURSOR, MOST_ON_A_PAGE
from imagefleet.api.producers.ranges import IdPrefix, range_alone
from imagefleet.api.producers.schemas import (
    FOCAL,
    NO_CONTROLS,
    StoredUpload,
    focal_of,
)
from imagefleet.api.producers.submitting import (
    Admission,
    Admitted,
    draft,
    fingerprint,
    idempotency_header,
    key_of,
)
from imagefleet.api.producers.uploads import accept_upload
from imagefleet.errors import RequestRejected
from imagefleet.jobs.images import NewSource, image_target, original_key
from imagefleet.jobs.kinds import CancelJob, DeleteImage, Draft, ProcessImage, RecipeName
from imagefleet.jobs.model import CancelCode, JobId, Submission, new_job_id
from imagefleet.jobs.shapes.images import ImagePage, ImageView
from imagefleet.jobs.shapes.pictures import Addresses, Layout, Loading
from imagefleet.jobs.shapes.shape import AcceptedImage
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.images.deleting import delete_image, get_deletion
from imagefleet.store.images.images import (
    IMAGE_DELETED,
    find_named_images,
    get_image,
    list_images,
    submit_image,
)
from imagefleet.store.jobs.admissions import is_standing
from imagefleet.store.jobs.submissions import find_standing

DEFAULT: Final = "default"
DELETED: Final = "deleted"

_IN_THE_BODY: Final = "With JSON, recipe, reference and focal point belong into the body."

RecipeQuery = Annotated[RecipeName | None, Query(description="Which variants are made.")]
ReferenceQuery = Annotated[
    str | None, Query(pattern=NO_CONTROLS, description="A name of yours, to find the image by.")
]
FocalQuery = Annotated[
    str | None,
    Query(pattern=FOCAL, description="What is kept where it is cut: shares of width and height."),
]

SHORT_TEXT: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{0,500}$"
SIZES: Final = (
    "Of `html`: how wide the page shows it; as wide as it is, or the window, if not given."
)
LOADING: Final = "Of `html`: `eager` for what is seen first on a page."
ADDRESSES: Final = "Of `html`: `immutable` for pages that are made anew with every revision."

router = APIRouter(tags=["images"])


@router.post(
    "/v1/images",
    **described(
        "Upload an image",
        AcceptedImage,
        404,
        409,
        status=202,
        takes=image_body(or_json=StoredUpload) | idempotency_header(),
    ),
)
async def upload_image(
    request: Request,
    key: Submitter,
    tools: ToolsHere,
    recipe: RecipeQuery = None,
    reference: ReferenceQuery = None,
    focal: FocalQuery = None,
) -> Response:
    """Store an original and record the job that makes its variants."""
    if media_type(request) == "application/json":
        if recipe is not None or reference is not None or focal is not None:
            raise RequestRejected("invalid_request", _IN_THE_BODY)
        return await accept_upload(request, key, tools)
    chosen = tools.recipe_of(recipe or DEFAULT)
    image_id = new_job_id()
    asking = draft_of_image(request, tools, image_id, key)
    repeats = await _admit(request, tools, key, asking)
    stored = await _store(request, image_id, key, focal, keep=not repeats)
    source = replace(stored, recipe=chosen.name, recipe_hash=chosen.hash, reference=reference)
    asked = {"sha256": source.sha256, "recipe": chosen.name, "reference": reference}
    digest = fingerprint("POST /v1/images", asked, focal=source.focal)
    return await _submit(tools, asking, source, digest, repeats=repeats, is_first=True)


@router.put(
    "/v1/images/{image_id}",
    **described(
        "Replace an image",
        AcceptedImage,
        404,
        409,
        status=202,
        takes=image_body() | idempotency_header(),
    ),
)
async def replace_image(
    request: Request,
    image_id: UUID,
    key: Submitter,
    tools: ToolsHere,
    recipe: RecipeQuery = None,
    focal: FocalQuery = None,
) -> Response:
    """Give an image another original; until that is made, the present one is shown."""
    chosen = None if recipe is None else tools.recipe_of(recipe).name
    asking = draft_of_image(request, tools, image_id, key)
    present = await _find_replaceable(tools, image_id, asking)
    repeats = await _admit(request, tools, key, asking)
    stored = await _store(request, image_id, key, focal, keep=not repeats)
    name = chosen or present.recipe or DEFAULT
    # Of a recipe that is gone, what it was made by until now.
    pinned = tools.versions.get(name, present.recipe_hash)
    source = replace(stored, recipe=name, recipe_hash=pinned)
    asked = {"image_id": str(image_id), "sha256": source.sha256, "recipe": chosen}
    digest = fingerprint("PUT /v1/images/{id}", asked, focal=source.focal)
    return await _submit(tools, asking, source, digest, repeats=repeats, is_first=False)


@router.get("/v1/images", **described("List images", ImagePage))
async def find_images(
    request: Request,
    key: Reader,
    tools: ToolsHere,
    reference: ReferenceQuery = None,
    id_prefix: IdPrefix = None,
    limit: Annotated[int, Query(ge=1, le=MOST_ON_A_PAGE)] = 50,
    cursor: Annotated[UUID | None, Query(description=CURSOR)] = None,
) -> Response:
    """Newest first; with `reference`, those that bear it, or with `idPrefix` what is so named."""
    base_url = tools.settings.public_base_url
    async with tools.pool.use("list_images", "images") as connection:
        if id_prefix is not None:
            ids = range_alone(request, id_prefix)
            images = await find_named_images(connection, key.tenant_id, *ids, limit=limit)
        else:
            images = await list_images(
                connection, key.tenant_id, reference=reference, before=cursor, limit=limit + 1
            )
    page = images[:limit]
    more = page[-1].image_id if len(images) > limit else None
    return answer(ImagePage(images=[image.at(base_url) for image in page], next_cursor=more))


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
        if image.status == DELETED:
            gone = await get_deletion(connection, image_id, key.tenant_id)
    shown = image.at(tools.settings.public_base_url, gone)
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
    payload = DeleteImage(image_id=image_id).model_dump(mode="json")
    kind = tools.kinds["delete_image"]
    submission = draft(
        request,
        kind,
        by=key,
        key=key_of(request),
        target=image_target(image_id),
        dedup_key=str(image_id),
    ).whole(payload, fingerprint=fingerprint("DELETE /v1/images/{id}", payload))
    admission: Admission = request.app.state.admission
    async with tools.pool.use("delete_image", "image_tombstones") as connection:
        if await admission.admit_deletion(connection, key, submission) is Admitted.STANDS:
            standing = await find_standing(connection, submission)
            return accepted(AcceptedImage.answering(standing, image_id))
        deleting = await delete_image(
            connection,
            submission,
            image_id,
            cancelling=lambda job_id: _cancelling(request, tools, submission, key, job_id),
        )
    tools.ring(deleting.submitted)
    return accepted(AcceptedImage.answering(deleting.answer, image_id))


def _cancelling(
    request: Request, tools: Tools, deletion: Submission, key: ApiKey, job_id: JobId
) -> Submission:
    """What tells the job of a deleted image to end, wherever it runs."""
    order = CancelJob(job_id=job_id, code=CancelCode.IMAGE_DELETED)
    return draft(
        request,
        tools.kinds["cancel_job"],
        by=key,
        correlation_id=deletion.correlation_id,
        dedup_key=str(job_id),
        parent_job_id=deletion.job_id,
    ).whole(order.model_dump(mode="json"))


async def _find_replaceable(tools: Tools, image_id: UUID, asking: Draft) -> ImageView:
    """The image to be replaced; one that was deleted only answers repeats."""
    async with tools.pool.use("get_image", "images") as connection:
        image = await get_image(connection, image_id, asking.tenant_id)
        if image.status == DELETED and not await is_standing(connection, asking):
            raise RequestRejected("image_deleted", IMAGE_DELETED)
    return image


def draft_of_image(
    request: Request, tools: Tools, image_id: UUID, key: ApiKey, in_body: str | None = None
) -> Draft:
    """What its rendering is asked by; the key is that of the header, or of the body."""
    kind, target = tools.kinds["process_image"], image_target(image_id)
    return draft(request, kind, by=key, key=key_of(request, in_body), target=target)


async def _admit(request: Request, tools: Tools, key: ApiKey, asking: Draft) -> bool:
    """Before the body is read: nobody should send 50 MB to be told that we take none.

    Whether its key stands for something: then the body is compared with that, and not stored.
    """
    admission: Admission = request.app.state.admission
    async with tools.pool.use("admit", "jobs") as connection:
        return await admission.admit_upload(connection, key, asking)


async def _store(
    request: Request, image_id: UUID, key: ApiKey, focal: str | None, *, keep: bool
) -> NewSource:
    intake: Intake = request.app.state.intake
    object_key = original_key(image_id, uuid4())
    arrived = await intake.store(request, key, object_key if keep else None)
    return NewSource(
        image_id=image_id,
        tenant_id=key.tenant_id,
        key=object_key,
        bytes=arrived.stored.bytes,
        content_type=arrived.facts.mime_type,
        etag=arrived.stored.etag,
        sha256=arrived.stored.sha256,
        width=arrived.facts.width,
        height=arrived.facts.height,
        focal=None if focal is None else focal_of(focal),
    )


async def _submit(
    tools: Tools, asking: Draft, source: NewSource, digest: str, *, repeats: bool, is_first: bool
) -> Response:
    """Record it, or find what it repeats.

    Of a request that is repeated while the first is under way, what was stored just now is left to
    the sweeper, like any doubt.
    """
    async with tools.pool.use("submit_image", "jobs") as connection:
        if repeats:
            standing = await find_standing(connection, asking.whole({}, fingerprint=digest))
            return accepted(AcceptedImage.answering(standing, source.image_id))
        payload = ProcessImage.payload(source)
        submission = asking.whole(payload, fingerprint=digest)
        submitted = await submit_image(connection, submission, source, is_first=is_first)
    tools.ring([(submission, submitted)])
    return accepted(AcceptedImage.answering(submitted, source.image_id))
