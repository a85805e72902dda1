"""The shapes of the operators' routes that are about jobs; nothing is hidden."""

from datetime import datetime, timedelta
from typing import Annotated, Final, TypeVar
from uuid import UUID

from fastapi import Query
from pydantic import Field, PlainSerializer, StrictBool, StrictFloat, StrictInt

from imagefleet.api.producers.schemas import Incoming, Outgoing
from imagefleet.jobs.model import JobState

TENANT: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"
TYPE: Final = r"^[a-z][a-z0-9_]{0,62}$"
TARGET: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,255}$"
SENTENCE: Final = r"^[^\x00]{1,500}$"
MOST_WATCHED: Final = 1000

Seconds = Annotated[
    timedelta, PlainSerializer(lambda span: round(span.total_seconds(), 3), return_type=float)
]
Shown = TypeVar("Shown", bound=Outgoing)
Reason = Annotated[str, Field(pattern=SENTENCE)]
Why = Annotated[
    str | None,
    Query(alias="reason", pattern=SENTENCE, description="Why; kept in the audit."),
]
"""Of an order without a body."""


def shown(shape: type[Shown], thing: object) -> Shown:
    """What the store knows, as it is shown: by the names of its fields."""
    return shape.model_validate(thing, from_attributes=True)


class Because(Incoming):
    """Why an operator does it."""

    reason: Reason


class NewValue(Incoming):
    """Another value of a live setting."""

    value: StrictBool | StrictInt | StrictFloat | Annotated[str, Field(max_length=200)]
    """No setting is a text; one is refused by a sentence that says what the setting is."""
    reason: Reason


class WatchedJobs(Incoming):
    """Jobs whose outcomes are counted."""

    job_ids: Annotated[list[UUID], Field(min_length=1, max_length=MOST_WATCHED)]


class OperatorLinks(Outgoing):
    """Where to go on from a job."""

    self: str
    attempts: str
    explain: str


class OverseenJobView(Outgoing):
    """A job in a list of operators."""

    job_id: UUID
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
    correlation_id: str
    dedup_key: str | None = None
    parent_job_id: UUID | None = None
    run_at: datetime
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None = None
    links: OperatorLinks


class OverseenJobPage(Outgoing):
    """Jobs of any tenant, newest first."""

    jobs: list[OverseenJobView]
    next_cursor: UUID | None = None


class WholeJob(OverseenJobView):
    """Everything about one job."""

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
    failure_message: str | None = None
    failure_detail: str | None = None
    ring_due_at: datetime | None = None
    announced_at: datetime | None = None
    rung: int | None = None


class AttemptView(Outgoing):
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


class Attempts(Outgoing):
    """Every claim of a job that has ended, oldest first."""

    attempts: list[AttemptView]


class ExplanationView(Outgoing):
    """Why a job does not run: what a claim would be told now, and the facts behind it."""

    job_id: UUID
    tenant: str
    verdict: str
    reason: str
    sentence: str
    until: datetime | None = None
    why: str | None = None
    status: JobState
    lane: str
    job_type: str
    target: str | None = None
    claim_no: int
    attempts: int
    max_attempts: int
    crashes: int
    locked_by: UUID | None = None
    ring_due_at: datetime | None = None
    announced_at: datetime | None = None
    rung: int | None = None
    ahead: int | None = None
    weight: int
    max_open_jobs: int | None = None
    workers: int
    slots: int
    busy_slots: int


class OrderedJob(Outgoing):
    """The job that carries out what was ordered."""

    job_id: UUID
    status: JobState
    links: OperatorLinks


class RetryNow(Outgoing):
    """Whether the job waited, and was rung."""

    job_id: UUID
    status: JobState
    rung: bool


class OutcomesView(Outgoing):
    """How jobs fare so far."""

    open: int
    completed: int
    failed: int
    failure_ratio: float
