"""`GET /v1/jobs/{id}/events`: what becomes of a job, as server-sent events until it is over.

Each event is the whole job as it is now, so that one which was missed is made up for by the next.
Its id names that version of the job; a client that comes back with the last one it saw is told only
what is new, and with the last of all 204, upon which an EventSource comes back no more.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Header, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from imagefleet.api.http.auth import Keys, Reader
from imagefleet.api.http.limiting import Limiting
from imagefleet.api.http.openapi import problems
from imagefleet.api.http.tools import Tools, ToolsHere
from imagefleet.api.http.watching import Watcher
from imagefleet.api.producers.jobs import JobPath, read_job
from imagefleet.errors import FleetError
from imagefleet.jobs.model import TenantId
from imagefleet.jobs.shapes.jobs import JobView

HEARTBEAT: Final = timedelta(seconds=15)  # below what proxies take for a dead connection
LONGEST: Final = timedelta(hours=1)  # then the client comes back, perhaps to another process
RETRY: Final = b"retry: 2000\n\n"  # milliseconds until an EventSource comes back
BEAT: Final = b": heartbeat\n\n"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

router = APIRouter()


class Streams:
    """Who listens to this process."""

    def __init__(
        self,
        tools: Tools,
        keys: Keys,
        watcher: Watcher,
        limiting: Limiting,
        *,
        heartbeat: timedelta = HEARTBEAT,
    ) -> None:
        """Begin with nobody."""
        self._tools = tools
        self._keys = keys
        self._watcher = watcher
        self.limiting = limiting
        self._heartbeat = heartbeat

    async def of(
        self,
        job: JobView,
        tenant_id: TenantId,
        seen: str | None,
        authorization: str | None,
        *,
        address: str | None = None,
    ) -> AsyncIterator[bytes]:
        """Tell what becomes of this job; `seen` is the version that is known already."""
        ends_at = asyncio.get_running_loop().time() + LONGEST.total_seconds()
        try:
            yield RETRY
            while True:
                if version_of(job) != seen:
                    seen = version_of(job)
                    yield event_of(job)
                if job.over or self._is_over(ends_at):
                    return
                if not await self._watcher.changed(
                    job.job_id, job.updated_at, within=self._heartbeat
                ):
                    if await self._keys.find(authorization, address=address) is None:
                        return  # the key was revoked while we spoke
                    yield BEAT
                job = await read_job(self._tools, job.job_id, tenant_id)
        except FleetError:
            return  # the client comes back and is told why

    def _is_over(self, ends_at: float) -> bool:
        return self._watcher.closed or asyncio.get_running_loop().time() > ends_at


class Following(StreamingResponse):
    """The events, counted from before their first byte until the client is gone."""

    def __init__(self, events: AsyncIterator[bytes], counted: AbstractContextManager[None]) -> None:
        super().__init__(
            events,
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},  # proxies would wait for more
        )
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            await super().__call__(scope, receive, send)


def version_of(job: JobView) -> str:
    """A name for how a job is now: the microsecond of its last change."""
    return str((job.updated_at - _EPOCH) // timedelta(microseconds=1))


def event_of(job: JobView) -> bytes:
    """One event; its JSON has no line breaks."""
    return b"id: %s\nevent: job\ndata: %s\n\n" % (version_of(job).encode(), job.encoded())


@router.get(
    "/v1/jobs/{job_id}/events",
    summary="Follow a job",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "An event for every change that was seen, until the job is over.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        204: {"description": "The job is over, and this client has heard the last of it."},
        **problems(404),
    },
)
async def follow_job(
    request: Request,
    job_id: JobPath,
    key: Reader,
    tools: ToolsHere,
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
) -> Response:
    """Server-sent events until the job is completed or failed."""
    job = await read_job(tools, job_id, key.tenant_id)
    if job.over and version_of(job) == last_event_id:
        return Response(status_code=204)
    streams: Streams = request.app.state.streams
    events = streams.of(
        job,
        key.tenant_id,
        last_event_id,
        request.headers.get("authorization"),
        address=None if request.client is None else request.client.host,
    )
    return Following(events, streams.limiting.stream(key))
