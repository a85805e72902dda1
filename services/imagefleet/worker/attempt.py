"""One attempt at one job, from a claim in hand to a free slot: `Attempt.run`, read downwards.

Everything a job can do to its worker ends here as an outcome: `work` never raises. What an error
means for its job is said in `outcomes.py`; what an outcome comes to is decided under the row's
lock, and the receipt says so. A worker may die at any line of this: before the commit the job is
rescued, after it only a message is left, which gets a verdict.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

import structlog

from imagefleet.errors import Unavailable
from imagefleet.jobs.kinds import JobKind, Payload, read_payload
from imagefleet.jobs.lifecycle import Completed, Failed, Outcome, Released
from imagefleet.jobs.model import Claim, Fence, JsonObject
from imagefleet.runtime import Parts
from imagefleet.store.jobs.leases import Renewal, report_progress
from imagefleet.store.settling import Receipt, Settled, Settlement
from imagefleet.telemetry.logs import bind_job
from imagefleet.telemetry.tracing import Tracing, extract
from imagefleet.worker.breakers import service_behind
from imagefleet.worker.handling import Equipment, Handler, Handlers, JobContext
from imagefleet.worker.isolation.report import Spent
from imagefleet.worker.messages import Delivery, Messages
from imagefleet.worker.outcomes import ends_with_a_stop, outcome_of
from imagefleet.worker.settler import Settler

RENEWAL_MARGIN: Final = timedelta(minutes=1)  # for settling, after the type's own timeout
LATE_AFTER: Final = 60.0  # seconds past its deadline, a handler has ignored being stopped
GIVE_BACK_WITHIN: Final = 3.0  # seconds, when the process is told to stop at once

log = structlog.get_logger()


class Stop(StrEnum):
    """Why a running attempt is told to end early."""

    CANCELLED = "cancelled"
    LOST = "lost"
    BEAT_LOST = "beat_lost"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every attempt of a worker has around it."""

    equipment: Equipment
    settler: Settler
    messages: Messages
    tracing: Tracing


