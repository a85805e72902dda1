"""Images made anew: by another recipe, around another point; the recipes that there are."""

from uuid import UUID

from fastapi import Request
from starlette.responses import Response

from imagefleet.api.http.auth import AnyKey, Submitter
from imagefleet.api.http.bodies import read_json, read_json_if_any
from imagefleet.api.http.openapi import Routes, described, json_body
from imagefleet.api.http.requests import ToolsHere, accepted, answer
from imagefleet.api.producers.schemas import ImageEdit, Reprocessing
from imagefleet.api.producers.submitting import (
    Admission,
    draft_of_image,
    fingerprint,
    idempotency_header,
)
from imagefleet.imaging.recipes import Recipe
from imagefleet.jobs.shapes.images import ImageView
from imagefleet.jobs.shapes.pictures import Layout
from imagefleet.jobs.shapes.rules import RecipeList, RecipeVariant, RecipeView
from imagefleet.jobs.shapes.shape import AcceptedImage
from imagefleet.store.images.images import get_image
from imagefleet.store.images.reprocessing import move_focal
from imagefleet.store.images.reprocessing import reprocess_image as submit_reprocessing

router = Routes(tags=["images"])


@router.post(
    "/v1/images/{image_id}/reprocess",
    **described(
        "Render an image again",
        AcceptedImage,
        404,
        409,
        status=202,
        takes=json_body(Reprocessing, required=False) | idempotency_header(),
    ),
)
async def reprocess_image(
    request: Request,
    image_id: UUID,
    key: Submitter,
    tools: ToolsHere,
) -> Response:
    """Make the variants anew of the newest original; until then the present ones are shown."""
    asked = await read_json_if_any(request, Reprocessing)
    recipe = None if asked.recipe is None else tools.recipe_of(asked.recipe).name
    wanted = {"image_id": str(image_id), "recipe": recipe}
    digest = fingerprint("POST /v1/images/{id}/reprocess", wanted, terms=asked)
    asking = draft_of_image(request, tools, image_id, key, asked, asked.idempotency_key)
    admission: Admission = request.app.state.admission
    async with tools.pool.use("reprocess_image", "jobs") as connection:
        await get_image(connection, image_id, key.tenant_id)
        gate = await admission.admit_image(connection, key, asking)
        async with connection.transaction():
            submission, submitted = await submit_reprocessing(
                connection,
                asking,
                image_id,
                recipe=recipe,
                versions=tools.versions,
                makes=tools.makes,
                fingerprint=digest,
            )
            gate.let(submission.lane)
    tools.ring([(submission, submitted)])
    return accepted(AcceptedImage.answering(submitted, image_id))


@router.patch(
    "/v1/images/{image_id}",
    **described(
        "Move the focal point of an image",
        AcceptedImage,
        404,
        409,
        status=202,
        unchanged=ImageView,
        takes=json_body(ImageEdit) | idempotency_header(),
    ),
)
async def edit_image(
    request: Request, image_id: UUID, key: Submitter, tools: ToolsHere
) -> Response:
    """Make anew what is cut, around this point; 200 and the image where nothing would change."""
    asked = await read_json(request, ImageEdit)
    focal = None if asked.focal_point is None else asked.focal_point.focal
    wanted = {"image_id": str(image_id)}
    digest = fingerprint("PATCH /v1/images/{id}", wanted, focal=focal, terms=asked)
    asking = draft_of_image(request, tools, image_id, key, asked, asked.idempotency_key)
    admission: Admission = request.app.state.admission
    async with tools.pool.use("move_focal", "jobs") as connection:
        gate = await admission.admit_image(connection, key, asking)
        async with connection.transaction():
            moved = await move_focal(
                connection, asking, image_id, focal, makes=tools.makes, fingerprint=digest
            )
            if not isinstance(moved, ImageView):
                gate.let(moved[0].lane)
    if isinstance(moved, ImageView):
        base_url, kept_for = tools.settings.public_base_url, tools.originals_kept_for
        return answer(moved.at(base_url, kept_for=kept_for).on_a(Layout()))
    tools.ring([moved])
    return accepted(AcceptedImage.answering(moved[1], image_id))


@router.get("/v1/recipes", **described("List recipes", RecipeList))
async def list_recipes(_key: AnyKey, tools: ToolsHere) -> Response:
    """What may be named as `recipe`, and which variants it makes, as this API has them now."""
    return answer(RecipeList(recipes=[_shown(recipe) for recipe in tools.recipes.values()]))


def _shown(recipe: Recipe) -> RecipeView:
    variants = [
        RecipeVariant(
            name=variant.name,
            fit=variant.fit,
            width=variant.width,
            height=variant.height,
            formats=list(variant.formats),
            types=[each.mime_type for each in variant.formats],
            files=[f"{variant.name}.{each.extension}" for each in variant.formats],
            quality=variant.quality,
        )
        for variant in recipe.variants
    ]
    return RecipeView(name=recipe.name, hash=recipe.hash, variants=variants)
