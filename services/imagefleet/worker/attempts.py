"""The attempts that run in this process: begun, counted, told of, and stopped when they must be."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import structlog

from imagefleet.errors import Unavailable
from imagefleet.jobs.kinds import JobKind, Payload
from imagefleet.jobs.lifecycle import Completed, Released
from imagefleet.jobs.model import Claim, Fence
from imagefleet.runtime import Parts
from imagefleet.store.settling import Receipt, Settled
from imagefleet.telemetry.logs import bind_job
from imagefleet.telemetry.metrics import WorkerMetrics
from imagefleet.telemetry.tracing import Tracing, extract
from imagefleet.worker.attempt import Attempt, Stop
from imagefleet.worker.deliveries import Deliveries, Delivery
from imagefleet.worker.handling import Handler, Handlers, JobContext, Tools
from imagefleet.worker.settler import Settler
from imagefleet.worker.visibility import Visibility

LATE_AFTER: Final = 60.0  # seconds past its deadline, a handler has ignored being stopped
GIVE_BACK_WITHIN: Final = 3.0  # seconds, when the process is told to stop at once

log = structlog.get_logger()


async def _never_run(_job: JobContext) -> Completed:
    msg = "a job of a type that this worker lacks is only settled"
    raise LookupError(msg)


# Whoever hears of a cancelled job ends it, be it of a type that nobody living knows.
OF_NO_TYPE: Final = Handler(kind=JobKind(name="unknown", payload=Payload), run=_never_run)


class Attempts:
    """The attempts of one worker, by their fence."""

    def __init__(
        self,
        handlers: Handlers,
        tools: Tools,
        settler: Settler,
        deliveries: Deliveries,
        visibility: Visibility,
        tracing: Tracing,
    ) -> None:
        self.running: dict[Fence, Attempt] = {}
        self.tally: Counter[str] = Counter()
        """How attempts ended: `finished` (whatever came of them), `released`, `abandoned`."""
        self._handlers = handlers
        self._tools = tools
        self._settler = settler
        self._deliveries = deliveries
        self._visibility = visibility
        self._tracing = tracing
        self._cut_short: list[Attempt] = []
        self._parts: Parts | None = None

    @property
    def metrics(self) -> WorkerMetrics:
        """Where they are counted."""
        return self._tools.metrics

    def owned_by(self, parts: Parts) -> None:
        """Let these parts own the tasks."""
        self._parts = parts

    def start(self, claim: Claim, delivery: Delivery, free_slot: Callable[[], None]) -> None:
        """Begin an attempt; its slot is free when its outcome is acknowledged."""
        assert self._parts is not None  # noqa: S101 - consumers start after `owned_by`
        handler = self._handlers.get(claim.type, OF_NO_TYPE)
        attempt = Attempt(claim, handler, self._tools, self._settler)
        fence = (claim.job_id, claim.claim_no)
        self.running[fence] = attempt
        self._visibility.keep(fence, delivery)
        self._parts.start(f"job {claim.job_id}", self._run(fence, attempt, delivery, free_slot))

    def stop_all(self, why: Stop) -> None:
        """End all of them early."""
        for attempt in list(self.running.values()):
            attempt.stop(why)

    def late(self) -> str | None:
        """Why this process cannot be trusted with its jobs any more, if it cannot: a vital sign."""
        now = asyncio.get_running_loop().time()
        late = [
            str(attempt.claim.job_id)
            for attempt in self.running.values()
            if attempt.deadline is not None and now > attempt.deadline + LATE_AFTER
        ]
        return f"past their deadline: {', '.join(sorted(late))}" if late else None

    async def give_back(self) -> None:
        """Release what was cancelled in the middle, if the database answers quickly."""
        released = [one.settlement(Released(why="stopped")) for one in self._cut_short]
        try:
            async with asyncio.timeout(GIVE_BACK_WITHIN):
                await asyncio.gather(*(self._settler.settle(one) for one in released))
            self.tally["released"] += len(released)
        except (TimeoutError, Unavailable):
            self.tally["abandoned"] += len(released)
            log.warning("job.abandoned", jobs=len(released))  # the rescuer will find them

    async def _run(
        self, fence: Fence, attempt: Attempt, delivery: Delivery, free_slot: Callable[[], None]
    ) -> None:
        clock, claim = asyncio.get_running_loop().time, attempt.claim
        begun = clock()
        try:
            with (
                bind_job(claim),
                self.metrics.attempt(claim.type, claim.queue_time),
                self._span(claim, delivery),
            ):
                receipt = await attempt.run()
                self._visibility.let_go(fence)
                self._end(attempt, receipt, delivery, clock() - begun)
        except asyncio.CancelledError:
            self._cut_short.append(attempt)
            raise
        except Unavailable as error:
            self.tally["abandoned"] += 1
            log.warning("job.unsettled", job_id=str(claim.job_id), code=error.code)
        except Exception:
            # Nothing was written: the claim is a stray now, and comes back uncharged.
            log.exception("job.unsettled", job_id=str(claim.job_id))
        finally:
            self._visibility.let_go(fence)
            del self.running[fence]
            free_slot()

    def _span(self, claim: Claim, delivery: Delivery) -> AbstractContextManager[object]:
        return self._tracing.consumer(
            f"job {claim.type}",
            {"job.id": str(claim.job_id), "job.claim_no": claim.claim_no},
            parent=extract(claim.traceparent, claim.tracestate),
            message=extract(delivery.message.traceparent, delivery.message.tracestate),
        )

    def _end(
        self, attempt: Attempt, receipt: Receipt | None, delivery: Delivery, duration: float
    ) -> None:
        if receipt is None or receipt.settled is Settled.LOST:
            self.metrics.claim_lost()
            log.warning("job.lost", stopped=attempt.stopped, duration_seconds=round(duration, 3))
            return  # the message is not touched: it speaks for whoever has the job now
        self._deliveries.delete(delivery.queue, delivery.received)
        if receipt.ended is not None:
            self.tally["released" if receipt.ended.outcome == "released" else "finished"] += 1
