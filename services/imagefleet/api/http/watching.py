"""Waiting for jobs to change: one statement a moment for everybody who waits in this process.

A request that waits holds no connection. Whoever it is that changed the job, `updated_at` moved.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Final

import structlog

from imagefleet.api.http.tools import Tools
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import JobId
from imagefleet.runtime import Drain, every
from imagefleet.store.jobs.reports import watch_jobs

LOOK_EVERY: Final = timedelta(milliseconds=200)
LOOK_WITHIN: Final = timedelta(seconds=20)  # beyond what the store allows one statement

log = structlog.get_logger()


class Watcher:
    """Wakes those who wait for a job."""

    def __init__(self, tools: Tools, *, interval: timedelta = LOOK_EVERY) -> None:
        """Begin with nobody."""
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
