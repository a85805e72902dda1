"""Originals on their way in: admitted before they are read, stored, and submitted with their job.

The API refuses what it can before it has read it: by the query and what Postgres knows before the
first byte, by the header before S3 hears of it. The original is stored before anything is recorded.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Final, TypeAlias
from uuid import UUID, uuid4

from fastapi import Query, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Submitter
from imagefleet.api.http.intake import Intake, image_body, media_type
from imagefleet.api.http.openapi import Routes, described
from imagefleet.api.http.requests import Tools, ToolsHere, accepted
from imagefleet.api.producers.schemas import NewImage, NewOriginal, StoredUpload, focal_of
from imagefleet.api.producers.submitting import (
    Admission,
    Gate,
    draft_of_image,
    fingerprint,
    idempotency_header,
)
from imagefleet.api.producers.uploads import accept_upload
from imagefleet.errors import RequestRejected
from imagefleet.imaging.headers.facts import HeaderFacts
from imagefleet.imaging.lanes import lane_of_image, rendering, seen, why_slow
from imagefleet.jobs.images import ImageFormat, ImageStatus, NewSource, original_key
from imagefleet.jobs.kinds import Draft, ProcessImage
from imagefleet.jobs.model import Submission, Submitted, new_job_id
from imagefleet.jobs.shapes.images import ImageView
from imagefleet.jobs.shapes.shape import AcceptedImage
from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.images.images import IMAGE_DELETED, get_image, submit_image
from imagefleet.store.jobs.admissions import is_standing
from imagefleet.store.jobs.submissions import find_living

Makes: TypeAlias = Collection[ImageFormat] | None
"""The formats of a version; None of one that is not in force any more."""

DEFAULT: Final = "default"
_IN_THE_BODY: Final = "With JSON, whatever is said of the image belongs into the body."


router = Routes(tags=["images"])


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
    query: Annotated[NewImage, Query()],
) -> Response:
    """Store an original and record the job that makes its variants."""
    if media_type(request) == "application/json":
        if query.model_fields_set:
            raise RequestRejected("invalid_request", _IN_THE_BODY)
        return await accept_upload(request, key, tools)
    chosen = tools.recipe_of(query.recipe or DEFAULT)
    new = _named(key, new_job_id(), query, chosen.name, chosen.hash)
    asking = draft_of_image(request, tools, new.image_id, key, query)
    gate = await _admit(request, tools, key, asking, chosen.makes)
    stored = await _store(request, key, new, chosen.makes, gate)
    source = replace(stored, reference=query.reference)
    asked = {"sha256": source.sha256, "recipe": chosen.name, "reference": query.reference}
    digest = fingerprint("POST /v1/images", asked, focal=source.focal, terms=query)
    return await _submit(tools, Arrival(asking, source, chosen.makes, gate, digest, is_first=True))


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
    query: Annotated[NewOriginal, Query()],
) -> Response:
    """Give an image another original; until that is made, the present one is shown."""
    return await _submit(tools, await replacement(request, image_id, key, tools, query))


@dataclass(frozen=True, slots=True)
class Arrival:
    """An original that lies in S3, and is not recorded yet."""

    asking: Draft
    source: NewSource
    makes: Makes
    gate: Gate
    digest: str
    is_first: bool

    @property
    def submission(self) -> Submission:
        """The job that renders it."""
        payload = {} if self.gate.stands else ProcessImage.payload(self.source)
        slow = why_slow(self.source, self.makes)
        submission = rendering(self.asking, payload, slow, fingerprint=self.digest)
        self.gate.let(submission.lane)
        return submission

    async def record(self, connection: Connection, submission: Submission) -> Submitted:
        """Record it, or find what it repeats.

        Of a request that is repeated while the first is under way, what was stored just now is left
        to the sweeper, like any doubt.
        """
        if self.gate.stands:
            return await find_living(connection, submission)
        return await submit_image(connection, submission, self.source, is_first=self.is_first)


async def replacement(
    request: Request, image_id: UUID, key: ApiKey, tools: Tools, query: NewOriginal
) -> Arrival:
    """What this request brings for an image of the key's tenant; it is stored by then."""
    chosen = None if query.recipe is None else tools.recipe_of(query.recipe).name
    asking = draft_of_image(request, tools, image_id, key, query)
    present = await _find_replaceable(tools, image_id, asking)
    name = chosen or present.recipe or DEFAULT
    # Of a recipe that is gone, what it was made by until now.
    pinned = tools.versions.get(name, present.recipe_hash)
    makes = tools.makes.get(pinned or "")
    new = _named(key, image_id, query, name, pinned)
    gate = await _admit(request, tools, key, asking, makes)
    source = await _store(request, key, new, makes, gate)
    asked = {"image_id": str(image_id), "sha256": source.sha256, "recipe": chosen}
    digest = fingerprint("PUT /v1/images/{id}", asked, focal=source.focal, terms=query)
    return Arrival(asking, source, makes, gate, digest, is_first=False)


async def _find_replaceable(tools: Tools, image_id: UUID, asking: Draft) -> ImageView:
    """The image to be replaced; one that was deleted only answers repeats."""
    async with tools.pool.use("get_image", "images") as connection:
        image = await get_image(connection, image_id, asking.tenant_id)
        own = replace(asking, dedup_key=None)
        if image.status is ImageStatus.DELETED and not await is_standing(connection, own):
            raise RequestRejected("image_deleted", IMAGE_DELETED)
    return image


async def _admit(
    request: Request,
    tools: Tools,
    key: ApiKey,
    asking: Draft,
    makes: Makes,
) -> Gate:
    """Before the body is read: nobody should send 50 MB to be told that we take none."""
    admission: Admission = request.app.state.admission
    async with tools.pool.use("admit", "jobs") as connection:
        return await admission.admit_image(connection, key, asking, makes or ())


def _named(
    key: ApiKey, image_id: UUID, query: NewOriginal, recipe: str, recipe_hash: str | None
) -> NewSource:
    """The original that is to come, of which nobody knows yet what it is."""
    return NewSource(
        image_id=image_id,
        tenant_id=key.tenant_id,
        key=original_key(image_id, uuid4()),
        bytes=0,
        content_type="",
        recipe=recipe,
        recipe_hash=recipe_hash,
        focal=None if query.focal is None else focal_of(query.focal),
    )


async def _store(
    request: Request,
    by: ApiKey,
    new: NewSource,
    makes: Makes,
    gate: Gate,
) -> NewSource:
    """The original as it lies in S3 now; what a job stands for is read, and left nowhere.

    Its header tells its lane, and one whose lane is refused is read no further.
    """

    def admit(facts: HeaderFacts) -> None:
        gate.let(lane_of_image(why_slow(seen(new, facts), makes)))

    intake: Intake = request.app.state.intake
    arrived = await intake.store(request, by, None if gate.stands else new.key, admit)
    stored = arrived.stored
    whole = replace(new, bytes=stored.bytes, etag=stored.etag, sha256=stored.sha256)
    return seen(whole, arrived.facts)


async def _submit(tools: Tools, arrival: Arrival) -> Response:
    submission = arrival.submission
    async with tools.pool.use("submit_image", "jobs") as connection:
        submitted = await arrival.record(connection, submission)
    tools.ring([(submission, submitted)])
    return accepted(AcceptedImage.answering(submitted, arrival.source.image_id))
