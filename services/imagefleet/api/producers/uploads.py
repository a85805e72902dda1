"""Uploads past the API: a form that S3 takes directly, and what was posted becoming an image."""

from dataclasses import replace
from datetime import timedelta
from typing import Final
from uuid import uuid4

from fastapi import Request
from starlette.responses import Response

from imagefleet.api.http.auth import Plain, Submitter
from imagefleet.api.http.bodies import read_json
from imagefleet.api.http.intake import IMAGE_TYPES, Intake
from imagefleet.api.http.limiting import Limiting, refusal
from imagefleet.api.http.openapi import Routes, described, json_body
from imagefleet.api.http.requests import Tools, ToolsHere, accepted, answer
from imagefleet.api.producers.schemas import NewUpload, StoredUpload
from imagefleet.api.producers.submitting import Admission, draft, fingerprint, key_of, known
from imagefleet.errors import RequestRejected
from imagefleet.imaging.lanes import rendering, seen, why_slow
from imagefleet.imaging.limits import judge_bytes
from imagefleet.jobs.images import NewSource, image_target, original_key
from imagefleet.jobs.kinds import ProcessImage
from imagefleet.jobs.model import new_job_id
from imagefleet.jobs.shapes.images import UploadView
from imagefleet.jobs.shapes.shape import AcceptedImage
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.images.uploads import (
    TooManyForms,
    create_upload,
    find_of_upload,
    get_upload,
    submit_upload,
)

VALID_FOR: Final = timedelta(minutes=15)

_NOT_TAKEN: Final = f"Files of this type are not taken; these are: {', '.join(IMAGE_TYPES)}."

router = Routes(route_class=Plain, tags=["images"])


@router.post(
    "/v1/uploads",
    **described("Prepare an upload to S3", UploadView, status=201, takes=json_body(NewUpload)),
)
async def prepare_upload(request: Request, key: Submitter, tools: ToolsHere) -> Response:
    """A form for exactly one file of this type, good for 15 minutes."""
    asked = await read_json(request, NewUpload)
    if asked.content_type not in IMAGE_TYPES:
        raise RequestRejected("unsupported", _NOT_TAKEN)
    most_bytes = asked.max_bytes or tools.limits.max_bytes
    judge_bytes(most_bytes, tools.limits)
    admission: Admission = request.app.state.admission
    limiting: Limiting = request.app.state.limiting
    async with tools.pool.use("admit", "jobs") as connection:
        await admission.admit_form(connection, key)
    image_id, upload_id = new_job_id(), uuid4()
    object_key = original_key(image_id, upload_id)
    form = await tools.originals.presigned_post(
        object_key,
        content_type=asked.content_type,
        min_bytes=1,
        max_bytes=most_bytes,
        expires=VALID_FOR,
    )
    async with tools.pool.use("create_upload", "uploads") as connection:
        try:
            expires_at = await create_upload(
                connection,
                upload_id=upload_id,
                tenant_id=key.tenant_id,
                image_id=image_id,
                key=object_key,
                content_type=asked.content_type,
                max_bytes=most_bytes,
                created_by=str(key.id),
                valid_for=VALID_FOR,
                most_forms=limiting.of(key.tenant_id, "forms"),
                most_bytes=limiting.of(key.tenant_id, "form_bytes"),
            )
        except TooManyForms as error:
            raise refusal(error.limit, VALID_FOR.total_seconds()) from None
    shown = UploadView(
        upload_id=upload_id,
        image_id=image_id,
        url=form.url,
        fields=dict(form.fields),
        max_bytes=most_bytes,
        expires_at=expires_at,
    )
    return answer(shown, 201)


async def accept_upload(request: Request, key: ApiKey, tools: Tools) -> Response:
    """Make an image of what was posted. The upload itself is the key where none is given."""
    asked = await read_json(request, StoredUpload)
    recipe = tools.recipe_of(asked.recipe)
    idempotency_key = key_of(request, asked.idempotency_key) or f"upload:{asked.upload_id}"
    admission: Admission = request.app.state.admission
    async with tools.pool.use("get_upload", "uploads") as connection:
        kind = tools.kinds["process_image"]
        asking = draft(request, kind, by=key, key=idempotency_key, **known(asked))
        gate = await admission.admit_image(connection, key, asking, recipe.makes)
        upload = await get_upload(connection, asked.upload_id, key.tenant_id)
    asking = replace(asking, target=image_target(upload.image_id))
    wanted = asked.model_dump(mode="json", include={"upload_id", "recipe", "reference"})
    focal = None if asked.focal_point is None else asked.focal_point.focal
    digest = fingerprint("POST /v1/images", wanted, focal=focal, terms=asked)
    # One that has its job already can only be answered with that, whatever is in S3 by now.
    if upload.job_id is not None:
        async with tools.pool.use("submit_upload", "jobs") as connection:
            repeat = asking.whole({}, fingerprint=digest)
            submitted = await find_of_upload(connection, repeat)
        return accepted(AcceptedImage.answering(submitted, upload.image_id))
    intake: Intake = request.app.state.intake
    stored, facts = await intake.posted(key, upload.key, upload.content_type, upload.max_bytes)
    posted = NewSource(
        image_id=upload.image_id,
        tenant_id=upload.tenant_id,
        key=upload.key,
        bytes=stored.bytes,
        content_type=upload.content_type,
        etag=stored.etag,
        recipe=recipe.name,
        recipe_hash=recipe.hash,
        reference=asked.reference,
        focal=focal,
    )
    source = seen(posted, facts)
    slow = why_slow(source, recipe.makes)
    submission = rendering(asking, ProcessImage.payload(source), slow, fingerprint=digest)
    gate.let(submission.lane)
    async with tools.pool.use("submit_upload", "jobs") as connection:
        submitted = await submit_upload(connection, submission, source, asked.upload_id)
    tools.ring([(submission, submitted)])
    if submitted.created:
        tools.metrics.uploaded(source.content_type, source.bytes)
    return accepted(AcceptedImage.answering(submitted, upload.image_id))
