"""An original on its way in: admitted before it is read, stored by what its head says, submitted.

The API refuses what it can before it has read it: by the query and what Postgres knows before the
first byte, by the header before S3 hears of it.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import TypeAlias
from uuid import UUID, uuid4

from fastapi import Request
from starlette.responses import Response

from imagefleet.api.http.intake import Intake
from imagefleet.api.http.requests import Tools, accepted
from imagefleet.api.producers.admission import Admission, Gate
from imagefleet.api.producers.schemas import focal_of
from imagefleet.api.producers.terms import NewOriginal
from imagefleet.imaging.headers.facts import HeaderFacts
from imagefleet.jobs.images import ImageFormat, NewSource, original_key
from imagefleet.jobs.kinds import Draft, ProcessImage
from imagefleet.jobs.lanes import lane_of_image, rendering, why_slow
from imagefleet.jobs.shapes.shape import AcceptedImage
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.images.images import submit_image
from imagefleet.store.jobs.submissions import find_living

Makes: TypeAlias = Collection[ImageFormat] | None
"""The formats of a version; None of one that is not in force any more."""


async def admit_original(
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


def name_original(
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


def seen(source: NewSource, facts: HeaderFacts) -> NewSource:
    """The same, by what its header says."""
    return replace(
        source,
        content_type=facts.mime_type,
        width=facts.width,
        height=facts.height,
        animated=facts.animated or facts.frames is None,
    )


async def store_original(
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


async def submit_original(
    tools: Tools,
    asking: Draft,
    source: NewSource,
    makes: Makes,
    gate: Gate,
    digest: str,
    *,
    is_first: bool,
) -> Response:
    """Record it, or find what it repeats.

    Of a request that is repeated while the first is under way, what was stored just now is left to
    the sweeper, like any doubt.
    """
    payload, slow = {} if gate.stands else ProcessImage.payload(source), why_slow(source, makes)
    submission = rendering(asking, payload, slow, fingerprint=digest)
    gate.let(submission.lane)
    async with tools.pool.use("submit_image", "jobs") as connection:
        if gate.stands:
            standing = await find_living(connection, submission)
            return accepted(AcceptedImage.answering(standing, source.image_id))
        submitted = await submit_image(connection, submission, source, is_first=is_first)
    tools.ring([(submission, submitted)])
    return accepted(AcceptedImage.answering(submitted, source.image_id))
