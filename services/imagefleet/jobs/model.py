"""The nouns: what a job, a submission, a claim and a message are. Values only, no behaviour."""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NewType, TypeAlias
from uuid import UUID

from imagefleet.errors import InputRejected

JobId = NewType("JobId", UUID)
TenantId = NewType("TenantId", str)
WorkerId = NewType("WorkerId", UUID)
JsonObject: TypeAlias = Mapping[str, object]
Fence: TypeAlias = tuple[JobId, int]
"""One claim of one job, by its number: a worker may have lost the first and hold the second."""


class JobState(StrEnum):
    """The one vocabulary: database, HTTP, metrics, logs and console all say these words."""

    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED_RETRYABLE = "failed_retryable"
    FAILED = "failed"


TERMINAL: Final = frozenset({JobState.COMPLETED, JobState.FAILED})


class Lane(StrEnum):
    """A lane is a queue with slots of its own, so that slow work never stands before quick work."""

    FAST = "fast"
    GENERAL = "general"
    QUARANTINE = "quarantine"


class PauseScope(StrEnum):
    """What a pause holds back."""

    TARGET = "target"
    TENANT = "tenant"
    TYPE = "type"
    LANE = "lane"
    ALL = "all"


class Verdict(StrEnum):
    """What the claim says about one received id; each verdict has exactly one message action."""

    CLAIMED = "claimed"
    FINISHED = "finished"
    BUSY = "busy"
    NOT_DUE = "not_due"
    TARGET_BUSY = "target_busy"
    PAUSED = "paused"
    BREAKER = "breaker"
    CANCELLED = "cancelled"
    EXHAUSTED = "exhausted"
    UNROUTABLE = "unroutable"
    ELSEWHERE = "elsewhere"
    CONTENDED = "contended"
    UNKNOWN = "unknown"
    UNREADABLE = "unreadable"


class CancelCode(StrEnum):
    """Why a job was flagged: the failure code it ends with once somebody settles it."""

    CANCELLED = "cancelled"
    IMAGE_DELETED = "image_deleted"
    FAILED_BY_OPERATOR = "failed_by_operator"


