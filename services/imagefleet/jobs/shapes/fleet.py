"""The fleet, as operators see it: pauses, lanes and queues, the ledger, breakers, workers."""

from datetime import datetime, timedelta
from typing import Final, Self
from uuid import UUID

from imagefleet.jobs.model import Lane, PauseScope
from imagefleet.jobs.shapes.shape import Row, RunView, Seconds, Shape


class PauseKey(Shape):
    """What a pause is of: a tenant has no name, and everything neither."""

    scope: PauseScope
    name: str | None = None
    tenant: str | None = None


class PauseView(PauseKey):
    """A pause; `running` jobs began before it. `known`: the name is a type that this API takes."""

    refuse_new: bool
    reason: str
    paused_by: str
    paused_at: datetime
    running: int
    known: bool | None = None

    @classmethod
    def of(cls, row: Row) -> Self:
        """Whether the name is known, the row does not know."""
        names = {"name": row["name"] or None, "tenant": row["tenant_id"] or None}
        return super().of(dict(row) | names)


class Pauses(Shape):
    """Every pause that stands."""

    pauses: list[PauseView]


class Resumed(PauseKey):
    """The pause is gone; what it held back is announced within a second, in turn."""


class MessagesView(Shape):
    """What SQS says that a queue holds: estimates."""

    visible: int
    in_flight: int
    delayed: int


class LaneView(Shape):
    """A lane: who works in it, what runs, and what waits; no messages where SQS did not answer.

    Of what waits, so many were announced and not claimed yet; that is never much more than the
    window. The others take turns; the first of them has waited since `oldestDueRing`.
    """

    lane: Lane
    workers: int
    slots: int
    busy: int
    processing: int
    waiting: int
    announced: int
    window: int
    oldest_due_ring: datetime | None = None
    messages: MessagesView | None = None

    @classmethod
    def of(cls, row: Row) -> Self:
        """Who works in it; what waits there is counted elsewhere."""
        return super().of(dict(row) | {"waiting": 0, "announced": 0})


class DepthView(Shape):
    """Open jobs of one type, state and lane."""

    job_type: str
    status: str
    lane: str
    jobs: int
    oldest_due: datetime
    unroutable: bool
    """No living worker takes this type in this lane: they wait until one does."""

    @classmethod
    def of(cls, row: Row) -> Self:
        """Who takes them, workers say elsewhere."""
        return super().of(dict(row) | {"unroutable": False})


class FlowView(Shape):
    """Attempts of the last hour that ended in one way."""

    job_type: str
    lane: str
    outcome: str
    attempts: int
    mean_duration: Seconds
    longest_duration: Seconds
    mean_queue_time: Seconds


class FailuresView(Shape):
    """Jobs that failed for one reason within the last hour."""

    job_type: str
    code: str
    failures: int
    latest: datetime


class StuckView(Shape):
    """A job that has been running for over an hour."""

    job_id: UUID
    tenant: str
    job_type: str
    lane: str
    attempts: int
    claimed_at: datetime
    last_progress_at: datetime | None = None
    worker_id: UUID
    host: str | None = None
    beat_at: datetime | None = None


class QueueingView(Shape):
    """A tenant that waits or runs; `waiting` has no message, and is counted up to a thousand."""

    tenant: str
    oldest_due: datetime | None = None
    waiting: int
    announced: int
    processing: int
    paused: bool


class QueueStats(Shape):
    """How the queues are; taken at most two seconds ago."""

    taken_at: datetime
    lanes: list[LaneView]
    dead_letters: MessagesView | None = None
    unacknowledged: int
    depths: list[DepthView]
    tenants: list[QueueingView]
    """Who has waited longest, first; twenty at most."""
    tenants_are_all_ranked: bool
    throughput: list[FlowView]
    failures: list[FailuresView]
    stuck: list[StuckView]


class DriftView(Shape):
    """What waits in Postgres, and what SQS holds; they agree only while nothing moves."""

    lane: Lane
    waiting: int
    expected: int
    messages: MessagesView | None = None
    drift: int | None = None


class LedgerView(Shape):
    """accepted = open + completed + failed + pruned, or something is missing."""

    taken_at: datetime
    accepted: int
    open: int
    completed: int
    failed: int
    pruned: int
    missing: int
    drift: list[DriftView]


class PruneRunView(RunView):
    """One period in which a maintenance process pruned."""

    jobs: int | None = None


class PruneView(Shape):
    """What is past retention, and what the last periods did about it."""

    retention_days: float
    prunable: int
    prunable_is_at_least: bool
    runs: list[PruneRunView]


class BreakerView(Shape):
    """A service's circuit breaker: `closed`, `open` or `half_open`."""

    service: str
    state: str
    forced: bool
    failures: int
    successes: int
    trips: int
    opened_at: datetime | None = None
    retry_at: datetime | None = None
    last_failure_at: datetime | None = None
    last_error_code: str | None = None
    updated_by: str
    updated_at: datetime


class Breakers(Shape):
    """Every service that was ever reported."""

    breakers: list[BreakerView]


class HeldJobView(Shape):
    """A job in a worker's hands."""

    job_id: UUID
    tenant: str
    job_type: str
    lane: str
    claim_no: int
    claimed_at: datetime
    progress_done: int
    progress_total: int | None = None
    cancel_requested: bool


class WorkerProcess(Shape):
    """Who a worker process is. The id is fresh at every start; host and pid are only labels."""

    worker_id: UUID
    host: str
    pid: int
    version: str


SILENT_AFTER: Final = timedelta(seconds=15)  # seven beats; it may be condemned after thirty


class WorkerView(WorkerProcess):
    """A worker process, and what it holds."""

    lanes: list[str]
    types: list[str]
    slots: int
    lane_slots: dict[str, int]
    started_at: datetime
    beat_at: datetime
    silent_for: Seconds
    drain_requested_at: datetime | None = None
    draining_since: datetime | None = None
    dead_at: datetime | None = None
    dead_why: str | None = None
    held: list[HeldJobView]


class Workers(Shape):
    """Worker processes."""

    workers: list[WorkerView]
