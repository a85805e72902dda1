"""Why a job does not run, and why nothing moves in a lane: for operators, with where to look on."""

from datetime import datetime
from uuid import UUID

from imagefleet.jobs.model import JobId, JobState
from imagefleet.jobs.shapes.fleet import LaneView
from imagefleet.jobs.shapes.jobs import OperatorLinks, RelatedJob
from imagefleet.jobs.shapes.letters import LetterView
from imagefleet.jobs.shapes.shape import Shape


class ExplanationLinks(OperatorLinks):
    """Where to look on: at what it waits for, or at what became of it."""

    lane: str
    pauses: str | None = None
    breakers: str | None = None
    first: str | None = None
    """The job that comes before it on its target."""
    letter: str | None = None
    target: str | None = None
    """Every job about its target."""


class ExplanationView(Shape):
    """Why a job does not run: what a claim would be told now, and the facts behind it."""

    job_id: JobId
    tenant: str
    verdict: str
    reason: str
    sentence: str
    until: datetime | None = None
    why: str | None = None
    status: JobState
    lane: str
    lane_sentence: str
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
    letter: LetterView | None = None
    replay: str | None = None
    """The command that runs it again, where its letter is open."""
    neighbours: tuple[RelatedJob, ...] = ()
    """The first of what is open on its target, in the order that they run in; itself, too."""
    links: ExplanationLinks


class LaneLinks(Shape):
    """Where to look on."""

    queues: str = "/v1/operator/queues"
    pauses: str = "/v1/operator/pauses"
    breakers: str = "/v1/operator/breakers"
    workers: str = "/v1/operator/workers"


class LaneExplanationView(LaneView):
    """Why what waits in a lane does not run, and how the lane stands.

    `waiting` has no message; of each tenant, type and priority it is counted up to a thousand.
    """

    reason: str
    sentence: str
    more: list[str]
    """What else holds some of it."""
    waiting_is_at_least: bool
    links: LaneLinks
