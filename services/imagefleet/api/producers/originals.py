"""Originals, read back: by an address of S3 that is good for minutes, never through the API.

The answer is no redirect: a client that follows one with its key, as many do, would be refused by
S3, which takes one way of signing at a time; and who only wants to know what there is, asks too.
"""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from imagefleet.api.http.auth import OriginalsReader
from imagefleet.api.http.openapi import described
from imagefleet.api.http.requests import ToolsHere, answer
from imagefleet.errors import NotFound, RequestRejected
from imagefleet.jobs.images import ImageFormat
from imagefleet.jobs.lifecycle import failure_sentence
from imagefleet.jobs.shapes.images import OriginalView
from imagefleet.store.images.originals import ORIGINAL_GONE, find_shown_original

VALID_FOR: Final = timedelta(minutes=5)

_EXTENSIONS: Final = {each.mime_type: each.extension for each in ImageFormat}

router = APIRouter(tags=["images"])


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
