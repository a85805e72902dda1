"""`POST /v1/images/{id}/reprocess`: an image is rendered again, from the original it has."""

from typing import Final
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Submitter
from imagefleet.api.http.intake import read_json_if_any
from imagefleet.api.http.openapi import idempotency_header, json_body, problems
from imagefleet.api.http.tools import ToolsHere, accepted
from imagefleet.api.producers.admission import Admission
from imagefleet.api.producers.idempotency import fingerprint, key_of
from imagefleet.api.producers.schemas import Reprocessing
from imagefleet.api.producers.submitting import draft, recipe_of
from imagefleet.jobs.kinds import image_target
from imagefleet.jobs.shapes.images import AcceptedImage
from imagefleet.store.images.images import get_image
from imagefleet.store.images.reprocessing import reprocess_image as submit_reprocessing

MOST_BYTES: Final = 16_384  # of the JSON

router = APIRouter()


@router.post(
    "/v1/images/{image_id}/reprocess",
    status_code=202,
    summary="Render an image again",
    response_model=AcceptedImage,
    responses=problems(400, 404, 408, 409, 413, 415, 429),
    openapi_extra=json_body(Reprocessing, required=False) | idempotency_header(),
)
async def reprocess_image(
    request: Request,
    image_id: UUID,
    key: Submitter,
    tools: ToolsHere,
) -> Response:
    """Make the variants anew of the newest original; until then the present ones are shown."""
    asked = await read_json_if_any(request, Reprocessing, most_bytes=MOST_BYTES)
    recipe = None if asked.recipe is None else recipe_of(asked.recipe)
    wanted = {"image_id": str(image_id), "recipe": recipe}
    digest = fingerprint("POST /v1/images/{id}/reprocess", wanted)
    asking = draft(
        request,
        tools.kinds["process_image"],
        by=key,
        key=key_of(request, asked.idempotency_key),
        target=image_target(image_id),
    )
    admission: Admission = request.app.state.admission
    async with tools.pool.use("reprocess_image", "jobs") as connection:
        await get_image(connection, image_id, key.tenant_id)
        await admission.admit(connection, asking)
        submission, submitted = await submit_reprocessing(
            connection, asking, image_id, recipe=recipe, fingerprint=digest
        )
    tools.ring([(submission, submitted)])
    return accepted(AcceptedImage.answering(submitted, image_id))
