"""Waiting for what becomes of a job, and `GET /v1/jobs/{id}/events`, which tells it until the end.

One statement a moment asks for everybody who waits in this process, and a request that waits holds
no connection. Whoever it is that changed the job, `updated_at` moved.

Each event is the whole job as it is now, so that one which was missed is made up for by the next.
Its id names that version of the job; a client that comes back with the last one it saw is told only
what is new, and with the last of all 204, upon which an EventSource comes back no more.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import structlog
from fastapi import Header, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from imagefleet.api.http.auth import Keys, Reader
from imagefleet.api.http.limiting import Limiting
from imagefleet.api.http.openapi import Piece, Routes, named, problems
from imagefleet.api.http.requests import Tools, ToolsHere
from imagefleet.errors import FleetError, Unavailable
from imagefleet.jobs.model import JobId, TenantId
from imagefleet.jobs.shapes.jobs import JobView
from imagefleet.runtime import Drain, every
from imagefleet.store.jobs.reports import get_job, watch_jobs

LOOK_EVERY: Final = timedelta(milliseconds=200)
LOOK_WITHIN: Final = timedelta(seconds=20)  # beyond what the store allows one statement
HEARTBEAT: Final = timedelta(seconds=15)  # below what proxies take for a dead connection
LONGEST: Final = timedelta(hours=1)  # then the client comes back, perhaps to another process
RETRY: Final = b"retry: 2000\n\n"  # milliseconds until an EventSource comes back
BEAT: Final = b": heartbeat\n\n"

_STREAM: Final[Piece] = {
    "schema": {"type": "string", "description": "Server-sent events, and comments as heartbeats."},
    # OpenAPI 3.2 says it so; who reads 3.1 passes it over.
    "itemSchema": {
        "type": "object",
        "required": ["id", "event", "data"],
        "properties": {
            "id": {"type": "string", "description": "Comes back as `Last-Event-ID`."},
            "event": {"const": "job"},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": named(JobView),
            },
            "retry": {"type": "integer", "description": "Milliseconds until one comes back."},
        },
    },
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

log = structlog.get_logger()
router = Routes(tags=["jobs"])


class Watcher:
    """Wakes those who wait for a job."""

    def __init__(self, tools: Tools, *, interval: timedelta = LOOK_EVERY) -> None:
        self._tools = tools
        self._interval = interval
        self._waiting: dict[JobId, dict[asyncio.Event, datetime]] = {}
        self.closed = False

    async def changed(self, job_id: JobId, seen: datetime, *, within: timedelta) -> bool:
        """Return once the job is not as it was seen any more, or False after this time.

        True also when nobody can tell, or the process ends: look at it again and find out.
        """
        if self.closed:
            return True
        event = asyncio.Event()
        self._waiting.setdefault(job_id, {})[event] = seen
        try:
            async with asyncio.timeout(within.total_seconds()):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            of_job = self._waiting[job_id]
            del of_job[event]
            if not of_job:
                del self._waiting[job_id]
        return True

    async def over(self, job: JobView, tenant_id: TenantId, *, within: float) -> JobView:
        """The job once it is over, or as it is after so many seconds."""
        clock = asyncio.get_running_loop().time
        ends_at = clock() + within
        while not job.over and clock() < ends_at and not self.closed:
            left = timedelta(seconds=ends_at - clock())
            await self.changed(job.job_id, job.updated_at, within=left)
            job = await read_job(self._tools, job.job_id, tenant_id)
        return job

    async def run(self, drain: Drain) -> None:
        """Look until the end of the process; then wake everybody."""
        try:
            await every(self._interval, self.look, stop=drain, name="watcher", timeout=LOOK_WITHIN)
        finally:
            self.closed = True
            self._wake_all()

    async def look(self) -> None:
        """Ask once for all jobs that somebody waits for."""
        if not self._waiting:
            return
        try:
            async with self._tools.pool.use("watch_jobs", "jobs") as connection:
                moments = await watch_jobs(connection, list(self._waiting))
        except Unavailable as error:
            log.warning("watch.failed", code=error.code)
            self._wake_all()
            return
        for job_id, waiting in self._waiting.items():
            for event, seen in waiting.items():
                if moments.get(job_id) != seen:
                    event.set()

    def _wake_all(self) -> None:
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()


async def read_job(tools: Tools, job_id: JobId, tenant_id: TenantId) -> JobView:
    """The job as it is now; NotFound where it is another tenant's."""
    async with tools.pool.use("get_job", "jobs") as connection:
        return await get_job(connection, job_id, tenant_id, tools.known_kinds.results)


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
            "content": {"text/event-stream": _STREAM},
        },
        204: {"description": "The job is over, and this client has heard the last of it."},
        **problems(404),
    },
)
async def follow_job(
    request: Request,
    job_id: JobId,
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
