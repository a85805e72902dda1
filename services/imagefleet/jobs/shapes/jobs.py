"""Jobs, as their producers may see them and as operators do; nothing is hidden from the latter."""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final, Self, TypeAlias
from uuid import UUID

from pydantic import BaseModel, ValidationError

from imagefleet.jobs.images import image_of_target
from imagefleet.jobs.model import TERMINAL, JobId, JobState, JsonObject
from imagefleet.jobs.shapes.shape import JobLinks, Row, Seconds, Shape


class Failure(Shape):
    """Why a job failed, or why it has to be tried again."""

    code: str
    message: str


class Progress(Shape):
    """How far a job is, in steps of its own kind."""

    done: int
    total: int | None = None


Results: TypeAlias = Mapping[str, type[BaseModel]]
"""By type, what producers may read of a result."""

SECRET: Final[Results] = MappingProxyType({})


class JobResult(Shape, extra="allow"):
    """What a completed job came to: why it is over, and what its type tells beside that."""

    reason: str


class JobView(Shape):
    """A job, as its producer may see it."""

    job_id: JobId
    job_type: str
    status: JobState
    image_id: UUID | None = None
    progress: Progress | None = None
    failure: Failure | None = None
    result: JobResult | None = None
    """Not in lists; nor of types that keep it for operators."""
    created_at: datetime
    created_by: str | None = None
    """The name of the key; absent where it is no key of the tenant."""
    updated_at: datetime
    finished_at: datetime | None = None
    next_attempt_at: datetime | None = None
    links: JobLinks

    @classmethod
    def of(cls, row: Row, results: Results = SECRET) -> Self:
        """Outcomes, never the machinery that leads to them; of results what their type shows."""
        model = results.get(row["type"]) if row["state"] == JobState.COMPLETED else None
        job_id, image_id = row["job_id"], image_of_target(row["target"])
        done, total = row["progress_done"], row["progress_total"]
        code = row["failure_code"]
        return cls(
            job_id=job_id,
            job_type=row["type"],
            status=row["state"],
            image_id=image_id,
            progress=Progress(done=done, total=total) if done > 0 or total is not None else None,
            failure=Failure(code=code, message=row["failure_message"] or "") if code else None,
            result=model and _readable(model, row["result"], row["result_reason"]),
            created_at=row["created_at"],
            created_by=row["created_by"],
            updated_at=row["updated_at"],
            finished_at=row["finished_at"],
            next_attempt_at=row["next_attempt_at"],
            links=JobLinks.from_job(job_id, image_id),
        )

    @property
    def over(self) -> bool:
        """Whether it will not change any more."""
        return self.status in TERMINAL

    @property
    def steps(self) -> str | None:
        """Its progress as people read it; None if it tells none."""
        if self.progress is None:
            return None
        return "/".join(str(n) for n in (self.progress.done, self.progress.total) if n is not None)


def _readable(model: type[BaseModel], result: JsonObject | None, reason: str) -> JsonObject:
    """The result as its producer reads it: why the job is completed, and what the model names.

    What does not fit, of a worker of another release, is not shown.
    """
    try:
        told = model.model_validate(result or {})
    except ValidationError:
        return {"reason": reason}
    return told.model_dump(mode="json", by_alias=True, exclude_none=True) | {"reason": reason}


class JobPage(Shape):
    """Jobs, newest first."""

    jobs: list[JobView]
    next_cursor: UUID | None = None


class OperatorLinks(Shape):
    """Where to go on from a job."""

    self: str
    attempts: str
    explain: str

    @classmethod
    def from_job(cls, job_id: UUID) -> Self:
        """Those of one job."""
        path = f"/v1/operator/jobs/{job_id}"
        return cls(self=path, attempts=f"{path}/attempts", explain=f"{path}/explain")


class OverseenJobView(Shape):
    """A job in a list of operators."""

    job_id: JobId
    tenant: str
    job_type: str
    status: JobState
    lane: str
    priority: int
    target: str | None = None
    attempts: int
    max_attempts: int
    crashes: int
    locked_by: UUID | None = None
    failure_code: str | None = None
    failure_message: str | None = None
    correlation_id: str
    dedup_key: str | None = None
    parent_job_id: UUID | None = None
    run_at: datetime
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None = None
    links: OperatorLinks

    @classmethod
    def of(cls, row: Row) -> Self:
        """With where to go on from it."""
        return super().of(dict(row) | {"links": OperatorLinks.from_job(row["job_id"])})


class OverseenJobPage(Shape):
    """Jobs of any tenant, newest first."""

    jobs: list[OverseenJobView]
    next_cursor: UUID | None = None


class RelatedJob(Shape):
    """A job beside another: made by it, or about the same target."""

    job_id: JobId
    job_type: str
    status: JobState
    target_seq: int | None = None


class WholeJob(OverseenJobView):
    """Everything about one job, and where it comes from and leads to."""

    target_seq: int | None = None
    preempts: bool
    services: list[str]
    pause_target_on_failure: bool
    claim_no: int
    locked_at: datetime | None = None
    claimed_at: datetime | None = None
    claim_charged: bool
    payload: dict[str, object]
    idempotency_key: str | None = None
    fingerprint: str
    created_by: str
    replay_of: UUID | None = None
    generation: int
    replay_reason: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    cancel_requested_at: datetime | None = None
    cancel_code: str | None = None
    cancel_detail: str | None = None
    progress_done: int
    progress_total: int | None = None
    progress_cursor: dict[str, object] | None = None
    last_progress_at: datetime | None = None
    result: dict[str, object] | None = None
    result_reason: str | None = None
    failure_detail: str | None = None
    ring_due_at: datetime | None = None
    announced_at: datetime | None = None
    rung: int | None = None
    letter_id: UUID | None = None
    replayed_as: JobId | None = None
    children: tuple[RelatedJob, ...] = ()
    """The newest of those that name it as their parent."""


class AttemptView(Shape):
    """How one claim ended."""

    claim_no: int
    worker_id: UUID
    lane: str
    claimed_at: datetime
    ended_at: datetime
    duration: Seconds
    queue_time: Seconds
    charged: bool
    outcome: str
    why: str
    detail: str | None = None
    log_excerpt: str | None = None
    cpu_seconds: float | None = None
    peak_bytes: int | None = None
    read_bytes: int | None = None
    made_bytes: int | None = None


class Attempts(Shape):
    """Every claim of a job that has ended, oldest first."""

    attempts: list[AttemptView]


class OrderedJob(Shape):
    """The job that carries out what was ordered."""

    job_id: JobId
    status: JobState
    links: OperatorLinks


class RetryNow(Shape):
    """Whether the job waited, and was rung."""

    job_id: JobId
    status: JobState
    rung: bool


class OutcomesView(Shape):
    """How jobs fare so far."""

    open: int
    completed: int
    failed: int
    failure_ratio: float

    @classmethod
    def of(cls, row: Row) -> Self:
        """With the share of failures among those that have ended; 0 before the first one has."""
        ratio = row["failed"] / max(1, row["completed"] + row["failed"])
        return super().of(dict(row) | {"failure_ratio": ratio})
