"""Operators and originals: a small picture of one, never the file itself.

A worker makes it, in a child as it makes all pictures, and it is passed on through here: nothing of
a stranger's file is left in it, and nobody but an operator has its address.
"""

from typing import Annotated, Final
from uuid import UUID

from fastapi import Query, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.openapi import Piece, Routes, described, problems
from imagefleet.api.http.requests import ToolsHere, answer
from imagefleet.api.operators.schemas import Why
from imagefleet.api.producers.submitting import draft
from imagefleet.imaging.lanes import lane_of_image, why_slow
from imagefleet.jobs.images import ImageFormat, preview_key
from imagefleet.jobs.kinds import PreviewOriginal
from imagefleet.jobs.shapes.jobs import OperatorLinks, OrderedJob
from imagefleet.store.fleet.audit import Act
from imagefleet.store.images.originals import find_source
from imagefleet.store.jobs.submissions import submit_job

LARGEST: Final = 2**20  # bytes; one of 320 by 320 pixels has some twenty thousand
WEBP: Final = ImageFormat.WEBP.mime_type
FIRST: Final = 10  # before what waits: somebody looks at a page meanwhile
_MAKES: Final = frozenset({ImageFormat.WEBP})
_SHOWN: Final[dict[int | str, Piece]] = {
    200: {
        "description": "The picture.",
        "content": {WEBP: {"schema": {"type": "string", "format": "binary"}}},
    }
}

SourceSeq = Annotated[
    int | None,
    Query(alias="sourceSeq", ge=0, lt=2**63, description="Which original; if not given, the last."),
]

router = Routes(tags=["images"])


@router.post(
    "/v1/operator/images/{image_id}/preview",
    **described("Have a preview of an original made", OrderedJob, 404, status=202),
)
async def order_preview(
    request: Request,
    image_id: UUID,
    key: Operator,
    tools: ToolsHere,
    source_seq: SourceSeq = None,
    reason: Why = None,
) -> Response:
    """Submit a job that makes it; again, while that is open, the same one."""
    async with tools.acting("find_source", "image_sources", request, key) as acting:
        source = await find_source(acting.connection, image_id, source_seq)
        wanted = PreviewOriginal(image_id=image_id, source_seq=source.source_seq)
        submission = draft(
            request,
            tools.kinds["preview_original"],
            by=key,
            on_behalf_of=source.tenant_id,
            dedup_key=f"{image_id}:{source.source_seq}",
            priority=FIRST,
        ).whole(wanted.model_dump(mode="json"), lane=lane_of_image(why_slow(source, _MAKES)))
        submitted = await submit_job(acting.connection, submission)
        await acting.record(
            Act(
                action="preview",
                kind="image",
                name=str(image_id),
                tenant_id=source.tenant_id,
                after={"source_seq": source.source_seq, "job_id": submitted.job_id},
                reason=reason,
            )
        )
    tools.ring([(submission, submitted)])
    links = OperatorLinks.from_job(submitted.job_id)
    ordered = OrderedJob(job_id=submitted.job_id, status=submitted.state, links=links)
    return answer(ordered, 202, {"Location": links.self})


@router.get(
    "/v1/operator/images/{image_id}/preview",
    summary="Look at a preview of an original",
    response_class=Response,
    responses=_SHOWN | problems(404),
)
async def show_preview(
    image_id: UUID, _key: Operator, tools: ToolsHere, source_seq: SourceSeq = None
) -> Response:
    """A small picture as WebP; 404 until it was made, and once more when it is a day old."""
    async with tools.operating("find_source", "image_sources") as connection:
        source = await find_source(connection, image_id, source_seq)
    key = preview_key(image_id, source.source_seq)
    there = await tools.originals.head(key)
    picture = await tools.originals.fetch_head(key, most_bytes=LARGEST, expected_etag=there.etag)
    return Response(picture, media_type=WEBP)