def new_job_id() -> JobId:
    """A UUID of version 7: the first 48 bits are milliseconds, so that ids sort by age."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & (2**48 - 1)) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76  # version
    value = value & ~(0x3 << 62) | 0x2 << 62  # variant
    return JobId(UUID(int=value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """Whose job, from where, on which terms: what is known of it before what it asks."""

    job_id: JobId = field(default_factory=new_job_id)
    tenant_id: TenantId
    created_by: str
    correlation_id: str
    target: str | None = None
    """Jobs with the same target run one at a time, in the order of their submission."""
    idempotency_key: str | None = None
    dedup_key: str | None = None
    parent_job_id: JobId | None = None
    priority: int = 100
    run_at: datetime | None = None
    """Not before this time; None is now, by the database's clock."""
    traceparent: str | None = None
    tracestate: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission(Intent):
    """Accepted intent, whole, on its way into the table: of a draft, or of a job that failed."""

    type: str
    lane: Lane
    max_attempts: int
    payload: JsonObject
    preempts: bool = False
    """Ignores pauses and the order of its target (cancellation, deletion); never a running job."""
    services: tuple[str, ...] = ()
    """Names of the services whose open circuit breaker holds this job back."""
    pause_target_on_failure: bool = False
    """If it fails, what is behind it on its target waits until somebody resumes that."""
    fingerprint: str = ""
    """A digest of the whole request, to tell a repeat from another request under the same key."""
    replay_of: JobId | None = None
    generation: int = 0
    replay_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What submit answers: the job that stands for the request, whether it is new or not."""

    job_id: JobId
    type: str
    state: JobState
    lane: Lane
    created: bool
    target: str | None
    created_at: datetime
    next_at: datetime | None
    """When its ring row is due, for `confirm_rings`; None when there is nothing to ring now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charged:
    """The runs that a job was charged for, the last one included, and how many it may have."""

    attempts: int
    max_attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing(Charged):
    """How a job that runs stands: what `decide` asks of it, and the locked row says."""

    crashes: int
    """Before this attempt."""
    lane: Lane
    cancel_code: CancelCode | None
    """Why it was flagged, if it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Standing):
    """Proof of ownership. `(job_id, claim_no)` is the fence that every later write names.

    One of a flagged job is there to be settled as failed, without running its handler.
    """

    job_id: JobId
    claim_no: int
    tenant_id: TenantId
    type: str
    payload: JsonObject
    target: str | None
    target_seq: int | None
    priority: int
    cursor: JsonObject | None
    progress_done: int
    correlation_id: str
    parent_job_id: JobId | None
    replay_of: JobId | None
    traceparent: str | None
    tracestate: str | None
    created_at: datetime
    claimed_at: datetime
    queue_time: timedelta
    probes: tuple[str, ...] = ()
    """Services whose breaker is half open: how this attempt fares decides for all that wait."""
    watched: tuple[str, ...] = ()
    """Services of which so much fails that successes have to be told, too."""


USED: Final = ("cpu_seconds", "peak_bytes", "read_bytes", "made_bytes")
"""What children take, as columns and fields call it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Charged):
    """A claim that is over: its row in `attempts`, and what else is told of it."""

    job_id: JobId
    claim_no: int
    tenant_id: TenantId
    type: str
    lane: Lane
    worker_id: WorkerId
    """Who had the claim; who ended it may be another worker, or maintenance."""
    duration: timedelta
    """By the database's clock, from the claim on."""
    queue_time: timedelta
    outcome: str
    """The word of the row: completed retried failed released rescued taken_over exhausted."""
    why: str
    state: JobState
    """What the job is now."""
    correlation_id: str
    traceparent: str | None
    age: timedelta | None = None
    """Of what completed, since it was accepted or, if later, due; None where a job asked for it."""
    cpu_seconds: float | None = None
    """What its children took, as are the three below; None where there was none, or who knows."""
    peak_bytes: int | None = None
    """Of memory, by the one that had most."""
    read_bytes: int | None = None
    made_bytes: int | None = None

    @property
    def used(self) -> dict[str, float]:
        """What is known of that, by name."""
        told = {name: getattr(self, name) for name in USED}
        return {name: value for name, value in told.items() if value is not None}

    @property
    def fence(self) -> Fence:
        """The claim that ended."""
        return (self.job_id, self.claim_no)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAnswer:
    """The verdict for one received id."""

    job_id: JobId
    verdict: Verdict
    claim: Claim | None = None
    """Set for `claimed` and `cancelled`, and only for them."""
    until: datetime | None = None
    """When asking again makes sense, where the verdict knows it."""
    wait: timedelta | None = None
    """The same as a span by the database's clock, for message visibility."""
    why: str | None = None
    """What holds it back: the pause, the breaker, the job in front."""
    ended: Ended | None = None
    """The claim that this one took over, or found to be the last, and ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMessage:
    """The body of an SQS message: which row to look at, and the trace it belongs to. No payload."""

    job_id: JobId
    traceparent: str | None = None
    tracestate: str | None = None
    dead_letter: UUID | None = None
    """On the dead-letter queue, the letter it tells of; back in a lane it asks for a replay."""
    announced_at: datetime | None = None
    """When it was rung; messages announced well before one that was heard are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring(JobMessage):
    """One row of the doorbell table, taken to be sent: the message, and where it goes."""

    lane: Lane
    next_at: datetime
    """Names the row as it was taken: one that moved on since is not marked as sent."""
    tenant_id: TenantId
    announced_at: datetime
    """When it was taken, by the database's clock."""


MESSAGE_VERSION: Final = 1
MAX_MESSAGE_BYTES: Final = 4096  # ours are under 300; a longer body is not ours


def encode_message(message: JobMessage) -> str:
    """The body as it is sent; `parse_message` reads it back."""
    body: dict[str, object] = {"v": MESSAGE_VERSION, "job_id": str(message.job_id)}
    if message.traceparent:
        body["traceparent"] = message.traceparent
    if message.tracestate:
        body["tracestate"] = message.tracestate
    if message.dead_letter:
        body["dead_letter"] = str(message.dead_letter)
    if message.announced_at:
        body["announced_at"] = message.announced_at.isoformat()
    return json.dumps(body, separators=(",", ":"))


def parse_message(body: str) -> JobMessage:
    """Read a body that anybody may have written; whatever is not ours is `unreadable`."""
    try:
        fields = json.loads(body[:MAX_MESSAGE_BYTES])
        version, job_id = fields["v"], JobId(UUID(fields["job_id"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(str(error)) from error
    if version != MESSAGE_VERSION:
        raise _unreadable(repr(version)[:20])
    return JobMessage(
        job_id=job_id,
        traceparent=_text_or_none(fields.get("traceparent")),
        tracestate=_text_or_none(fields.get("tracestate")),
        dead_letter=_id_or_none(fields.get("dead_letter")),
        announced_at=_moment_or_none(fields.get("announced_at")),
    )


def _unreadable(detail: str) -> InputRejected:
    return InputRejected("unreadable", "This message is not a job message.", detail)


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _id_or_none(value: object) -> UUID | None:
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _moment_or_none(value: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        if moment is None or moment.tzinfo is None:
            return None
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):  # the first day of all, somewhere east of Greenwich
        return None
