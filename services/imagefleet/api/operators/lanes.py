"""Operators and lanes: one sentence that says why nothing moves, and more about the rest."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.openapi import Routes, described
from imagefleet.api.http.requests import ToolsHere, answer
from imagefleet.api.operators.holding import moment, no_lane, opened, paused
from imagefleet.jobs.model import Lane, PauseScope
from imagefleet.jobs.shapes.explaining import LaneExplanationView, LaneLinks
from imagefleet.jobs.shapes.fleet import BreakerView, PauseView
from imagefleet.store.fleet.breakers import list_breakers
from imagefleet.store.fleet.lanes import LaneFacts, look_at_lane
from imagefleet.store.fleet.pauses import list_pauses
from imagefleet.store.jobs.inspection import list_taken

UNATTENDED: Final = 30  # seconds without a dispatcher's look; a new one is there within two
MOST_TOLD: Final = 10  # pauses of one kind

Told: TypeAlias = tuple[str, str]  # a stable word for the reason, and the sentence

router = Routes(tags=["queues"])


@router.get("/v1/operator/lanes/{lane}/explain", **described("Explain a lane", LaneExplanationView))
async def explain_lane(lane: Lane, _key: Operator, tools: ToolsHere) -> Response:
    """Why what waits there does not run, the weightiest first."""
    async with tools.operating("look_at_lane", "lanes", of_one_moment=True) as connection:
        facts = await look_at_lane(connection, lane, await list_taken(connection))
        pauses = await list_pauses(connection)
        breakers = await list_breakers(connection)
    (reason, sentence), *more = told(facts, pauses, breakers)
    words = {"reason": reason, "sentence": sentence, "more": [each for _, each in more]}
    counts = {
        "waiting": sum(group.jobs for group in facts.groups),
        "waiting_is_at_least": not facts.complete,
        "announced": facts.known.announced,
    }
    lane_as_it_is = facts.load.model_dump()
    return answer(LaneExplanationView(**lane_as_it_is | counts | words, links=LaneLinks()))


def told(
    facts: LaneFacts, pauses: Sequence[PauseView], breakers: Sequence[BreakerView]
) -> list[Told]:
    """Everything there is to say; what holds back most jobs is first, but for a lane of nobody."""
    return [*_nobody(facts), *_held(facts, pauses, breakers), *_moving(facts)]


def _nobody(facts: LaneFacts) -> Iterator[Told]:
    waits = facts.groups or facts.known.announced
    if waits and facts.load.workers == 0:
        yield "no_worker_for_lane", no_lane(facts.load.lane, facts.living_lanes)


def _held(
    facts: LaneFacts, pauses: Sequence[PauseView], breakers: Sequence[BreakerView]
) -> Iterator[Told]:
    jobs: Counter[tuple[str, str]] = Counter()
    for group in facts.groups:
        if group.hold is not None:
            jobs[group.hold, group.what] += group.jobs
    for (reason, what), count in jobs.most_common():
        many = "1 job waits" if count == 1 else f"{_count(count, facts)} jobs wait"
        match reason:
            case "breaker_open":
                retry_at = {breaker.service: breaker.retry_at for breaker in breakers}
                code = _last_error(what, breakers)
                sentence = f"{opened(what, retry_at.get(what), breakers)}{code} {many} for it."
            case "no_worker_for_type":
                nobody = f"No living worker takes jobs of the type {what} from this lane"
                sentence = f"{nobody}; {many}."
            case "not_due":
                sentence = f"{many} for a time; the first is due at {moment(facts.next_at)}."
            case "target_busy":
                sentence = f"{many} behind others of their targets, or for a paused target."
            case _:
                sentence = f"{_pauses(reason, what, pauses)}. {many} for that."
        yield reason, sentence


def _last_error(service: str, breakers: Sequence[BreakerView]) -> str:
    codes = [each.last_error_code for each in breakers if each.service == service]
    return f" Its last failure was {codes[0]}." if codes and codes[0] else ""


def _pauses(reason: str, what: str, pauses: Sequence[PauseView]) -> str:
    scope = PauseScope(reason.removesuffix("_paused"))
    by_tenant = scope is PauseScope.TENANT
    named = [
        pause
        for pause in pauses
        if pause.scope is scope and what in {"", pause.tenant if by_tenant else pause.name}
    ]
    return ". Also: ".join(map(paused, named[:MOST_TOLD]))


def _moving(facts: LaneFacts) -> Iterator[Told]:
    load, known = facts.load, facts.known
    runs = "1 job runs" if load.processing == 1 else f"{load.processing} jobs run"
    ready = sum(group.jobs for group in facts.groups if group.hold is None)
    if not ready and not known.announced:
        if not facts.groups:
            yield "nothing_waits", f"Nothing waits; {runs}."
        return
    waits = f"{_count(ready, facts)} wait for their turn and {known.announced} are announced"
    slots = f"{load.busy} of {load.slots} slots are busy"
    if not load.workers:
        return
    if load.busy >= load.slots:
        yield "lane_saturated", f"Every slot is taken: {slots}; {waits}."
    elif ready and known.unattended_for.total_seconds() > UNATTENDED:
        seconds = known.unattended_for.total_seconds()
        yield "no_dispatcher", f"No dispatcher has looked for {seconds:.0f} s; {waits}."
    elif ready and known.announced >= load.window:
        full = f"Its window is full: {known.announced} of {load.window} are announced"
        yield "window_full", f"{full}, and no worker has received them yet; {slots}."
    else:
        yield "moving", f"It moves: {slots}, {runs}; {waits}."


def _count(jobs: int, facts: LaneFacts) -> str:
    return str(jobs) if facts.complete else f"{jobs} or more"
