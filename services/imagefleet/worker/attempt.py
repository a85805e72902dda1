"""One attempt at one job: do its work, decide what came of it, settle, and let the message go.

Everything a job can do to its worker ends here as an outcome. `work` never raises; what an error
means for the job is said once, in `outcome_of`.
"""

import asyncio
import traceback
from datetime import timedelta
from enum import StrEnum
from typing import Final, assert_never

import structlog

from imagefleet.errors import (
    ClaimLost,
    FleetError,
    InputRejected,
    NotFound,
    RequestRejected,
    Unavailable,
)
from imagefleet.jobs.kinds import validate_payload
from imagefleet.jobs.lifecycle import (
    Completed,
    Failed,
    Outcome,
    Released,
    Retry,
    failure_sentence,
)
from imagefleet.jobs.model import Claim, JsonObject
from imagefleet.store.database import acquire
from imagefleet.store.leases import Hold, report_progress
from imagefleet.store.settlements import Receipt, Settled, Settlement
from imagefleet.telemetry.logs import bind_job
from imagefleet.worker.handling import Handler, JobContext, Tools
from imagefleet.worker.renderer import ChildCancelled, ChildCrashed, ChildDeadline
from imagefleet.worker.settler import Settler

RENEWAL_MARGIN: Final = timedelta(minutes=1)  # for settling, after the type's own timeout
LONGEST_EXCERPT: Final = 4000  # characters of a traceback that are kept with the attempt

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
        self._handler = handler
        self._tools = tools
        self._settler = settler
        self._timeout = handler.kind.timeout_in(claim.lane)
        self._scope: asyncio.Timeout | None = None
        self._stopping = asyncio.Event()
        self.stopped: Stop | None = None
        self.hold = Hold(
            job_id=claim.job_id,
            claim_no=claim.claim_no,
            renewable_for=self._timeout + RENEWAL_MARGIN,
        )

    def stop(self, why: Stop) -> None:
        """End the work now; the first reason counts. Settling is not interrupted by it."""
        if self.stopped is None:
            self.stopped = why
            self._stopping.set()
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> Receipt | None:
        """Work and settle; the receipt, or None when the claim was lost and nothing was written."""
        with bind_job(self.claim):
            outcome = await self.work()
            if outcome is None:
                log.warning("job.lost", stopped=self.stopped)
                return None
            receipt = await self._settler.settle(
                Settlement(
                    job_id=self.claim.job_id,
                    claim_no=self.claim.claim_no,
                    outcome=outcome,
                    policy=self._handler.kind.retry,
                    pause_target_on_failure=self._handler.kind.pause_target_on_failure,
                )
            )
            if receipt.settled is Settled.LOST:
                log.warning("job.lost", outcome=type(outcome).__name__)
            return receipt

    async def work(self) -> Outcome | None:
        """Run the handler to an outcome; None when the claim is lost. Never raises."""
        if self.claim.cancel_code is not None:
            return Released(why="flagged")  # which `decide` writes as failed, with the flag's code
        try:
            payload = validate_payload(self._handler.kind, self.claim.payload)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(self._timeout.total_seconds()) as self._scope:
                if self.stopped is not None:
                    return self._outcome_of_stop(self.stopped)
                return await self._handler.run(
                    JobContext(
                        claim=self.claim,
                        payload=payload,
                        deadline=loop.time() + self._timeout.total_seconds(),
                        progress=self._report_progress,
                        tools=self._tools,
                        stopping=self._stopping,
                    )
                )
        except Exception as error:  # noqa: BLE001 - whatever it is, it is an outcome
            if self.stopped is not None and isinstance(error, TimeoutError | ChildCancelled):
                return self._outcome_of_stop(self.stopped)
            return outcome_of(error)
        finally:
            self._scope = None

    async def _report_progress(
        self, done: int, total: int | None = None, cursor: JsonObject | None = None
    ) -> None:
        async with acquire(self._tools.pool) as connection:
            cancelled = await report_progress(
                connection, self.hold, done=done, total=total, cursor=cursor
            )
        if cancelled:
            self.stop(Stop.CANCELLED)
            await asyncio.sleep(0)  # the stop arrives at this await

    @staticmethod
    def _outcome_of_stop(why: Stop) -> Outcome | None:
        match why:
            case Stop.LOST:
                return None
            case Stop.CANCELLED | Stop.DRAIN | Stop.BEAT_LOST:
                return Released(why=why.value)
            case _:
                assert_never(why)


def outcome_of(error: Exception) -> Outcome | None:
    """What an error means for its job. Public sentences are fixed; details are for operators."""
    match error:
        case ClaimLost():
            return None
        case InputRejected() | RequestRejected() if not isinstance(error, NotFound):
            return Failed(code=error.code, message=error.public_message, detail=error.detail)
        case NotFound():
            return Failed(
                code="not_found", message=failure_sentence("not_found"), detail=str(error)
            )
        case ChildCrashed():
            return Retry(
                code="crashed",
                message=failure_sentence("crashed"),
                detail=error.detail,
                crashed=True,
            )
        case ChildDeadline() | TimeoutError():
            return Retry(code="deadline", message=failure_sentence("deadline"), detail=str(error))
        case Unavailable() | FleetError():
            return Retry(
                code=error.code, message=failure_sentence("unavailable"), detail=error.detail
            )
        case _:
            log.error("job.broken", exc_info=error)
            return Retry(
                code="internal_error",
                message=failure_sentence("internal_error"),
                detail=f"{type(error).__name__}: {error}"[:500],
                log_excerpt="".join(traceback.format_exception(error))[-LONGEST_EXCERPT:],
            )


def describe(outcome: Outcome) -> tuple[str, str, str]:
    """An outcome that was written, as its log event, the state it leaves the job in, and why."""
    match outcome:
        case Completed():
            return "job.completed", "completed", outcome.reason.value
        case Retry():
            return "job.retried", "failed_retryable", outcome.code
        case Failed():
            return "job.failed", "failed", outcome.code
        case Released():
            return "job.released", "failed_retryable", outcome.why
        case _:
            assert_never(outcome)
