"""What this worker's attempts learn about the services they need, told to the fleet's breakers.

A failure waits for the next report, and with its answer: either the breaker is open now, and the
job is given back until its retry time, or it was a failure like any other. However many jobs fail,
there is one report a second. Success is only reported where it changes something: after failures,
and by the probe of a half-open breaker.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final

import structlog

from imagefleet.errors import FleetError, Unavailable
from imagefleet.jobs.model import Claim
from imagefleet.store.breakers import open_until, report_failures, report_success
from imagefleet.store.database import Pool, acquire
from imagefleet.telemetry.metrics import WorkerMetrics

REPORT_EVERY: Final = 1.0  # seconds

log = structlog.get_logger()


class Services:
    """Counts failures and successes by service."""

    def __init__(self, pool: Pool, metrics: WorkerMetrics, services: Iterable[str]) -> None:
        """Take part in the breakers of these services."""
        self._pool = pool
        self._metrics = metrics
        # What other workers counted before this one started counts against the service too.
        self._suspects = set(services)
        self._failures: Counter[str] = Counter()
        self._waiting: dict[str, list[asyncio.Future[datetime | None]]] = defaultdict(list)
        self._successes: dict[str, bool] = {}
        self._wake = asyncio.Event()

    async def failed(self, service: str) -> datetime | None:
        """Count a failure; until when the service's jobs are held back, if they are by now."""
        answer: asyncio.Future[datetime | None] = asyncio.get_running_loop().create_future()
        self._failures[service] += 1
        self._waiting[service].append(answer)
        self._wake.set()
        return await answer

    def worked(self, claim: Claim, services: Iterable[str]) -> None:
        """Take it that an attempt of this claim got from these services what it needed."""
        for service in services:
            probe = service in claim.probes
            if probe or service in self._suspects:
                self._suspects.discard(service)
                self._successes[service] = self._successes.get(service, False) or probe
                self._wake.set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Services"]:
        """Report until the end of the context."""
        async with asyncio.TaskGroup() as group:
            reports = group.create_task(self._report_on(), name="breaker-reports")
            try:
                yield self
            finally:
                reports.cancel()

    async def _report_on(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._report()
            await asyncio.sleep(REPORT_EVERY)

    async def _report(self) -> None:
        failures, self._failures = self._failures, Counter()
        waiting, self._waiting = self._waiting, defaultdict(list)
        successes, self._successes = self._successes, {}
        until: dict[str, datetime | None] = {}
        try:
            with self._metrics.query("report_breakers"):
                async with acquire(self._pool) as connection:
                    for service, probe in successes.items():
                        await report_success(connection, service, probe=probe)
                    for service, count in failures.items():
                        await report_failures(connection, service, count)
                        until[service] = await open_until(connection, service)
        except FleetError as error:
            log.warning("breakers.unreported", code=error.code, services=sorted(failures))
        self._suspects |= failures.keys()
        for service, answers in waiting.items():
            for answer in answers:
                if not answer.done():
                    answer.set_result(until.get(service))


def service_behind(error: BaseException, services: Iterable[str]) -> str | None:
    """The service that this error blames, by the first word of its code; None: none of these."""
    if not isinstance(error, Unavailable):
        return None
    return next(
        (one for one in services if error.code == one or error.code.startswith(f"{one}_")), None
    )
