"""One sentence that says why a job does not run, for every verdict that a claim may give."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, TypeAlias, assert_never
from uuid import UUID

from imagefleet.api.operator_schemas import ExplanationView
from imagefleet.jobs.model import JobState, Verdict
from imagefleet.store.breakers import Breaker
from imagefleet.store.control import StandingPause
from imagefleet.store.queues import Room
from imagefleet.store.reports import Explanation

Told: TypeAlias = tuple[str, str]  # a stable word for the reason, and the sentence

_OVER: Final = "It is over: {state}."
_HELD: Final = (
    "Worker {worker} holds it by claim {claim}; its lease ends at {until} unless renewed."
)
_EXPIRED: Final = (
    "Its lease by worker {worker} has expired, and it cannot be taken over yet: {why}."
)
_FLAGGED: Final = "It was asked to stop; whoever claims it next ends it."
_EXHAUSTED: Final = "Its lease has expired and no attempts are left; the next claim fails it."
_NO_LANE: Final = "No living worker takes anything from the lane {lane}."
_NO_TYPE: Final = "No living worker takes jobs of the type {type}."
_NO_BOTH: Final = "No living worker takes jobs of the type {type} from the lane {lane}."
_NOT_DUE: Final = "It is not due before {until}."
_BACKOFF: Final = "{attempts} of {most} attempts did not work; the next one is due at {until}."
_PAUSED: Final = "{what} is paused since {since} by {by}: {reason}"
_TARGET: Final = "Job {other} comes first on its target {target}."
_BREAKER: Final = "The circuit breaker of {service} is open until {until}."
_FORCED: Final = "The circuit breaker of {service} was forced open by {by}, until it is reset."
_FULL: Final = (
    "All {slots} slots of the {workers} living workers for it are busy, {in_lane} with its lane."
)
_READY: Final = (
    "Nothing holds it back: {busy} of {slots} slots are busy; it was rung {rung} times and is rung "
    "again at {ring}."
)


def explanation(
    job_id: UUID,
    found: Explanation,
    room: Room,
    pauses: Sequence[StandingPause],
    breakers: Sequence[Breaker],
) -> ExplanationView:
    """The verdict in words, and the facts."""
    reason, sentence = told(found, room, pauses, breakers)
    return ExplanationView(
        job_id=job_id,
        verdict=found.verdict,
        reason=reason,
        sentence=sentence,
        until=found.until,
        why=found.why,
        status=found.state,
        lane=found.lane,
        job_type=found.type,
        target=found.target,
        claim_no=found.claim_no,
        attempts=found.attempts,
        max_attempts=found.max_attempts,
        crashes=found.crashes,
        locked_by=found.locked_by,
        ring_due_at=found.ring_due_at,
        rung=found.rung,
        workers=room.workers,
        slots=room.slots,
        busy_slots=room.busy,
    )


def told(
    found: Explanation,
    room: Room,
    pauses: Sequence[StandingPause],
    breakers: Sequence[Breaker],
) -> Told:
    """The reason, and the sentence."""
    match found.verdict:
        case Verdict.FINISHED:
            return "finished", _OVER.format(state=found.state)
        case Verdict.BUSY:
            return _busy(found)
        case Verdict.CANCELLED:
            return "cancelled", _FLAGGED
        case Verdict.EXHAUSTED:
            return "exhausted", _EXHAUSTED
        case Verdict.ELSEWHERE:
            return "no_worker_for_lane", _NO_LANE.format(lane=found.lane)
        case Verdict.UNROUTABLE:
            return "no_worker_for_type", _NO_TYPE.format(type=found.type)
        case Verdict.NOT_DUE:
            return _not_due(found)
        case Verdict.PAUSED:
            return _paused(found.why or "all", pauses)
        case Verdict.TARGET_BUSY:
            return "target_busy", _TARGET.format(other=found.why, target=found.target)
        case Verdict.BREAKER:
            return _breaker(found, breakers)
        case Verdict.CLAIMED:
            return _ready(found, room)
        case Verdict.CONTENDED | Verdict.UNKNOWN | Verdict.UNREADABLE:  # pragma: no cover
            raise AssertionError  # not of a job that was read alone
        case _:  # pragma: no cover
            assert_never(found.verdict)


def _busy(found: Explanation) -> Told:
    if not found.lock_expired:
        until = _moment(found.until)
        sentence = _HELD.format(worker=found.locked_by, claim=found.claim_no, until=until)
        return "lease_held", sentence
    why = found.why or f"no living worker takes the lane {found.lane}"
    return "lease_expired", _EXPIRED.format(worker=found.locked_by, why=why)


def _not_due(found: Explanation) -> Told:
    until = _moment(found.until)
    if found.state is not JobState.FAILED_RETRYABLE:
        return "not_due", _NOT_DUE.format(until=until)
    sentence = _BACKOFF.format(attempts=found.attempts, most=found.max_attempts, until=until)
    return "not_due", sentence


def _paused(why: str, pauses: Sequence[StandingPause]) -> Told:
    scope, _, name = why.partition(":")
    what = f"The {scope} {name}" if name else "Everything"
    for pause in pauses:
        if (pause.what.scope, pause.what.name) == (scope, name):
            since = _moment(pause.paused_at)
            sentence = _PAUSED.format(
                what=what, since=since, by=pause.paused_by, reason=pause.reason
            )
            return f"{scope}_paused", sentence
    return f"{scope}_paused", f"{what} is paused."


def _breaker(found: Explanation, breakers: Sequence[Breaker]) -> Told:
    for breaker in breakers:
        if breaker.service == found.why and breaker.forced:
            sentence = _FORCED.format(service=breaker.service, by=breaker.updated_by)
            return "breaker_open", sentence
    return "breaker_open", _BREAKER.format(service=found.why, until=_moment(found.until))


def _ready(found: Explanation, room: Room) -> Told:
    if room.workers == 0:
        sentence = _NO_BOTH.format(type=found.type, lane=found.lane)
        return "no_worker_for_lane_and_type", sentence
    if room.full:
        sentence = _FULL.format(slots=room.slots, workers=room.workers, in_lane=room.in_lane)
        return "lane_saturated", sentence
    ring = _moment(found.ring_due_at)
    sentence = _READY.format(busy=room.busy, slots=room.slots, rung=found.rung or 0, ring=ring)
    return "ready", sentence


def _moment(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
