"""One sentence or two that say why a job does not run, for every verdict that a claim may give.

They name what can be acted upon: the job that comes first, the pause and whose it is, the worker
and its last beat, the lanes that somebody takes.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Final, TypeAlias, assert_never
from uuid import UUID

from imagefleet.jobs.model import JobState, Lane, PauseScope, Verdict
from imagefleet.jobs.shapes.fleet import BreakerView, PauseView
from imagefleet.jobs.shapes.jobs import ExplanationView
from imagefleet.store.fleet.statistics import Room
from imagefleet.store.jobs.inspection import MOST_AHEAD, Explanation

Told: TypeAlias = tuple[str, str]  # a stable word for the reason, and the sentence

_OVER: Final = "It is over: {state}. It ended at {at} with {code}."
_HELD: Final = (
    "Worker {worker}{where} holds it by claim {claim}; its lease ends at {until} unless renewed."
)
_WHERE: Final = " (process {pid} on {host}, last beat {silent:.0f} s ago)"
_EXPIRED: Final = "Its lease by worker {worker}{where} has expired, and nobody may take it over. "
_FLAGGED: Final = "It was asked to stop at {at} ({code})"
_FLAGGED_WAITING: Final = f"{_FLAGGED}; whoever claims it next ends it."
_FLAGGED_RUNNING: Final = f" {_FLAGGED}; its worker is told with the next beat."
_EXHAUSTED: Final = (
    "Its lease has expired and no attempts are left ({attempts} of {most}); the next claim fails "
    "it."
)
_NO_LANE: Final = "No living worker takes anything from the lane {lane}; {lanes}."
_NO_TYPE: Final = "No living worker takes jobs of the type {type}; {types}."
_NO_BOTH: Final = (
    "No living worker takes jobs of the type {type} from the lane {lane}, though some take the "
    "type and some the lane."
)
_NOT_DUE: Final = "It is not due before {until}."
_BACKOFF: Final = "{attempts} of {most} attempts did not work; the next one is due at {until}."
_BACK: Final = "It was given back, and is due again at {until}."
_PAUSED: Final = "{what} is paused since {since} by {by}, until somebody lifts it: {reason}"
_TARGET: Final = "Job {other} comes first on its target {target}: {how}."
_FIRST_RUNS: Final = "worker {worker} is at work on it"
_FIRST_BACKS_OFF: Final = "it is tried again at {at}"
_FIRST_WAITS: Final = "it waits itself"
_BREAKER: Final = "The circuit breaker of {service} is open until {until}."
_FORCED: Final = "The circuit breaker of {service} was forced open by {by}, until it is reset."
_FULL: Final = "Every {lane} slot is taken ({busy} of {slots} at {workers}){detail}."
_READY: Final = (
    "Nothing holds it back: {busy} of {slots} slots for its lane are busy at {workers}; {bell}."
)
_ANNOUNCED: Final = "it was announced at {at} and waits to be received"
_TAKES_TURNS: Final = "it takes its turn to be announced since {at}{behind}"
_BEHIND: Final = ", behind {ahead} of its tenant's own"
_STANDS_FIRST: Final = "it stands first at its target, and is announced within seconds"


def explanation(
    job_id: UUID,
    found: Explanation,
    room: Room,
    pauses: Sequence[PauseView],
    breakers: Sequence[BreakerView],
) -> ExplanationView:
    """The verdict in words, and the facts."""
    reason, sentence = told(found, room, pauses, breakers)
    words = {"job_id": job_id, "reason": reason, "sentence": sentence}
    places = {"workers": room.workers, "slots": room.slots, "busy_slots": room.busy}
    return ExplanationView.of(asdict(found) | words | places)


def told(
    found: Explanation,
    room: Room,
    pauses: Sequence[PauseView],
    breakers: Sequence[BreakerView],
) -> Told:
    """The reason, and the sentence."""
    match found.verdict:
        case Verdict.FINISHED:
            return "finished", _over(found)
        case Verdict.BUSY:
            return _busy(found, pauses, breakers)
        case Verdict.CANCELLED:
            return "cancelled", _flagged(found)
        case Verdict.EXHAUSTED:
            return "exhausted", _EXHAUSTED.format(attempts=found.attempts, most=found.max_attempts)
        case Verdict.ELSEWHERE:
            return "no_worker_for_lane", _no_lane(found)
        case Verdict.UNROUTABLE:
            types = _taken("types", found.living_types)
            return "no_worker_for_type", _NO_TYPE.format(type=found.type, types=types)
        case Verdict.NOT_DUE:
            return "not_due", _not_due(found)
        case Verdict.PAUSED:
            return _paused(found, pauses)
        case Verdict.TARGET_BUSY:
            return "target_busy", _target_busy(found)
        case Verdict.BREAKER:
            return "breaker_open", _breaker(found, breakers)
        case Verdict.CLAIMED:
            return _ready(found, room)
        case Verdict.CONTENDED | Verdict.UNKNOWN | Verdict.UNREADABLE:
            raise AssertionError  # not of a job that was read alone
        case _:
            assert_never(found.verdict)


def _over(found: Explanation) -> str:
    code = found.failure_code if found.state is JobState.FAILED else found.result_reason
    return _OVER.format(state=found.state, at=_moment(found.finished_at), code=code)


def _busy(found: Explanation, pauses: Sequence[PauseView], breakers: Sequence[BreakerView]) -> Told:
    where = ""
    if found.holder_host is not None:
        silent = (found.holder_silent_for or timedelta()).total_seconds()
        where = _WHERE.format(pid=found.holder_pid, host=found.holder_host, silent=silent)
    if not found.lock_expired:
        until = _moment(found.until)
        sentence = _HELD.format(
            worker=found.locked_by, where=where, claim=found.claim_no, until=until
        )
        if found.cancel_requested_at is not None:
            at = _moment(found.cancel_requested_at)
            sentence += _FLAGGED_RUNNING.format(at=at, code=found.cancel_code)
        return "lease_held", sentence
    expired = _EXPIRED.format(worker=found.locked_by, where=where)
    if found.lane not in found.living_lanes:
        return "lease_expired", expired + _no_lane(found)
    if found.pause is not None:
        return "lease_expired", expired + _paused(found, pauses)[1]
    return "lease_expired", expired + _breaker(found, breakers)


def _flagged(found: Explanation) -> str:
    sentence = _FLAGGED_WAITING.format(
        at=_moment(found.cancel_requested_at), code=found.cancel_code
    )
    return sentence if found.lane in found.living_lanes else f"{sentence} {_no_lane(found)}"


def _no_lane(found: Explanation) -> str:
    return _NO_LANE.format(lane=found.lane, lanes=_taken("lanes", found.living_lanes))


def _taken(what: str, names: Sequence[str]) -> str:
    return f"{what} that are taken: {', '.join(names)}" if names else "there is none at all"


def _not_due(found: Explanation) -> str:
    until = _moment(found.until)
    if found.state is not JobState.FAILED_RETRYABLE:
        return _NOT_DUE.format(until=until)
    if found.failure_code is None:
        return _BACK.format(until=until)
    return _BACKOFF.format(attempts=found.attempts, most=found.max_attempts, until=until)


def _paused(found: Explanation, pauses: Sequence[PauseView]) -> Told:
    holding = [pause for pause in pauses if _holds(pause, found)]
    # The claim names one; a job may be held by several, and waits until the last is lifted.
    sentences = [
        _PAUSED.format(
            what=_named(pause),
            since=_moment(pause.paused_at),
            by=pause.paused_by,
            reason=pause.reason,
        )
        for pause in sorted(holding, key=lambda pause: pause.scope)
    ]
    scope = (found.pause or "").partition(":")[0]
    return f"{scope}_paused", " Also: ".join(sentences)


def _holds(pause: PauseView, found: Explanation) -> bool:
    match pause.scope:
        case PauseScope.ALL:
            return True
        case PauseScope.LANE:
            return pause.name == found.lane
        case PauseScope.TYPE:
            return pause.name == found.type
        case PauseScope.TENANT:
            return pause.tenant == found.tenant_id and pause.name in {None, found.type}
        case PauseScope.TARGET:
            return (pause.tenant, pause.name) == (found.tenant_id, found.target)
        case _:
            assert_never(pause.scope)


def _named(pause: PauseView) -> str:
    if pause.scope is PauseScope.ALL:
        return "Everything"
    if pause.scope is PauseScope.TENANT:
        of_type = f"The type {pause.name} of the" if pause.name else "The"
        return f"{of_type} tenant {pause.tenant}"
    whose = f" of {pause.tenant}" if pause.tenant else ""
    return f"The {pause.scope} {pause.name}{whose}"


def _target_busy(found: Explanation) -> str:
    if found.first_state == JobState.PROCESSING:
        how = _FIRST_RUNS.format(worker=found.first_locked_by)
    elif found.first_state == JobState.FAILED_RETRYABLE:
        how = _FIRST_BACKS_OFF.format(at=_moment(found.first_run_at))
    else:
        how = _FIRST_WAITS
    return _TARGET.format(other=found.why, target=found.target, how=how)


def _breaker(found: Explanation, breakers: Sequence[BreakerView]) -> str:
    for breaker in breakers:
        if breaker.service == found.breaker and breaker.forced:
            return _FORCED.format(service=breaker.service, by=breaker.updated_by)
    return _BREAKER.format(service=found.breaker, until=_moment(found.until))


def _ready(found: Explanation, room: Room) -> Told:
    if room.workers == 0:
        sentence = _NO_BOTH.format(type=found.type, lane=found.lane)
        return "no_worker_for_lane_and_type", sentence
    workers = "1 worker" if room.workers == 1 else f"{room.workers} workers"
    if room.full:
        sentence = _FULL.format(
            lane=found.lane,
            busy=room.busy,
            slots=room.slots,
            workers=workers,
            detail=_detail(found, room),
        )
        return "lane_saturated", sentence
    sentence = _READY.format(
        busy=room.busy,
        slots=room.slots,
        workers=workers,
        bell=_bell(found),
    )
    return "ready", sentence


def _bell(found: Explanation) -> str:
    if found.announced_at is not None:
        return _ANNOUNCED.format(at=_moment(found.announced_at))
    if found.ring_due_at is None:
        return _STANDS_FIRST
    ahead = f"{found.ahead} or more" if found.ahead == MOST_AHEAD else found.ahead
    behind = _BEHIND.format(ahead=ahead) if ahead else ""
    return _TAKES_TURNS.format(at=_moment(found.ring_due_at), behind=behind)


def _detail(found: Explanation, room: Room) -> str:
    """Which of the slots are the lane's own, and which are taken by other lanes' jobs."""
    match found.lane:
        case Lane.FAST if room.slots > room.own:
            return f"; {room.own} are its own, {room.slots - room.own} general ones serve it too"
        case Lane.GENERAL if room.busy > room.in_lane:
            return f", {room.busy - room.in_lane} of them by jobs of the lane fast"
        case Lane.QUARANTINE:
            return "; a worker runs one suspect at a time"
        case _:
            return ""


def _moment(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
