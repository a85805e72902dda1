"""What this worker's attempts learn about the services they need, told to the fleet's breakers.

A service that is well is not told of at all. A failure waits for the next report and its answer:
either the breaker is open by then, and the job is given back, or it was a failure like any other.
However many jobs fail, there is one report in two seconds. Successes are counted here; they are
told along with failures, and where the claim says that the failures of others are being judged.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import structlog

from imagefleet.errors import FleetError
from imagefleet.jobs.model import Claim
from imagefleet.live import Live
from imagefleet.runtime import tell_missed
from imagefleet.settings.values import BreakerNumbers
from imagefleet.store.database import Connection, Pool
from imagefleet.store.fleet.breakers import (
    Calls,
    Judgement,
    report_calls,
    report_probe_failed,
    report_probe_worked,
)
from imagefleet.telemetry.metrics import WorkerMetrics

REPORT_EVERY: Final = 2.0  # seconds
GATHER: Final = 0.1  # before a report: what a service fails, it fails for many at once
SUCCESSES_EVERY: Final = 10.0  # where nothing of ours failed: well within a window

_CODE: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")

log = structlog.get_logger()


@dataclass(slots=True)
class _Tally:
    """One service, since the last report of it."""

    failures: int = 0
    successes: int = 0
    counted_since: float = 0.0
    code: str | None = None
    probe_worked: bool | None = None
    wanted: bool = False
    """Somebody's failures are being judged: our successes matter."""
    waiting: list[asyncio.Future[datetime | None]] = field(default_factory=list)
    told_at: float = float("-inf")

    def is_worth_telling(self, now: float) -> bool:
        if self.waiting or self.probe_worked is not None:
            return True
        return self.wanted and self.successes > 0 and now - self.told_at >= SUCCESSES_EVERY

    def taken(self, service: str, now: float) -> Calls:
        calls = Calls(
            service=service, failures=self.failures, successes=self.successes, code=self.code
        )
        self.failures = self.successes = 0
        self.counted_since = self.told_at = now
        self.code, self.wanted = None, False
        return calls

    def answer(self, due: datetime | None) -> None:
        waiting, self.waiting = self.waiting, []
        for answer in waiting:
            if not answer.done():
                answer.set_result(due)


class BreakerReports:
    """Counts failures and successes by service."""

    def __init__(
        self,
        pool: Pool,
        metrics: WorkerMetrics,
        live: Live,
        configured: Mapping[str, BreakerNumbers],
    ) -> None:
        """Take part in the fleet's breakers, with the limits that a service has at the moment."""
        self._pool = pool
        self._metrics = metrics
        self._live = live
        self._configured = configured
        self._tallies: dict[str, _Tally] = {}
        self._wake = asyncio.Event()
        self._now = asyncio.get_running_loop().time

    async def failed(self, claim: Claim, service: str, code: str) -> datetime | None:
        """Count a failure; when the job is due again, if the breaker gives it back uncharged."""
        tally = self._tallies.setdefault(service, _Tally())
        if service in claim.probes:
            tally.probe_worked = False
        else:
            tally.failures += 1
        tally.code = code if _CODE.fullmatch(code) else None
        answer: asyncio.Future[datetime | None] = asyncio.get_running_loop().create_future()
        tally.waiting.append(answer)
        self._wake.set()
        return await answer

    def worked(self, claim: Claim, services: Iterable[str]) -> None:
        """Take it that an attempt of this claim got from these services what it needed."""
        for service in services:
            tally = self._tallies.setdefault(service, _Tally())
            window = self._live.now.breaker(service, self._configured).window
            if self._now() - tally.counted_since > window.total_seconds():
                tally.successes, tally.counted_since = 0, self._now()
            tally.successes += 1
            tally.wanted |= service in claim.watched
            if service in claim.probes:
                tally.probe_worked = True
            if tally.is_worth_telling(self._now()):
                self._wake.set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["BreakerReports"]:
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
            await asyncio.sleep(GATHER)
            self._wake.clear()
            await self._report()
            await asyncio.sleep(REPORT_EVERY)

    async def _report(self) -> None:
        now = self._now()
        telling = {
            name: tally for name, tally in self._tallies.items() if tally.is_worth_telling(now)
        }
        if not telling:
            return
        try:
            async with self._pool.use("report_breakers") as connection:
                for service, tally in telling.items():
                    await self._tell(connection, service, tally)
        except FleetError as error:
            tell_missed(error, "breakers.unreported", services=sorted(telling))
            for tally in telling.values():
                tally.answer(None)

    async def _tell(self, connection: Connection, service: str, tally: _Tally) -> None:
        limits = self._live.now.breaker(service, self._configured)
        probe_worked, tally.probe_worked = tally.probe_worked, None
        calls = tally.taken(service, self._now())
        closed = await report_probe_worked(connection, service) if probe_worked else None
        if closed is not None:
            log.info("breaker.closed", service=service, last_error=closed.last_error)
        if probe_worked is False:
            judgement = await report_probe_failed(connection, service, calls.code, limits)
        elif tally.waiting or not probe_worked:
            judgement = await report_calls(connection, calls, limits)
        else:
            return
        _log(service, judgement)
        if judgement.listening:
            self._wake.set()  # who waits is answered by the next report, when that is judged
        else:
            tally.answer(judgement.due)


def _log(service: str, judgement: Judgement) -> None:
    """By the worker whose report has changed the breaker, and by no other."""
    held = None if judgement.held_for is None else judgement.held_for.total_seconds()
    told = log.bind(service=service, last_error=judgement.last_error, open_seconds=held)
    if (by := judgement.opened_by) is not None:
        told.warning("breaker.opened", failures=by.failures, successes=by.successes)
    elif judgement.reopened:
        told.warning("breaker.probe_failed")


def service_behind(code: str, services: Iterable[str]) -> str | None:
    """The service that an error blames, by the first word of its code; None: none of these."""
    return next((name for name in services if code == name or code.startswith(f"{name}_")), None)
