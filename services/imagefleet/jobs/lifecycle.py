"""Which changes of state exist, who may make them, and what an attempt's outcome turns into.

`TRANSITIONS` is the single source of truth: the database's trigger, the statements in the store
and the drawing in docs/lifecycle.md are compared with it by tests. `decide` is the only place that
knows when a retry has become a failure. Everything is a value; clock and dice come from outside.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias, assert_never

from imagefleet.jobs.images import Emptied, Publication
from imagefleet.jobs.model import CancelCode, JobState, JsonObject, Lane, Standing, Submission
from imagefleet.jobs.policies import RetryPolicy


class Role(StrEnum):
    """Who changes a job's state; each is a database role of its own."""

    API = "api"
    WORKER = "worker"
    MAINTENANCE = "maintenance"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Transition:
    """One legal change of state. `source` None is the creation of the job."""

    source: JobState | None
    target: JobState
    by: frozenset[Role]
    when: str


_WORKER: Final = frozenset({Role.WORKER})
_WORKER_OR_RESCUER: Final = frozenset({Role.WORKER, Role.MAINTENANCE})
_GIVEN_UP: Final = "permanent error, attempts exhausted, cancelled, poison"

TRANSITIONS: Final[tuple[Transition, ...]] = (
    Transition(None, JobState.QUEUED, frozenset(Role), "submit, replay, follow-up"),
    Transition(JobState.QUEUED, JobState.PROCESSING, _WORKER, "claim"),
    Transition(JobState.FAILED_RETRYABLE, JobState.PROCESSING, _WORKER, "claim"),
    Transition(JobState.PROCESSING, JobState.PROCESSING, _WORKER, "takeover of an expired lock"),
    Transition(JobState.PROCESSING, JobState.COMPLETED, _WORKER, "complete"),
    Transition(
        JobState.PROCESSING, JobState.FAILED_RETRYABLE, _WORKER_OR_RESCUER, "retry, release, rescue"
    ),
    Transition(JobState.PROCESSING, JobState.FAILED, _WORKER_OR_RESCUER, _GIVEN_UP),
    Transition(JobState.FAILED_RETRYABLE, JobState.FAILED, _WORKER_OR_RESCUER, _GIVEN_UP),
)


class ResultReason(StrEnum):
    """Why a job is completed; all but the first are successes with less to do than was asked."""

    DONE = "done"
    TARGET_REACHED = "target_reached"
    NOTHING_LEFT = "nothing_left"
    SUPERSEDED = "superseded"
    REQUESTED = "requested"
    ALREADY_FINISHED = "already_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The job did what it was for."""

    result: JsonObject = field(default_factory=dict)
    reason: ResultReason = ResultReason.DONE
    follow_ups: tuple[Submission, ...] = ()
    publication: Publication | None = None
    """What becomes visible with the completion, in the same transaction."""
    emptied: Emptied | None = None
    """What was deleted: its receipt, and what the edge is owed for it, in the same transaction."""
    log_excerpt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The job did not work this time and may work later."""

    code: str
    message: str
    """Anybody may read it; what only operators may read is the detail."""
    detail: str | None = None
    crashed: bool = False
    """The worker or the decoding child died under this job, so that the job itself is a suspect."""
    alone: bool = True
    """With a crash: nothing else died with it. If something did, that may be the killer."""
    charged: bool = True
    """False gives the attempt of this claim back."""
    run_at: datetime | None = None
    """Not before this time; None leaves it to the policy."""
    lane: Lane | None = None
    """The lane of the next run; None keeps the lane it is in."""
    log_excerpt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The job is over and did not work."""

    code: str
    message: str
    detail: str | None = None
    log_excerpt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The worker gives the job back through no fault of the job: never charged, never a failure."""

    why: str
    run_at: datetime | None = None
    after: timedelta = timedelta()
    """Without that: not before so much later."""
    log_excerpt: str | None = None


Outcome: TypeAlias = Completed | Retry | Failed | Released


CRASHES_BEFORE_QUARANTINE: Final = 2  # one may be the neighbour's fault; two are a suspicion


def decide(
    outcome: Outcome, standing: Standing, policy: RetryPolicy, now: datetime, *, jitter: float
) -> Outcome:
    """Turn the outcome an attempt asks for into the one to write; `now` is the database's clock."""
    match outcome:
        case Completed() | Failed():
            return outcome
        case Released():
            if standing.cancel_code is not None:
                return _cancelled(standing.cancel_code, outcome.why, outcome.log_excerpt)
            return replace(outcome, run_at=outcome.run_at or now + outcome.after)
        case Retry():
            if standing.cancel_code is not None:
                why = _because(outcome)
                return _cancelled(standing.cancel_code, why, outcome.log_excerpt)
            due = outcome.run_at or now + policy.delay(max(1, standing.attempts), jitter)
            if outcome.crashed:
                return _after_crash(replace(outcome, run_at=due), standing)
            return _after_error(replace(outcome, run_at=due), standing)
        case _:
            assert_never(outcome)


