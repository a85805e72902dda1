"""The timeline: who changed what, and what the fleet did by itself, the newest first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from imagefleet.console.showing import Context
from imagefleet.console.visits import VisitHere
from imagefleet.console.wording import there
from imagefleet.jobs.shapes.rules import AuditLines, AuditLineView

LINES: Final = "100"
SPANS: Final[Mapping[str, timedelta | None]] = {
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(days=7),
    "all": None,
}
PLACES: Final[Mapping[str, str]] = {
    "job": "/jobs/",
    "image": "/images/",
    "tenant": "/tenants/",
    "dead_letter": "/letters/",
}

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that an act changed."""

    name: str
    before: object
    after: object


@router.get("/timeline")
async def show_timeline(
    visit: VisitHere,
    span: str = "hour",
    by: str = "",
    on: str = "",
    what: str = "",
    tenant: str = "",
    cursor: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """What was done within a span, by whom, to what."""
    span = span if span in SPANS else "hour"

    async def look() -> Context:
        back = SPANS[span]
        since = None if back is None else (datetime.now(UTC) - back).isoformat()
        asked = {"by": by, "on": on, "what": what, "tenant": tenant}
        lines = await visit.look(
            AuditLines,
            "/v1/operator/audit",
            {name: value or None for name, value in asked.items()}
            | {"since": since, "limit": LINES, "cursor": None if cursor is None else str(cursor)},
        )
        more = lines.next_cursor
        return {
            "lines": [(line, place(line), [*changes(line)]) for line in lines.lines],
            "older": more and there("/timeline", asked | {"span": span, "cursor": more}),
            "newest": cursor and there("/timeline", asked | {"span": span}),
            "asked": asked | {"span": span},
            "spans": [*SPANS],
        }

    return await visit.show("timeline.html", look)


def place(line: AuditLineView) -> str | None:
    """Where more is shown of what it was done to."""
    there = PLACES.get(line.kind)
    if there is None or line.name == "all" or not {*"/= "}.isdisjoint(line.name):
        return None
    return there + line.name


def changes(line: AuditLineView) -> Iterator[Change]:
    """What is not as it was; of what has just come, or is gone, all of it."""
    before, after = line.before or {}, line.after or {}
    for name in dict.fromkeys((*before, *after)):
        was, became = before.get(name), after.get(name)
        if was != became:
            yield Change(name, was, became)