class Attempt:
    """One claim on its way through this worker: work, settle, let go."""

    def __init__(
        self, claim: Claim, handler: Handler, delivery: Delivery, around: Surroundings
    ) -> None:
        self.claim = claim
        self.delivery = delivery
        self.fence: Fence = (claim.job_id, claim.claim_no)
        self.stopped: Stop | None = None
        self.deadline: float | None = None
        """When the work must have ended, by the event loop's clock; None while there is none."""
        self._handler = handler
        self._around = around
        self._equipment = around.equipment
        self._timeout = self._equipment.live.now.timeout(handler.kind, claim.lane)
        self._begun = asyncio.get_running_loop().time()
        self._spent = Spent()
        self._scope: asyncio.Timeout | None = None
        self._stopping = asyncio.Event()
        self.renewal = Renewal(
            job_id=claim.job_id,
            claim_no=claim.claim_no,
            renewable_for=self._timeout + RENEWAL_MARGIN,
        )

    async def run(self) -> Receipt | None:
        """From a claim in hand to its message let go; the receipt, or None: the claim is lost."""
        with self._told():
            outcome = await self.work()
            receipt = None if outcome is None else await self.settle(outcome)
            self._let_go(receipt)
        return receipt

    async def work(self) -> Outcome | None:
        """Run the handler to the outcome that is asked for; None when the claim is lost."""
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
            self._equipment.breakers.worked(self.claim, self._handler.kind.services)
        return outcome

    async def settle(self, outcome: Outcome) -> Receipt:
        """Have it written, whatever it takes; the receipt says what was, after `decide`."""
        policy = self._equipment.live.now.retry(self._handler.kind, self._equipment.standard_retry)
        settlement = Settlement.of(self.claim, outcome, policy, self._spent.used())
        return await self._around.settler.settle(settlement)

    def _let_go(self, receipt: Receipt | None) -> None:
        """After the commit: the message has said what it had to say."""
        if receipt is None or receipt.settled is Settled.LOST:
            duration = asyncio.get_running_loop().time() - self._begun
            self._equipment.metrics.claim_lost()
            log.warning("job.lost", stopped=self.stopped, duration_seconds=round(duration, 3))
            return  # the message is not touched: it speaks for whoever has the job now
        self._around.messages.delete(self.delivery.queue, self.delivery.received)

    def stop(self, why: Stop) -> None:
        """End the work now; the first reason counts. Settling is not interrupted by it."""
        if self.stopped is not None:
            return
        self.stopped = why
        self._stopping.set()
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Ids in every line of the log, a span, a clock."""
        claim, message = self.claim, self.delivery.message
        with (
            bind_job(claim),
            self._equipment.metrics.attempt(claim.type, claim.queue_time),
            self._around.tracing.consumer(
                f"job {claim.type}",
                {"job.id": str(claim.job_id), "job.claim_no": claim.claim_no},
                parent=extract(claim.traceparent, claim.tracestate),
                message=extract(message.traceparent, message.tracestate),
            ),
        ):
            yield

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
                    renewal=self.renewal,
                    payload=payload,
                    deadline=deadline,
                    progress=self._report_progress,
                    stopping=self._stopping,
                    _equipment=self._equipment,
                    _spent=self._spent,
                )
            )
        if not isinstance(completed, Completed):  # a stranger's handler is typed by nobody
            msg = f"a handler returns Completed, not {type(completed).__name__}"
            raise TypeError(msg)
        return completed

    async def _outcome_of(self, error: BaseException) -> Outcome | None:
        if self.stopped is not None and ends_with_a_stop(error):
            return None if self.stopped is Stop.LOST else Released(why=self.stopped.value)
        if isinstance(error, Unavailable):
            service = service_behind(error.code, self._handler.kind.services)
            if service is not None:
                due = await self._equipment.breakers.failed(self.claim, service, error.code)
                if due is not None:
                    return Released(why=f"breaker:{service}", run_at=due)
        return outcome_of(error)

    async def _report_progress(
        self, done: int, total: int | None = None, cursor: JsonObject | None = None
    ) -> None:
        async with self._equipment.pool.use("report_progress") as connection:
            cancelled = await report_progress(
                connection, self.renewal, done=done, total=total, cursor=cursor
            )
        if cancelled:
            self.stop(Stop.CANCELLED)
            await asyncio.sleep(0)  # the stop arrives at this await


async def _never_run(_job: JobContext) -> Completed:
    msg = "a job of a type that this worker lacks is only settled"
    raise LookupError(msg)


# Whoever hears of a cancelled job ends it, be it of a type that nobody living knows.
OF_NO_TYPE: Final = Handler(kind=JobKind(name="unknown", payload=Payload), run=_never_run)


class RunningAttempts:
    """The attempts of one worker by their fence: what it holds, and what its lease speaks for."""

    def __init__(self, handlers: Handlers, around: Surroundings) -> None:
        self.running: dict[Fence, Attempt] = {}
        self.tally: Counter[str] = Counter()
        """How attempts ended: `finished` (whatever came of them), `released`, `abandoned`."""
        self._handlers = handlers
        self._around = around
        self._cut_short: list[Attempt] = []
        self._parts: Parts | None = None

    def owned_by(self, parts: Parts) -> None:
        """Let these parts own the tasks."""
        self._parts = parts

    def start(self, claim: Claim, delivery: Delivery, free_slot: Callable[[], None]) -> None:
        """Begin an attempt; its slot is free when its outcome is acknowledged."""
        assert self._parts is not None  # noqa: S101 - consumers start after `owned_by`
        handler = self._handlers.get(claim.type, OF_NO_TYPE)
        attempt = Attempt(claim, handler, delivery, self._around)
        self.running[attempt.fence] = attempt
        self._around.settler.expected.add(attempt.fence)
        self._around.messages.keep(delivery)
        self._parts.start(f"job {claim.job_id}", self._run(attempt, free_slot))

    async def _run(self, attempt: Attempt, free_slot: Callable[[], None]) -> None:
        job_id = str(attempt.claim.job_id)
        try:
            receipt = await attempt.run()
            if receipt is not None and receipt.ended is not None:
                outcome = receipt.ended.outcome
                self.tally["released" if outcome == "released" else "finished"] += 1
        except asyncio.CancelledError:
            self._cut_short.append(attempt)
            raise
        except Unavailable as error:
            self.tally["abandoned"] += 1
            log.warning("job.unsettled", job_id=job_id, code=error.code)
        except Exception:
            # Nothing was written: the claim is a stray now, and comes back uncharged.
            log.exception("job.unsettled", job_id=job_id)
        finally:
            self._around.settler.expected.discard(attempt.fence)
            del self.running[attempt.fence]
            free_slot()

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
        cut_short, stopped = self._cut_short, Released(why="stopped")
        try:
            async with asyncio.timeout(GIVE_BACK_WITHIN):
                await asyncio.gather(*(attempt.settle(stopped) for attempt in cut_short))
            self.tally["released"] += len(cut_short)
        except (TimeoutError, Unavailable):
            self.tally["abandoned"] += len(cut_short)
            log.warning("job.abandoned", jobs=len(cut_short))  # the rescuer will find them
