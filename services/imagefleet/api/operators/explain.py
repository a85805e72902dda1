"""One sentence or two that say why a job does not run, for every verdict that a claim may give.

They name what can be acted upon: the job that comes first, the pause and whose it is, the worker
and its last beat, the lanes that somebody takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Final, TypeAlias, assert_never
from urllib.parse import urlencode
from uuid import UUID

from imagefleet.api.operators.holding import moment, no_lane, opened, paused, taken
from imagefleet.imaging.lanes import Slow
from imagefleet.jobs.bulk import OF_A_SET
from imagefleet.jobs.kinds import URGENT_BELOW
from imagefleet.jobs.model import JobState, Lane, PauseScope, Verdict
from imagefleet.jobs.shapes.explaining import ExplanationLinks, ExplanationView
from imagefleet.jobs.shapes.fleet import BreakerView, PauseView
from imagefleet.jobs.shapes.jobs import OperatorLinks, RelatedJob
from imagefleet.jobs.shapes.letters import LetterView
from imagefleet.store.fleet.statistics import Capacity
from imagefleet.store.jobs.inspection import MOST_AHEAD, Explanation

Told: TypeAlias = tuple[str, str]  # a stable word for the reason, and the sentence


def explanation(
    job_id: UUID,
    facts: Explanation,
    room: Capacity,
    pauses: Sequence[PauseView],
    breakers: Sequence[BreakerView],
    *,
    letter: LetterView | None = None,
    neighbours: Sequence[RelatedJob] = (),
) -> ExplanationView:
    """The verdict in words, and the facts; of a failed job what became of its letter, too."""
    reason, sentence = told(facts, room, pauses, breakers)
    words: dict[str, object] = {"job_id": job_id, "reason": reason, "neighbours": neighbours}
    if letter is not None:
        is_open = letter.acknowledged_at is None and letter.replayed_as is None
        words["letter"] = LetterView.of(dict(letter))
        words["replay"] = f"{REPLAY} {letter.id}" if is_open else None
        sentence = f"{sentence} {_buried(letter)}"
    words |= {"sentence": sentence, "lane_sentence": _why_there(facts)}
    places = {"workers": room.workers, "slots": room.slots, "busy_slots": room.busy}
    links = _links(job_id, facts, letter)
    return ExplanationView.of(asdict(facts) | words | places | {"links": links})


REPLAY: Final = "imagefleet dlq replay --reason mended"


def _buried(letter: LetterView) -> str:
    if letter.replayed_as is not None:
        return f"Job {letter.replayed_as} replays it."
    if letter.acknowledged_at is not None:
        return f"Its dead letter was acknowledged by {letter.acknowledged_by}."
    return f"Its dead letter waits for somebody: `{REPLAY} {letter.id}` runs it again."


def _links(job_id: UUID, facts: Explanation, letter: LetterView | None) -> ExplanationLinks:
    waits_for_another = facts.verdict is Verdict.TARGET_BUSY
    about = {"tenant": facts.tenant_id, "target": facts.target or ""}
    return ExplanationLinks(
        **OperatorLinks.from_job(job_id).model_dump(),
        lane=f"/v1/operator/lanes/{facts.lane}/explain",
        pauses="/v1/operator/pauses" if facts.pause else None,
        breakers="/v1/operator/breakers" if facts.breaker else None,
        first=f"/v1/operator/jobs/{facts.why}" if waits_for_another else None,
        letter=None if letter is None else f"/v1/operator/dead-letters/{letter.id}",
        target=f"/v1/operator/jobs?{urlencode(about)}" if facts.target else None,
    )


_OF_IMAGES: Final = "process_image"
_MEMORY: Final = "memory"  # of a failure, and of an attempt that gave its job back
_WANTS_MEMORY: Final = (
    "Its picture needs more memory than the worker gives that had it last: "
    "it waits for one that gives as much"
)
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
            return "no_worker_for_lane", no_lane(facts.lane, facts.living_lanes)
        case Verdict.UNROUTABLE:
            return "no_worker_for_type", _no_type(facts)
        case Verdict.NOT_DUE:
            return "not_due", _not_due(facts)
        case Verdict.PAUSED:
            return _paused(facts, pauses)
        case Verdict.TARGET_BUSY:
            return "target_busy", _target_busy(facts)
        case Verdict.BREAKER:
            return "breaker_open", opened(facts.breaker, facts.until, breakers)
        case Verdict.CLAIMED:
            return _ready(facts, room)
        case Verdict.CONTENDED | Verdict.UNKNOWN | Verdict.UNREADABLE:
            raise AssertionError  # not of a job that was read alone
        case _:
            assert_never(facts.verdict)


def _over(facts: Explanation) -> str:
    code = facts.failure_code if facts.state is JobState.FAILED else facts.result_reason
    sentence = f"It is over: {facts.state}. It ended at {moment(facts.finished_at)} with {code}."
    # How much was needed, and how much there was.
    return f"{sentence} {facts.failure_message}" if code == _MEMORY else sentence


def _busy(facts: Explanation, pauses: Sequence[PauseView], breakers: Sequence[BreakerView]) -> Told:
    where = ""
    if facts.holder_host is not None:
        silent = (facts.holder_silent_for or timedelta()).total_seconds()
        process = f"process {facts.holder_pid} on {facts.holder_host}"
        where = f" ({process}, last beat {silent:.0f} s ago)"
    who = f"{facts.locked_by}{where}"
    if not facts.lock_expired:
        holds = f"Worker {who} holds it by claim {facts.claim_no}"
        sentence = f"{holds}; its lease ends at {moment(facts.until)} unless renewed."
        if facts.cancel_requested_at is not None:
            sentence += f" {_asked_to_stop(facts)}; its worker is told with the next beat."
        return "lease_held", sentence
    if facts.lane not in facts.living_lanes:
        why = no_lane(facts.lane, facts.living_lanes)
    elif facts.pause is not None:
        _, why = _paused(facts, pauses)
    else:
        why = opened(facts.breaker, facts.until, breakers)
    expired = f"Its lease by worker {who} has expired, and nobody may take it over."
    return "lease_expired", f"{expired} {why}"


def _flagged(facts: Explanation) -> str:
    sentence = f"{_asked_to_stop(facts)}; whoever claims it next ends it."
    return (
        sentence
        if facts.lane in facts.living_lanes
        else f"{sentence} {no_lane(facts.lane, facts.living_lanes)}"
    )


def _asked_to_stop(facts: Explanation) -> str:
    at = moment(facts.cancel_requested_at)
    return f"It was asked to stop at {at} ({facts.cancel_code})"


def _no_type(facts: Explanation) -> str:
    types = taken("types", facts.living_types)
    return f"No living worker takes jobs of the type {facts.type}; {types}."


def _exhausted(facts: Explanation) -> str:
    left = f"no attempts are left ({facts.attempts} of {facts.max_attempts})"
    return f"Its lease has expired and {left}; the next claim fails it."


def _not_due(facts: Explanation) -> str:
    until = moment(facts.until)
    if facts.state is not JobState.FAILED_RETRYABLE:
        return f"It is not due before {until}."
    if facts.given_back_for == _MEMORY:
        return f"{_WANTS_MEMORY}, and is due again at {until}."
    if facts.failure_code is None:
        return f"It was given back, and is due again at {until}."
    tried = f"{facts.attempts} of {facts.max_attempts} attempts did not work"
    return f"{tried}; the next one is due at {until}."


def _paused(facts: Explanation, pauses: Sequence[PauseView]) -> Told:
    holding = [pause for pause in pauses if _holds(pause, facts)]
    # The claim names one; a job may be held by several, and waits until the last is lifted.
    sentences = [paused(pause) for pause in sorted(holding, key=lambda pause: pause.scope)]
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


def _target_busy(facts: Explanation) -> str:
    if facts.first_state == JobState.PROCESSING:
        how = f"worker {facts.first_locked_by} is at work on it"
    elif facts.first_state == JobState.FAILED_RETRYABLE:
        how = f"it is tried again at {moment(facts.first_run_at)}"
    else:
        how = "it waits itself"
    return f"Job {facts.why} comes first on its target {facts.target}: {how}."


def _ready(facts: Explanation, room: Capacity) -> Told:
    if room.workers == 0:
        both = f"jobs of the type {facts.type} from the lane {facts.lane}"
        sentence = f"No living worker takes {both}, though some take the type and some the lane."
        return "no_worker_for_lane_and_type", sentence
    workers = "1 worker" if room.workers == 1 else f"{room.workers} workers"
    busy = f"{room.busy} of {room.slots}"
    if room.full:
        every = f"Every {facts.lane} slot is taken ({busy} at {workers})"
        return "lane_saturated", f"{every}{_detail(facts, room)}."
    slots = f"{busy} slots for its lane are busy at {workers}"
    sentence = f"Nothing holds it back: {slots}; {_bell(facts)}."
    return "ready", f"{sentence} {_WANTS_MEMORY}." if facts.given_back_for == _MEMORY else sentence


def _bell(facts: Explanation) -> str:
    if facts.announced_at is not None:
        return f"it was announced at {moment(facts.announced_at)} and waits to be received"
    if facts.ring_due_at is None:
        return "it stands first at its target, and is announced within seconds"
    ahead = f"{facts.ahead} or more" if facts.ahead == MOST_AHEAD else facts.ahead
    behind = f", behind {ahead} of its tenant's own" if ahead else ""
    return f"it takes its turn to be announced since {moment(facts.ring_due_at)}{behind}"


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
