"""Uploads past the API: a form that S3 takes directly, and what was posted becoming an image."""

from dataclasses import replace
from datetime import timedelta
from typing import Final
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Submitter
from imagefleet.api.http.bodies import read_json
from imagefleet.api.http.intake import Intake
from imagefleet.api.http.limiting import Limiting, refusal
from imagefleet.api.http.openapi import IMAGE_TYPES, described, json_body
from imagefleet.api.http.tools import Tools, ToolsHere, accepted, answer, tools_of
from imagefleet.api.producers.schemas import NewUpload, StoredUpload
from imagefleet.api.producers.submitting import Admission, draft, fingerprint, key_of, recipe_of
from imagefleet.errors import InputRejected, NotFound, RequestRejected
from imagefleet.imaging.limits import judge_bytes, judge_density
from imagefleet.imaging.sniff import HEAD_BYTES
from imagefleet.jobs.images import NewSource, image_target, original_key
from imagefleet.jobs.kinds import ProcessImage
from imagefleet.jobs.model import new_job_id
from imagefleet.jobs.shapes.images import UploadView
from imagefleet.jobs.shapes.shape import AcceptedImage
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.images.uploads import (
    TooManyForms,
    Upload,
    create_upload,
    find_of_upload,
    get_upload,
    submit_upload,
)

VALID_FOR: Final = timedelta(minutes=15)

_NOT_TAKEN: Final = f"Files of this type are not taken; these are: {', '.join(IMAGE_TYPES)}."
_NOT_THERE: Final = "Nothing was posted under this upload yet."

router = APIRouter()


@router.post(
    "/v1/uploads",
    **described("Prepare an upload to S3", UploadView, status=201, takes=json_body(NewUpload)),
)
async def prepare_upload(request: Request, key: Submitter, tools: ToolsHere) -> Response:
    """A form for exactly one file of this type, good for 15 minutes."""
    asked = await read_json(request, NewUpload)
    if asked.content_type not in IMAGE_TYPES:
        raise RequestRejected("unsupported", _NOT_TAKEN)
    judge_bytes(asked.max_bytes or 0, tools.limits)
    admission: Admission = request.app.state.admission
    limiting: Limiting = request.app.state.limiting
    async with tools.pool.use("admit", "jobs") as connection:
        await admission.admit_form(connection, key)
    image_id, upload_id = new_job_id(), uuid4()
    form = await tools.originals.presigned_post(
        original_key(image_id, upload_id),
        content_type=asked.content_type,
        min_bytes=1,
        max_bytes=asked.max_bytes or tools.limits.max_bytes,
        expires=VALID_FOR,
    )
    async with tools.pool.use("create_upload", "uploads") as connection:
        try:
            upload = await create_upload(
                connection,
                upload_id=upload_id,
                tenant_id=key.tenant_id,
                image_id=image_id,
                key=original_key(image_id, upload_id),
                content_type=asked.content_type,
                max_bytes=asked.max_bytes or tools.limits.max_bytes,
                created_by=str(key.id),
                valid_for=VALID_FOR,
                most_forms=limiting.of(key.tenant_id, "forms"),
                most_bytes=limiting.of(key.tenant_id, "form_bytes"),
            )
        except TooManyForms as error:
            raise refusal(error.limit, VALID_FOR.total_seconds()) from None
    shown = UploadView(
        upload_id=upload.id,
        image_id=upload.image_id,
        url=form.url,
        fields=dict(form.fields),
        max_bytes=upload.max_bytes,
        expires_at=upload.expires_at,
    )
    return answer(shown, 201)


async def accept_upload(request: Request, key: ApiKey, tools: Tools) -> Response:
    """Make an image of what was posted. The upload itself is the key where none is given."""
    asked = await read_json(request, StoredUpload)
    recipe_of(asked.recipe)
    idempotency_key = key_of(request, asked.idempotency_key) or f"upload:{asked.upload_id}"
    kind = tools.kinds["process_image"]
    admission: Admission = request.app.state.admission
    async with tools.pool.use("get_upload", "uploads") as connection:
        asking = draft(request, kind, by=key, key=idempotency_key)
        await admission.admit(connection, key, asking)
        upload = await get_upload(connection, asked.upload_id, key.tenant_id)
    asking = replace(asking, target=image_target(upload.image_id))
    wanted = {
        "upload_id": str(asked.upload_id),
        "recipe": asked.recipe,
        "reference": asked.reference,
    }
    digest = fingerprint("POST /v1/images", wanted)
    # One that has its job already can only be answered with that, whatever is in S3 by now.
    if upload.job_id is not None:
        async with tools.pool.use("submit_upload", "jobs") as connection:
            submitted = await find_of_upload(connection, asking, digest)
        return accepted(AcceptedImage.answering(submitted, upload.image_id))
    source = await _in_s3(request, key, upload, asked)
    payload = ProcessImage.payload(source.image_id, source, source.recipe)
    submission = asking.whole(payload, fingerprint=digest)
    async with tools.pool.use("submit_upload", "jobs") as connection:
        submitted = await submit_upload(connection, submission, source, asked.upload_id)
    tools.ring([(submission, submitted)])
    if submitted.created:
        tools.metrics.uploaded(source.content_type, source.bytes)
    return accepted(AcceptedImage.answering(submitted, upload.image_id))


async def _in_s3(request: Request, key: ApiKey, upload: Upload, asked: StoredUpload) -> NewSource:
    """What lies there, judged as an upload through the API is: S3 believes what it is told."""
    tools = tools_of(request)
    limiting: Limiting = request.app.state.limiting
    intake: Intake = request.app.state.intake
    # One that is refused may be asked for again and again, so it has an upload's place and bytes.
    async with intake.looking(key):
        try:
            stored = await tools.originals.head(upload.key)
            if stored.bytes == 0:
                raise InputRejected("empty_file", "The file is empty.")
            judge_bytes(stored.bytes, replace(tools.limits, max_bytes=upload.max_bytes))
            head = await tools.originals.fetch_head(
                upload.key, most_bytes=HEAD_BYTES, expected_etag=stored.etag
            )
        except NotFound:
            raise RequestRejected("upload_incomplete", _NOT_THERE) from None
        limiting.sent(key, len(head))
        facts = await intake.judged(key, head, upload.content_type)
    judge_density(facts, stored.bytes)
    return NewSource(
        image_id=upload.image_id,
        tenant_id=upload.tenant_id,
        key=upload.key,
        bytes=stored.bytes,
        content_type=upload.content_type,
        etag=stored.etag,
        width=facts.width,
        height=facts.height,
        recipe=asked.recipe,
        reference=asked.reference,
    )
