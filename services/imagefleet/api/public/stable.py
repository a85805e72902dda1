"""Stable addresses: a redirect to where the current revision of a variant lies.

The only routes without a key, as browsers and the edge ask for them. The edge keeps an answer for
up to a day, and is told by an invalidation when the pointer moves; what it stored a moment too late
nobody would tell it about. Hence the deadline: no answer leaves later than two seconds after its
request, and the flusher waits longer than that.
"""

import asyncio
import re
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic
from typing import Final
from uuid import UUID

from fastapi import Request
from starlette.responses import Response

from imagefleet.api.http.lookups import Lookups
from imagefleet.api.http.openapi import Piece, Routes, problems
from imagefleet.api.http.requests import Tools, ToolsHere
from imagefleet.errors import NotFound, Unavailable
from imagefleet.jobs.images import REDIRECT_MAX_AGE, ImageFormat, cache_tag, stable_path
from imagefleet.store.images.images import Address, find_current

CONNECTION_WITHIN: Final = 1.0  # seconds; with the next line the two that an answer may take
READ_WITHIN: Final = 1.0
ANSWER_WITHIN: Final = CONNECTION_WITHIN + READ_WITHIN
CACHE_CONTROL: Final = f"public, max-age={REDIRECT_MAX_AGE.seconds}, s-maxage=86400"
# One header for both origins, and S3 has none but those of metadata; the other is what CDNs know.
TAG_HEADERS: Final = ("x-amz-meta-cache-tag", "cache-tag")

# An image that is published is found this much later by who asked just before.
ABSENT_FOR: Final = timedelta(seconds=0.5)

_FORMATS: Final = {each.extension: each for each in ImageFormat if each is not ImageFormat.GIF}
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOO_LATE: Final = "This was looked up too long ago to be told."
_PATH: Final = "/i/{image_id}/current/{variant}.{ext}"
_TOLD: Final = ("Location", "Cache-Control", "Access-Control-Allow-Origin", TAG_HEADERS[0])
_FOUND: Final[dict[int | str, Piece]] = {
    302: {
        "description": "It is there, for now.",
        "headers": {name: {"schema": {"type": "string"}} for name in _TOLD},
    }
}
_PROBLEMS: Final[dict[int | str, Piece]] = {
    status: told for status, told in problems(404).items() if status not in {401, 403, 429}
}


router = Routes(tags=["addresses"])


@router.head(_PATH, include_in_schema=False)
@router.get(
    _PATH,
    status_code=302,
    response_class=Response,
    summary="Go to the current revision of a variant",
    responses=_FOUND | _PROBLEMS,
)
async def show_current(
    request: Request, image_id: str, variant: str, ext: str, tools: ToolsHere
) -> Response:
    """Needs no key. What is not there yet, or no more, is not found, and not to be kept."""
    wanted = _canonical(request, image_id, variant, ext)
    if wanted is None:
        raise NotFound("image")
    addresses: Addresses = request.app.state.addresses
    key = await addresses.find((wanted, variant, _FORMATS[ext]))
    if key is None:
        raise NotFound("image")
    headers = {
        "Location": f"{tools.settings.public_base_url}/{key}",
        "Cache-Control": CACHE_CONTROL,
        "Access-Control-Allow-Origin": "*",  # as where it leads: pages may read pixels
        **dict.fromkeys(TAG_HEADERS, cache_tag(wanted)),
    }
    return Response(status_code=302, headers=headers)


class Addresses:
    """Where variants are, for all who ask at the same time."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._lookups: Lookups[Address, str] = Lookups(self._look_up, absent_for=ABSENT_FOR)

    async def find(self, address: Address) -> str | None:
        """The key of the current revision, read after this was called; or None."""
        begun = monotonic()
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                key = await self._lookups.find(address)
        except TimeoutError:
            raise Unavailable("too_late", _TOO_LATE) from None
        # A process that stood still was answered in time, and does not know how long ago.
        if monotonic() - begun > ANSWER_WITHIN:
            raise Unavailable("too_late", _TOO_LATE)
        return key

    async def _look_up(self, addresses: Sequence[Address]) -> dict[Address, str]:
        async with self._tools.pool.use(
            "find_current", "images", within=CONNECTION_WITHIN
        ) as connection:
            return await find_current(connection, addresses, within=READ_WITHIN)


def _canonical(request: Request, image_id: str, variant: str, ext: str) -> UUID | None:
    """The image, if this is the one way to write its address.

    Another way, in capitals or with escapes, would be kept under an address of its own, which no
    invalidation names.
    """
    try:
        wanted = UUID(image_id)
    except ValueError:
        return None
    if ext not in _FORMATS or _NAME.fullmatch(variant) is None:
        return None
    written: bytes = request.scope["raw_path"]
    return wanted if written == f"/{stable_path(wanted, variant, ext)}".encode() else None
