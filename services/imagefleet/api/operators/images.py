"""Operators and images: any tenant's, with their past; and orders, on behalf of their tenants.

The orders go the roads of producers' own, a file for one that is to be replaced among them.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Final
from uuid import UUID

from fastapi import Query, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.bodies import read_json
from imagefleet.api.http.intake import image_body
from imagefleet.api.http.openapi import Routes, described, json_body
from imagefleet.api.http.requests import Tools, ToolsHere, answer
from imagefleet.api.operators.schemas import TENANT, Because, Why
from imagefleet.api.producers.arriving import replacement
from imagefleet.api.producers.images import ReferenceQuery, cancelling_for, deletion_of
from imagefleet.api.producers.ranges import IdPrefix, IdRange, PageSize
from imagefleet.api.producers.schemas import NewOriginal, Point, RunAt
from imagefleet.api.producers.submitting import draft, idempotency_header
from imagefleet.imaging.recipes import Fit
from imagefleet.jobs.images import ImageStatus, image_target
from imagefleet.jobs.kinds import Draft, RecipeName
from imagefleet.jobs.model import JobId, Submitted, TenantId
from imagefleet.jobs.shapes.images import ImageView, OverseenImagePage, WholeImage
from imagefleet.jobs.shapes.jobs import OperatorLinks, OrderedJob
from imagefleet.store.database import Connection
from imagefleet.store.fleet.audit import Act
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.images.deleting import delete_image
from imagefleet.store.images.listing import ImageFilter, get_whole_image, oversee_images
from imagefleet.store.images.reprocessing import move_focal, reprocess_image

# An image has the id that its form was given, up to an hour before it was an image.
BORN_BEFORE: Final = timedelta(hours=1)
APART: Final = timedelta(minutes=1)  # clocks of processes
_KIND: Final = "image"


router = Routes(tags=["images"])


class NewRendering(Because):
    """How an image is rendered again; without a recipe, as it was."""

    recipe: RecipeName | None = None


class NewPoint(Because):
    """What of an image is kept from now on where it is cut."""

    focal_point: Point | None
    """Null: none."""


@router.get("/v1/operator/images", **described("List images of any tenant", OverseenImagePage))
async def find_any_images(
    _key: Operator,
    tools: ToolsHere,
    tenant: Annotated[TenantId | None, Query(pattern=TENANT)] = None,
    status: ImageStatus | None = None,
    reference: ReferenceQuery = None,
    id_prefix: IdPrefix = None,
    created_after: Annotated[RunAt | None, Query(alias="createdAfter")] = None,
    created_before: Annotated[RunAt | None, Query(alias="createdBefore")] = None,
    limit: PageSize = 50,
    cursor: UUID | None = None,
) -> Response:
    """Newest first, those of which all of it is true; a page may be short and not the last."""
    chosen = ImageFilter(
        reference=reference,
        status=status,
        created_after=created_after,
        created_before=created_before,
    )
    before = None if cursor is None else JobId(cursor)
    ids = IdRange.asked(id_prefix, None, before)
    if tenant is None:
        since = created_after and created_after - BORN_BEFORE
        ids = IdRange.asked(id_prefix, since, before, created_before and created_before + APART)
    async with tools.operating("oversee_images", "images") as connection:
        page = await oversee_images(
            connection, tenant, chosen, first=ids.first, before=ids.before, limit=limit
        )
    base_url, kept_for = tools.settings.public_base_url, tools.originals_kept_for
    images = [image.at(base_url, kept_for=kept_for) for image in page.images]
    return answer(page.model_copy(update={"images": images}))


@router.get(
    "/v1/operator/images/{image_id}",
    name="show_whole_image",
    **described("Look at everything about an image", WholeImage, 404),
)
async def show_whole(image_id: UUID, _key: Operator, tools: ToolsHere) -> Response:
    """It with its revisions and originals; of a deleted one, the receipt."""
    async with tools.operating("get_whole_image", "images") as connection:
        return answer(await _whole(connection, tools, image_id))


async def _whole(connection: Connection, tools: Tools, image_id: UUID) -> WholeImage:
    image, deletion = await get_whole_image(connection, image_id)
    shown = image.at(tools.settings.public_base_url, deletion, tools.originals_kept_for)
    recipe = tools.recipes.get(image.recipe or "")
    if recipe is None or image.recipe_hash not in {None, recipe.hash}:
        return shown
    cuts = any(variant.fit is Fit.COVER for variant in recipe.variants)
    return shown.model_copy(update={"cuts": cuts})


@router.post(
    "/v1/operator/images/{image_id}/reprocess",
    name="reprocess_any_image",
    **described(
        "Render any tenant's image again",
        OrderedJob,
        404,
        409,
        status=202,
        takes=json_body(NewRendering),
    ),
)
async def reprocess(request: Request, image_id: UUID, key: Operator, tools: ToolsHere) -> Response:
    """Make its variants anew of the newest original; again, while that is open, the same job."""
    asked = await read_json(request, NewRendering)
    recipe = None if asked.recipe is None else tools.recipe_of(asked.recipe).name
    async with tools.acting("reprocess_image", "jobs", request, key) as acting:
        image, _ = await get_whole_image(acting.connection, image_id)
        rendering = await reprocess_image(
            acting.connection,
            _draft(request, tools, key, image, dedup_key=f"operator:{recipe}"),
            image_id,
            recipe=recipe,
            versions=tools.versions,
            makes=tools.makes,
        )
        if rendering[1].created:
            told = {"recipe": recipe or image.recipe, "job_id": rendering[1].job_id}
            await acting.record(_act("reprocess", image, told, asked.reason))
        else:
            acting.found_nothing()
    tools.ring([rendering])
    return _ordered(rendering[1])


@router.put(
    "/v1/operator/images/{image_id}",
    name="replace_any_image",
    **described(
        "Replace any tenant's image",
        OrderedJob,
        404,
        409,
        status=202,
        takes=image_body() | idempotency_header(),
    ),
)
async def give(
    request: Request,
    image_id: UUID,
    key: Operator,
    tools: ToolsHere,
    recipe: RecipeName | None = None,
    reason: Why = None,
) -> Response:
    """Give it another original, as its tenant may; until that is made, the present one is shown."""
    async with tools.operating("get_whole_image", "images") as connection:
        image, _ = await get_whole_image(connection, image_id)
    of_tenant = replace(key, tenant_id=TenantId(image.tenant))
    arrival = await replacement(request, image_id, of_tenant, tools, NewOriginal(recipe=recipe))
    submission = arrival.submission
    async with tools.acting("submit_image", "jobs", request, key) as acting:
        submitted = await arrival.record(acting.connection, submission)
        if submitted.created:
            told = {"job_id": submitted.job_id, "sha256": arrival.source.sha256}
            await acting.record(_act("replace", image, told, reason))
        else:
            acting.found_nothing()
    tools.ring([(submission, submitted)])
    return _ordered(submitted)


@router.patch(
    "/v1/operator/images/{image_id}",
    name="edit_any_image",
    **described(
        "Move the focal point of any tenant's image",
        OrderedJob,
        404,
        409,
        status=202,
        unchanged=WholeImage,
        takes=json_body(NewPoint),
    ),
)
async def edit(request: Request, image_id: UUID, key: Operator, tools: ToolsHere) -> Response:
    """Make anew what is cut, around this point; 200 and the image where nothing would change."""
    asked = await read_json(request, NewPoint)
    focal = None if asked.focal_point is None else asked.focal_point.focal
    async with tools.acting("move_focal", "jobs", request, key) as acting:
        image, _ = await get_whole_image(acting.connection, image_id)
        asking = _draft(request, tools, key, image)
        moved = await move_focal(acting.connection, asking, image_id, focal, makes=tools.makes)
        if isinstance(moved, ImageView):
            acting.found_nothing()
            return answer(await _whole(acting.connection, tools, image_id))
        told = {"focal": focal and [*focal], "job_id": moved[1].job_id}
        await acting.record(_act("move_focal", image, told, asked.reason))
    tools.ring([moved])
    return _ordered(moved[1])


@router.delete(
    "/v1/operator/images/{image_id}",
    name="delete_any_image",
    **described("Delete any tenant's image", OrderedJob, 404, status=202),
)
async def remove(
    request: Request, image_id: UUID, key: Operator, tools: ToolsHere, reason: Why = None
) -> Response:
    """Delete it with all it ever published. This cannot be undone."""
    async with tools.acting("delete_image", "image_tombstones", request, key) as acting:
        image, _ = await get_whole_image(acting.connection, image_id)
        submission = deletion_of(request, tools, image_id, key, TenantId(image.tenant))
        cancelling = cancelling_for(request, tools, submission, key)
        deleting = await delete_image(
            acting.connection, submission, image_id, cancelling=cancelling
        )
        if deleting.submitted:
            told = {"job_id": deleting.answer.job_id}
            await acting.record(_act("delete", image, told, reason))
        else:
            acting.found_nothing()
    tools.ring(deleting.submitted)
    return _ordered(deleting.answer)


def _draft(
    request: Request, tools: Tools, key: ApiKey, image: WholeImage, dedup_key: str | None = None
) -> Draft:
    return draft(
        request,
        tools.kinds["process_image"],
        by=key,
        on_behalf_of=TenantId(image.tenant),
        target=image_target(image.image_id),
        dedup_key=dedup_key and f"{dedup_key}:{image.image_id}",
    )


def _act(action: str, image: WholeImage, told: Mapping[str, object], reason: str | None) -> Act:
    point = image.focal_point
    return Act(
        action=action,
        kind=_KIND,
        name=str(image.image_id),
        tenant_id=TenantId(image.tenant),
        before={
            "status": image.status,
            "revision": image.revision,
            "focal": point and [point.x, point.y],
        },
        after=told,
        reason=reason,
    )


def _ordered(submitted: Submitted) -> Response:
    links = OperatorLinks.from_job(submitted.job_id)
    ordered = OrderedJob(job_id=submitted.job_id, status=submitted.state, links=links)
    return answer(ordered, 202, {"Location": links.self})
