"""One sentence or two that say why a job does not run, for every verdict that a claim may give.

They name what can be acted upon: the job that comes first, the pause and whose it is, the worker
and its last beat, the lanes that somebody takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Final, TypeAlias, assert_never
from uuid import UUID

from imagefleet.imaging.lanes import Slow
from imagefleet.jobs.bulk import OF_A_SET
from imagefleet.jobs.kinds import URGENT_BELOW
from imagefleet.jobs.model import JobState, Lane, PauseScope, Verdict
from imagefleet.jobs.shapes.fleet import BreakerView, PauseView
from imagefleet.jobs.shapes.jobs import ExplanationView
from imagefleet.store.fleet.statistics import Capacity
from imagefleet.store.jobs.inspection import MOST_AHEAD, Explanation

Told: TypeAlias = tuple[str, str]  # a stable word for the reason, and the sentence


def explanation(
    job_id: UUID,
    facts: Explanation,
    room: Capacity,
    pauses: Sequence[PauseView],
    breakers: Sequence[BreakerView],
) -> ExplanationView:
    """The verdict in words, and the facts."""
    reason, sentence = told(facts, room, pauses, breakers)
    words = {"job_id": job_id, "reason": reason, "sentence": sentence}
    words["lane_sentence"] = _why_there(facts)
    places = {"workers": room.workers, "slots": room.slots, "busy_slots": room.busy}
    return ExplanationView.of(asdict(facts) | words | places)


_OF_IMAGES: Final = "process_image"
_WHY_GENERAL: Final[Mapping[str | None, str]] = {
    OF_A_SET: "it is one of a set that is rendered again",
    Slow.UNKNOWN_RECIPE: "the version of its recipe was not in force where it was submitted",
    Slow.MAKES_AVIF: "its recipe makes AVIF",
    Slow.IS_AVIF: "its original is AVIF",
    Slow.LARGE: "its original is large",
    Slow.ANIMATED: "its original is animated, or may be",
}


def _why_there(facts: Explanation) -> str:
    """Why it is in its lane."""
    there = f"It is in the lane {facts.lane}"
    if facts.lane == Lane.QUARANTINE:
        return f"{there}: workers or children died under it."
    if facts.type == _OF_IMAGES:
        if facts.lane == Lane.FAST:
            return f"{there}: its picture is small and quick to make."
        return f"{there}: {_WHY_GENERAL.get(facts.slow, 'an earlier release put it there')}."
    if facts.lane == Lane.FAST and facts.priority < URGENT_BELOW:
        return f"{there}, as its priority is {facts.priority} or its type is quick."
    return f"{there}, as jobs of its type are."


def told(
    facts: Explanation,
    room: Capacity,
    pauses: Sequence[PauseView],
    breakers: Sequence[BreakerView],
) -> Told:
    """The reason, and the sentence."""
    match facts.verdict:
        case Verdict.FINISHED:
            return "finished", _over(facts)
        case Verdict.BUSY:
            return _busy(facts, pauses, breakers)
        case Verdict.CANCELLED:
            return "cancelled", _flagged(facts)
        case Verdict.EXHAUSTED:
            return "exhausted", _exhausted(facts)
        case Verdict.ELSEWHERE:
            return "no_worker_for_lane", _no_lane(facts)
        case Verdict.UNROUTABLE:
            return "no_worker_for_type", _no_type(facts)
        case Verdict.NOT_DUE:
            return "not_due", _not_due(facts)
        case Verdict.PAUSED:
            return _paused(facts, pauses)
        case Verdict.TARGET_BUSY:
            return "target_busy", _target_busy(facts)
        case Verdict.BREAKER:
            return "breaker_open", _breaker(facts, breakers)
        case Verdict.CLAIMED:
            return _ready(facts, room)
        case Verdict.CONTENDED | Verdict.UNKNOWN | Verdict.UNREADABLE:
            raise AssertionError  # not of a job that was read alone
        case _:
            assert_never(facts.verdict)


def _over(facts: Explanation) -> str:
    code = facts.failure_code if facts.state is JobState.FAILED else facts.result_reason
    sentence = f"It is over: {facts.state}. It ended at {_moment(facts.finished_at)} with {code}."
    # How much was needed, and how much there was.
    return f"{sentence} {facts.failure_message}" if code == "memory" else sentence


def _busy(facts: Explanation, pauses: Sequence[PauseView], breakers: Sequence[BreakerView]) -> Told:
    where = ""
    if facts.holder_host is not None:
        silent = (facts.holder_silent_for or timedelta()).total_seconds()
        process = f"process {facts.holder_pid} on {facts.holder_host}"
        where = f" ({process}, last beat {silent:.0f} s ago)"
    who = f"{facts.locked_by}{where}"
    if not facts.lock_expired:
        holds = f"Worker {who} holds it by claim {facts.claim_no}"
        sentence = f"{holds}; its lease ends at {_moment(facts.until)} unless renewed."
        if facts.cancel_requested_at is not None:
            sentence += f" {_asked_to_stop(facts)}; its worker is told with the next beat."
        return "lease_held", sentence
    if facts.lane not in facts.living_lanes:
        why = _no_lane(facts)
    elif facts.pause is not None:
        _, why = _paused(facts, pauses)
    else:
        why = _breaker(facts, breakers)
    expired = f"Its lease by worker {who} has expired, and nobody may take it over."
    return "lease_expired", f"{expired} {why}"


def _flagged(facts: Explanation) -> str:
    sentence = f"{_asked_to_stop(facts)}; whoever claims it next ends it."
    return sentence if facts.lane in facts.living_lanes else f"{sentence} {_no_lane(facts)}"


def _asked_to_stop(facts: Explanation) -> str:
    at = _moment(facts.cancel_requested_at)
    return f"It was asked to stop at {at} ({facts.cancel_code})"


def _no_lane(facts: Explanation) -> str:
    taken = _taken("lanes", facts.living_lanes)
    return f"No living worker takes anything from the lane {facts.lane}; {taken}."


def _no_type(facts: Explanation) -> str:
    taken = _taken("types", facts.living_types)
    return f"No living worker takes jobs of the type {facts.type}; {taken}."


def _exhausted(facts: Explanation) -> str:
    left = f"no attempts are left ({facts.attempts} of {facts.max_attempts})"
    return f"Its lease has expired and {left}; the next claim fails it."


def _taken(what: str, names: Sequence[str]) -> str:
    return f"{what} that are taken: {', '.join(names)}" if names else "there is none at all"


def _not_due(facts: Explanation) -> str:
    until = _moment(facts.until)
    if facts.state is not JobState.FAILED_RETRYABLE:
        return f"It is not due before {until}."
    if facts.failure_code is None:
        return f"It was given back, and is due again at {until}."
    tried = f"{facts.attempts} of {facts.max_attempts} attempts did not work"
    return f"{tried}; the next one is due at {until}."


def _paused(facts: Explanation, pauses: Sequence[PauseView]) -> Told:
    holding = [pause for pause in pauses if _holds(pause, facts)]
    # The claim names one; a job may be held by several, and waits until the last is lifted.
    sentences = [
        f"{_named(pause)} is paused since {_moment(pause.paused_at)} by {pause.paused_by}, "
        f"until somebody lifts it: {pause.reason}"
        for pause in sorted(holding, key=lambda pause: pause.scope)
    ]
    scope = (facts.pause or "").partition(":")[0]
    return f"{scope}_paused", " Also: ".join(sentences)


def _holds(pause: PauseView, facts: Explanation) -> bool:
    match pause.scope:
        case PauseScope.ALL:
            return True
        case PauseScope.LANE:
            return pause.name == facts.lane
        case PauseScope.TYPE:
            return pause.name == facts.type
        case PauseScope.TENANT:
            return pause.tenant == facts.tenant_id and pause.name in {None, facts.type}
        case PauseScope.TARGET:
            return (pause.tenant, pause.name) == (facts.tenant_id, facts.target)
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


def _target_busy(facts: Explanation) -> str:
    if facts.first_state == JobState.PROCESSING:
        how = f"worker {facts.first_locked_by} is at work on it"
    elif facts.first_state == JobState.FAILED_RETRYABLE:
        how = f"it is tried again at {_moment(facts.first_run_at)}"
    else:
        how = "it waits itself"
    return f"Job {facts.why} comes first on its target {facts.target}: {how}."


def _breaker(facts: Explanation, breakers: Sequence[BreakerView]) -> str:
    which = f"The circuit breaker of {facts.breaker}"
    for breaker in breakers:
        if breaker.service == facts.breaker and breaker.forced:
            return f"{which} was forced open by {breaker.updated_by}, until it is reset."
    return f"{which} is open until {_moment(facts.until)}."


def _ready(facts: Explanation, room: Capacity) -> Told:
    if room.workers == 0:
        both = f"jobs of the type {facts.type} from the lane {facts.lane}"
        sentence = f"No living worker takes {both}, though some take the type and some the lane."
        return "no_worker_for_lane_and_type", sentence
    workers = "1 worker" if room.workers == 1 else f"{room.workers} workers"
    busy = f"{room.busy} of {room.slots}"
    if room.full:
        taken = f"Every {facts.lane} slot is taken ({busy} at {workers})"
        return "lane_saturated", f"{taken}{_detail(facts, room)}."
    slots = f"{busy} slots for its lane are busy at {workers}"
    return "ready", f"Nothing holds it back: {slots}; {_bell(facts)}."


def _bell(facts: Explanation) -> str:
    if facts.announced_at is not None:
        return f"it was announced at {_moment(facts.announced_at)} and waits to be received"
    if facts.ring_due_at is None:
        return "it stands first at its target, and is announced within seconds"
    ahead = f"{facts.ahead} or more" if facts.ahead == MOST_AHEAD else facts.ahead
    behind = f", behind {ahead} of its tenant's own" if ahead else ""
    return f"it takes its turn to be announced since {_moment(facts.ring_due_at)}{behind}"


def _detail(facts: Explanation, room: Capacity) -> str:
    """Which of the slots are the lane's own, and which are taken by other lanes' jobs."""
    match facts.lane:
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
