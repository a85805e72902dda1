"""What holds jobs back, in words: whose pause it is and why, until when a breaker is open."""

from collections.abc import Sequence
from datetime import datetime

from imagefleet.jobs.model import PauseScope
from imagefleet.jobs.shapes.fleet import BreakerView, PauseView


def paused(pause: PauseView) -> str:
    """Since when, by whom and why; without its full stop, as the reason may end a sentence."""
    since = f"paused since {moment(pause.paused_at)} by {pause.paused_by}"
    return f"{_named(pause)} is {since}, until somebody lifts it: {pause.reason}"


def _named(pause: PauseView) -> str:
    if pause.scope is PauseScope.ALL:
        return "Everything"
    if pause.scope is PauseScope.TENANT:
        of_type = f"The type {pause.name} of the" if pause.name else "The"
        return f"{of_type} tenant {pause.tenant}"
    whose = f" of {pause.tenant}" if pause.tenant else ""
    return f"The {pause.scope} {pause.name}{whose}"


def opened(service: str | None, until: datetime | None, breakers: Sequence[BreakerView]) -> str:
    """Until when the breaker of a service holds back what needs it."""
    which = f"The circuit breaker of {service}"
    for breaker in breakers:
        if breaker.service == service and breaker.forced:
            return f"{which} was forced open by {breaker.updated_by}, until it is reset."
    return f"{which} is open until {moment(until)}."


def no_lane(lane: str, living: Sequence[str]) -> str:
    """Nobody listens there."""
    return f"No living worker takes anything from the lane {lane}; {taken('lanes', living)}."


def taken(what: str, names: Sequence[str]) -> str:
    """What living workers take instead."""
    return f"{what} that are taken: {', '.join(names)}" if names else "there is none at all"


def moment(at: datetime | None) -> str:
    """A time as people read it."""
    return "an unknown time" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"