def _after_error(retry: Retry, standing: Standing) -> Retry | Failed:
    if retry.charged and standing.attempts >= standing.max_attempts:
        exhausted = f"attempts exhausted ({standing.attempts} of {standing.max_attempts})"
        return Failed(
            code=retry.code,
            message=retry.message,
            detail=f"{retry.detail}; {exhausted}" if retry.detail else exhausted,
            log_excerpt=retry.log_excerpt,
        )
    return retry


def _after_crash(retry: Retry, standing: Standing) -> Retry | Failed:
    """Blame the job only once it has crashed alone, in quarantine; until then it is run again."""
    if standing.lane is Lane.QUARANTINE and retry.alone:
        return Failed(
            code="poison",
            message=failure_sentence("poison"),
            detail=_because(retry),
            log_excerpt=retry.log_excerpt,
        )
    suspect = standing.crashes + 1 >= CRASHES_BEFORE_QUARANTINE
    return replace(
        retry,
        lane=Lane.QUARANTINE if suspect else retry.lane,
        # The last attempt is given back: one more run is possible, and charged runs stay in limits.
        charged=retry.charged and standing.attempts < standing.max_attempts,
    )


def _cancelled(code: CancelCode, why: str, log_excerpt: str | None) -> Failed:
    return Failed(
        code=code.value,
        message=failure_sentence(code.value),
        detail=f"instead of: {why}",
        log_excerpt=log_excerpt,
    )


def _because(retry: Retry) -> str:
    return f"{retry.code}: {retry.detail or retry.message}"


FAILURE_SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cancelled": "The job was cancelled.",
        "image_deleted": "The image was deleted before this job could finish.",
        "failed_by_operator": "An operator ended this job.",
        "poison": "Processing this input stopped a worker more than once, so it was given up.",
        "worker_lost": "The worker that ran this job stopped answering.",
        "attempts_exhausted": "The job was tried as often as it may be and did not succeed.",
        "settle_rejected": "The result of this job could not be recorded.",
        "deadline": "The job took longer than it may.",
        "crashed": "The process that worked on this input ended unexpectedly.",
        "corrupt": "The image is damaged and cannot be read.",
        "unsupported": "The file is not an image of a supported kind.",
        "empty_file": "The file is empty.",
        "too_large": "The image is larger than it may be.",
        "too_many_pixels": "The image has more pixels than it may have.",
        "too_many_parts": "The image is made of more pieces than it may be.",
        "too_many_scans": "The image is coded in more passes than it may be.",
        "too_much_metadata": "The image carries more metadata than it may.",
        "output_too_large": "What would be made of the image is larger than it may be.",
        "memory": "The image needs more memory to process than it may have.",
        "not_found": "The source file does not exist.",
        "source_changed": "The source file is not the one that was submitted.",
        "invalid_payload": "The job's payload is not valid for its type.",
        "unavailable": "A service this job needs did not answer.",
        "internal_error": "Something went wrong on our side.",
    }
)
"""The sentence the public reads for each built-in failure code: fixed, so that nothing leaks."""

OUR_FAILURES: Final = frozenset(
    {
        "attempts_exhausted", "crashed", "deadline", "internal_error", "lock_expired", "memory",
        "poison", "settle_rejected", "unavailable", "worker_lost",
    }
)  # fmt: skip
"""Why an image that was given up was nobody's fault but ours: it was not published in time."""


def failure_sentence(code: str) -> str:
    """Return the fixed sentence of a failure code; a code we do not know is our own problem."""
    return FAILURE_SENTENCES.get(code, FAILURE_SENTENCES["internal_error"])
