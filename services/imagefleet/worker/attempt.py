"""One attempt at one job: do its work, decide what came of it, settle, and let the message go.

Everything a job can do to its worker ends here as an outcome: `work` never raises. What an error
means for its job is said in `outcomes.py`.
"""

import asyncio
from datetime import timedelta
from enum import StrEnum
from typing import Final, assert_never

import structlog

from imagefleet.errors import Unavailable
from imagefleet.jobs.kinds import read_payload
from imagefleet.jobs.lifecycle import Completed, Failed, Outcome, Released
from imagefleet.jobs.model import Claim, JsonObject
from imagefleet.store.jobs.leases import Hold, report_progress
from imagefleet.store.settling import Receipt, Settlement
from imagefleet.worker.handling import Handler, JobContext, Tools
from imagefleet.worker.outcomes import ends_with_a_stop, outcome_of
from imagefleet.worker.services import service_behind
from imagefleet.worker.settler import Settler

RENEWAL_MARGIN: Final = timedelta(minutes=1)  # for settling, after the type's own timeout

log = structlog.get_logger()


class Stop(StrEnum):
    """Why a running attempt is told to end early."""

    CANCELLED = "cancelled"
    LOST = "lost"
    BEAT_LOST = "beat_lost"
    DRAIN = "drain"


class Attempt:
    """A claimed job on its way through this worker."""

    def __init__(self, claim: Claim, handler: Handler, tools: Tools, settler: Settler) -> None:
        self.claim = claim
        self.stopped: Stop | None = None
        self.deadline: float | None = None
        """When the work must have ended, by the event loop's clock; None while there is none."""
        self._handler = handler
        self._tools = tools
        self._settler = settler
        self._timeout = tools.live.now.timeout(handler.kind, claim.lane)
        self._scope: asyncio.Timeout | None = None
        self._stopping = asyncio.Event()
        self.hold = Hold(
            job_id=claim.job_id,
            claim_no=claim.claim_no,
            renewable_for=self._timeout + RENEWAL_MARGIN,
        )

    def stop(self, why: Stop) -> None:
        """End the work now; the first reason counts. Settling is not interrupted by it."""
        if self.stopped is not None:
            return
        self.stopped = why
        self._stopping.set()
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> Receipt | None:
        """Work and settle; the receipt, or None when the claim was lost and nothing was written."""
        outcome = await self.work()
        return None if outcome is None else await self._settler.settle(self.settlement(outcome))

    def settlement(self, outcome: Outcome) -> Settlement:
        """How this claim would end with this outcome."""
        return Settlement(
            job_id=self.claim.job_id,
            claim_no=self.claim.claim_no,
            outcome=outcome,
            policy=self._tools.live.now.retry(self._handler.kind, self._tools.standard_retry),
        )

    async def work(self) -> Outcome | None:
        """Run the handler to an outcome; None when the claim is lost. Never raises."""
        if self.claim.cancel_code is not None:
            return Released(why="flagged")  # which `decide` writes as failed, with the flag's code
        try:
            outcome: Outcome | None = await self._handle()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is an outcome
            outcome = await self._outcome_of(error)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            outcome = await self._outcome_of(error)  # the handler awaited what others cancelled
        finally:
            self._scope = self.deadline = None
        if isinstance(outcome, Completed | Failed):
            self._tools.services.worked(self.claim, self._handler.kind.services)
        return outcome

    async def _handle(self) -> Completed:
        payload = read_payload(self._handler.kind, self.claim.payload)
        deadline = asyncio.get_running_loop().time() + self._timeout.total_seconds()
        async with asyncio.timeout_at(deadline) as self._scope:
            self.deadline = deadline
            if self.stopped is not None:
                raise TimeoutError
            completed: object = await self._handler.run(
                JobContext(
                    claim=self.claim,
                    hold=self.hold,
                    payload=payload,
                    deadline=deadline,
                    progress=self._report_progress,
                    tools=self._tools,
                    stopping=self._stopping,
                )
            )
        if not isinstance(completed, Completed):  # a stranger's handler is typed by nobody
            msg = f"a handler returns Completed, not {type(completed).__name__}"
            raise TypeError(msg)
        return completed

    async def _outcome_of(self, error: BaseException) -> Outcome | None:
        if self.stopped is not None and ends_with_a_stop(error):
            return self._outcome_of_stop(self.stopped)
        if isinstance(error, Unavailable):
            service = service_behind(error.code, self._handler.kind.services)
            if service is not None:
                due = await self._tools.services.failed(self.claim, service, error.code)
                if due is not None:
                    return Released(why=f"breaker:{service}", run_at=due)
        return outcome_of(error)

    @staticmethod
    def _outcome_of_stop(why: Stop) -> Outcome | None:
        match why:
            case Stop.LOST:
                return None
            case Stop.CANCELLED | Stop.DRAIN | Stop.BEAT_LOST:
                return Released(why=why.value)
            case _:
                assert_never(why)

    async def _report_progress(
        self, done: int, total: int | None = None, cursor: JsonObject | None = None
    ) -> None:
        async with self._tools.pool.use("report_progress") as connection:
            cancelled = await report_progress(
                connection, self.hold, done=done, total=total, cursor=cursor
            )
        if cancelled:
            self.stop(Stop.CANCELLED)
            await asyncio.sleep(0)  # the stop arrives at this await
