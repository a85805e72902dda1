"""One sentence or two that say why a job does not run, for every verdict that a claim may give.

They name what can be acted upon: the job that comes first, the pause and whose it is, the worker
and its last beat, the lanes that somebody takes.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TypeAlias, assert_never
from uuid import UUID

from imagefleet.jobs.model import JobState, Lane, PauseScope, Verdict
from imagefleet.jobs.shapes.fleet import BreakerView, PauseView
from imagefleet.jobs.shapes.jobs import ExplanationView
from imagefleet.store.fleet.statistics import Room
from imagefleet.store.jobs.inspection import MOST_AHEAD, Explanation

Told: TypeAlias = tuple[str, str]  # a stable word for the reason, and the sentence


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
            return "exhausted", _exhausted(found)
        case Verdict.ELSEWHERE:
            return "no_worker_for_lane", _no_lane(found)
        case Verdict.UNROUTABLE:
            return "no_worker_for_type", _no_type(found)
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
    return f"It is over: {found.state}. It ended at {_moment(found.finished_at)} with {code}."


def _busy(found: Explanation, pauses: Sequence[PauseView], breakers: Sequence[BreakerView]) -> Told:
    where = ""
    if found.holder_host is not None:
        silent = (found.holder_silent_for or timedelta()).total_seconds()
        process = f"process {found.holder_pid} on {found.holder_host}"
        where = f" ({process}, last beat {silent:.0f} s ago)"
    who = f"{found.locked_by}{where}"
    if not found.lock_expired:
        holds = f"Worker {who} holds it by claim {found.claim_no}"
        sentence = f"{holds}; its lease ends at {_moment(found.until)} unless renewed."
        if found.cancel_requested_at is not None:
            sentence += f" {_asked_to_stop(found)}; its worker is told with the next beat."
        return "lease_held", sentence
    if found.lane not in found.living_lanes:
        why = _no_lane(found)
    elif found.pause is not None:
        _, why = _paused(found, pauses)
    else:
        why = _breaker(found, breakers)
    expired = f"Its lease by worker {who} has expired, and nobody may take it over."
    return "lease_expired", f"{expired} {why}"


def _flagged(found: Explanation) -> str:
    sentence = f"{_asked_to_stop(found)}; whoever claims it next ends it."
    return sentence if found.lane in found.living_lanes else f"{sentence} {_no_lane(found)}"


def _asked_to_stop(found: Explanation) -> str:
    at = _moment(found.cancel_requested_at)
    return f"It was asked to stop at {at} ({found.cancel_code})"


def _no_lane(found: Explanation) -> str:
    taken = _taken("lanes", found.living_lanes)
    return f"No living worker takes anything from the lane {found.lane}; {taken}."


def _no_type(found: Explanation) -> str:
    taken = _taken("types", found.living_types)
    return f"No living worker takes jobs of the type {found.type}; {taken}."


def _exhausted(found: Explanation) -> str:
    left = f"no attempts are left ({found.attempts} of {found.max_attempts})"
    return f"Its lease has expired and {left}; the next claim fails it."


def _taken(what: str, names: Sequence[str]) -> str:
    return f"{what} that are taken: {', '.join(names)}" if names else "there is none at all"


def _not_due(found: Explanation) -> str:
    until = _moment(found.until)
    if found.state is not JobState.FAILED_RETRYABLE:
        return f"It is not due before {until}."
    if found.failure_code is None:
        return f"It was given back, and is due again at {until}."
    tried = f"{found.attempts} of {found.max_attempts} attempts did not work"
    return f"{tried}; the next one is due at {until}."


def _paused(found: Explanation, pauses: Sequence[PauseView]) -> Told:
    holding = [pause for pause in pauses if _holds(pause, found)]
    # The claim names one; a job may be held by several, and waits until the last is lifted.
    sentences = [
        f"{_named(pause)} is paused since {_moment(pause.paused_at)} by {pause.paused_by}, "
        f"until somebody lifts it: {pause.reason}"
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
        how = f"worker {found.first_locked_by} is at work on it"
    elif found.first_state == JobState.FAILED_RETRYABLE:
        how = f"it is tried again at {_moment(found.first_run_at)}"
    else:
        how = "it waits itself"
    return f"Job {found.why} comes first on its target {found.target}: {how}."


def _breaker(found: Explanation, breakers: Sequence[BreakerView]) -> str:
    which = f"The circuit breaker of {found.breaker}"
    for breaker in breakers:
        if breaker.service == found.breaker and breaker.forced:
            return f"{which} was forced open by {breaker.updated_by}, until it is reset."
    return f"{which} is open until {_moment(found.until)}."


def _ready(found: Explanation, room: Room) -> Told:
    if room.workers == 0:
        both = f"jobs of the type {found.type} from the lane {found.lane}"
        sentence = f"No living worker takes {both}, though some take the type and some the lane."
        return "no_worker_for_lane_and_type", sentence
    workers = "1 worker" if room.workers == 1 else f"{room.workers} workers"
    busy = f"{room.busy} of {room.slots}"
    if room.full:
        taken = f"Every {found.lane} slot is taken ({busy} at {workers})"
        return "lane_saturated", f"{taken}{_detail(found, room)}."
    slots = f"{busy} slots for its lane are busy at {workers}"
    return "ready", f"Nothing holds it back: {slots}; {_bell(found)}."


def _bell(found: Explanation) -> str:
    if found.announced_at is not None:
        return f"it was announced at {_moment(found.announced_at)} and waits to be received"
    if found.ring_due_at is None:
        return "it stands first at its target, and is announced within seconds"
    ahead = f"{found.ahead} or more" if found.ahead == MOST_AHEAD else found.ahead
    behind = f", behind {ahead} of its tenant's own" if ahead else ""
    return f"it takes its turn to be announced since {_moment(found.ring_due_at)}{behind}"


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
