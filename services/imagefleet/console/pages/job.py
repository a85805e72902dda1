"""One job: why it is where it is, how it came there, and what may be done about it."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from imagefleet.console.showing import Context, Trouble
from imagefleet.console.visits import Visit, VisitHere
from imagefleet.jobs.model import TERMINAL, JobState
from imagefleet.jobs.shapes.explaining import ExplanationView
from imagefleet.jobs.shapes.jobs import (
    Attempts,
    AttemptView,
    OrderedJob,
    RetryNow,
    WholeJob,
)

Kind: TypeAlias = Literal["ok", "warn", "bad", "run", ""]

router = APIRouter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment of a job's life."""

    kind: Kind
    at: datetime | None
    what: str
    attempt: AttemptView | None = None


@router.get("/jobs/{job_id}")
async def show_job(visit: VisitHere, job_id: UUID) -> Response:
    """Everything about it."""

    async def look() -> Context:
        path = f"/v1/operator/jobs/{job_id}"
        job, attempts, explained = await asyncio.gather(
            visit.look(WholeJob, path),
            visit.glance(Attempts, f"{path}/attempts"),
            visit.glance(ExplanationView, f"{path}/explain"),
        )
        return {
            "job": job,
            "over": job.status in TERMINAL,
            "attempts": attempts,
            "explained": explained,
            "steps": [*_steps(job, attempts)],
        }

    return await visit.show("job.html", look)


@router.post("/jobs/{job_id}/cancel")
async def cancel(visit: VisitHere, job_id: UUID) -> Response:
    """End it without a dead letter."""
    return await _end(visit, job_id, "cancel", "It is being cancelled.")


@router.post("/jobs/{job_id}/fail")
async def fail(visit: VisitHere, job_id: UUID) -> Response:
    """End it with a dead letter."""
    return await _end(visit, job_id, "fail", "It is being failed, and leaves a dead letter.")


@router.post("/jobs/{job_id}/retry-now")
async def retry_now(visit: VisitHere, job_id: UUID) -> Response:
    """Make it due."""
    why = {"reason": visit.form.one("reason") or None}
    rung = await visit.order(RetryNow, "POST", f"/v1/operator/jobs/{job_id}/retry-now", why)
    if not rung.rung:
        return visit.done(f"It was not waiting: it is {rung.status.replace('_', ' ')}.")
    return visit.done("It is due now, and was announced.")


async def _end(visit: Visit, job_id: UUID, how: str, sentence: str) -> Response:
    path = f"/v1/operator/jobs/{job_id}/{how}"
    ordered = await visit.order(
        OrderedJob, "POST", path, document={"reason": visit.form.one("reason")}
    )
    return visit.done("It was over already." if ordered.job_id == job_id else sentence)


def _steps(job: WholeJob, attempts: Attempts | Trouble) -> Iterator[Moment]:
    """From submit to the end, as far as it is."""
    yield Moment(kind="ok", at=job.created_at, what=f"Submitted by {job.created_by}")
    if job.run_at > job.created_at and isinstance(attempts, Attempts) and not attempts.attempts:
        yield Moment(kind="", at=job.run_at, what="Due")
    for attempt in attempts.attempts if isinstance(attempts, Attempts) else ():
        what = f"Attempt by claim {attempt.claim_no}: {attempt.outcome.replace('_', ' ')}"
        yield Moment(kind=_kind(attempt), at=attempt.claimed_at, what=what, attempt=attempt)
    if job.cancel_requested_at:
        what = f"Asked to stop: {job.cancel_detail or job.cancel_code}"
        yield Moment(kind="warn", at=job.cancel_requested_at, what=what)
    match job.status:
        case JobState.PROCESSING:
            what = f"Claim {job.claim_no} works on it"
            yield Moment(kind="run", at=job.claimed_at, what=what)
        case JobState.COMPLETED:
            yield Moment(kind="ok", at=job.finished_at, what=f"Completed: {job.result_reason}")
        case JobState.FAILED:
            yield Moment(kind="bad", at=job.finished_at, what=f"Failed: {job.failure_code}")
        case JobState.FAILED_RETRYABLE:
            yield Moment(kind="", at=job.ring_due_at or job.run_at, what="To be tried again")
        case JobState.QUEUED:
            yield Moment(kind="", at=job.ring_due_at or job.run_at, what="Waits for its turn")


def _kind(attempt: AttemptView) -> Kind:
    kinds: dict[str, Kind] = {
        "completed": "ok",
        "failed": "bad",
        "exhausted": "bad",
        "released": "",
    }
    return kinds.get(attempt.outcome, "warn")
