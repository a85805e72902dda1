"""Faults: what failed for good, grouped by why; seen to by acknowledging it, or by a replay.

A replay goes in three steps: a dry run tells what would become of each letter, a canary replays
the oldest few, and when those fare well the rest follows. How the replayed jobs fare is counted on
the page, for as long as the session remembers which they are.

One template has both: the list, with a fault that is open beside it, and a fault by itself.
"""

import asyncio
from collections import Counter
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from imagefleet.console.sessions import Watched
from imagefleet.console.showing import Context
from imagefleet.console.visits import Visit, VisitHere
from imagefleet.console.wording import amount
from imagefleet.jobs.shapes.jobs import Attempts, OutcomesView, WholeJob
from imagefleet.jobs.shapes.letters import (
    Acknowledged,
    LetterGroups,
    LetterPage,
    LetterView,
    ReplayAnswer,
    ReplayOrdered,
)

LETTERS: Final = "/v1/operator/dead-letters"
GROUPS: Final = f"{LETTERS}/groups"
SHOWN: Final = "50"
LETTERS_SHOWN: Final = "50"
CANARY: Final = 5
MOST_AT_ONCE: Final = 100  # letters of one request
STEPS: Final = 24  # of the line that says when they died

FINGERPRINT: Final = r"^[0-9a-f]{8,64}$"

Fingerprint = Annotated[str, Path(pattern=FINGERPRINT)]

router = APIRouter()


@router.get("/faults")
async def show_faults(
    visit: VisitHere,
    tenant: str = "",
    job_type: Annotated[str, Query(alias="type")] = "",
    fault: Annotated[str, Query(pattern=f"^$|{FINGERPRINT}")] = "",
) -> Response:
    """Open letters by fault, the most frequent first; beside them one that is open."""

    async def look() -> Context:
        asked = {"tenant": tenant or None, "jobType": job_type or None}
        faults, opened = await asyncio.gather(
            visit.look(LetterGroups, GROUPS, asked | {"limit": SHOWN, "hourly": "true"}),
            _fault(visit, fault) if fault else _no_fault(),
        )
        named = {"tenant": tenant, "type": job_type}
        return {**opened, "listed": True, "groups": faults.groups, "asked": named}

    if visit.is_partial:
        return visit.part("faults.html", "drawer", await look())
    return await visit.show("faults.html", look)


@router.get("/faults/{fingerprint}")
async def show_fault(
    visit: VisitHere, fingerprint: Fingerprint, cursor: str | None = None
) -> Response:
    """One fault: its letters, and how the newest came to be one."""

    async def look() -> Context:
        return {**await _fault(visit, fingerprint, cursor), "listed": False}

    return await visit.show("faults.html", look)


async def _fault(visit: Visit, fingerprint: str, cursor: str | None = None) -> Context:
    asked = {"fingerprint": fingerprint}
    groups, letters = await asyncio.gather(
        visit.look(LetterGroups, GROUPS, asked),
        visit.look(LetterPage, LETTERS, asked | {"limit": LETTERS_SHOWN, "cursor": cursor}),
    )
    group = next(iter(groups.groups), None)
    example = None if group is None else await _example(visit, str(group.example))
    attempts = None
    if example is not None and example.job_id is not None:
        attempts = await visit.glance(Attempts, f"/v1/operator/jobs/{example.job_id}/attempts")
    return {
        "fingerprint": fingerprint,
        "group": group,
        "letters": letters,
        "example": example,
        "attempts": attempts,
        "died": _when(letters.letters),
        "watched": await _watched(visit, fingerprint),
        "canary": CANARY,
    }


async def _no_fault() -> Context:
    return {"fingerprint": ""}


@router.post("/faults/{fingerprint}/acknowledge")
async def acknowledge(visit: VisitHere, fingerprint: Fingerprint) -> Response:
    """Somebody knows, and nothing is to be done."""
    asked = {"filter": {"fingerprint": fingerprint}, "note": visit.form.one("note")}
    answer = await visit.order(Acknowledged, "POST", f"{LETTERS}:acknowledge", document=asked)
    more = " There are more of them: acknowledge again." if answer.more else ""
    count = answer.acknowledged
    told = "1 letter is" if count == 1 else f"{amount(count)} letters are"
    return visit.done(f"{told} acknowledged.{more}", "/faults")


@router.post("/faults/{fingerprint}/rehearse")
async def rehearse(visit: VisitHere, fingerprint: Fingerprint) -> Response:
    """What would become of the first letters; nothing is done."""
    answer = await _replay(visit, fingerprint, MOST_AT_ONCE, dry_run=True)
    told = Counter(letter.outcome.value for letter in answer.replays)
    more = answer.next_cursor is not None and len(answer.replays) == MOST_AT_ONCE
    return visit.part(
        "fault_rehearsed.html", "rehearsed", {"told": told.most_common(), "more": more}
    )


@router.post("/faults/{fingerprint}/replay")
async def replay(visit: VisitHere, fingerprint: Fingerprint) -> Response:
    """Run the oldest few again as new jobs, or all: what a request has no room for, by a job."""
    canary = visit.form.one("how") == "canary"
    limit = CANARY if canary else MOST_AT_ONCE
    answer = await _replay(visit, fingerprint, limit, dry_run=False)
    told = Counter(letter.outcome.value for letter in answer.replays)
    made = [str(letter.replayed_as) for letter in answer.replays if letter.replayed_as]
    watched = Watched(job_ids=tuple(made))
    said = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in told.items())
    said = f"Of these letters: {said or 'none was open any more'}."
    if not canary and len(answer.replays) == limit:
        others = await _others(visit, fingerprint)
        watched = Watched(walk=str(others.job_id))
        least = "or more " if others.letters_is_at_least else ""
        said += f" A job replays the others, {amount(others.letters)} {least}of them."
    visit.session.watch(fingerprint, watched)
    return visit.done(said)


async def _others(visit: Visit, fingerprint: str) -> ReplayOrdered:
    asked = {"filter": {"fingerprint": fingerprint}, "reason": visit.form.one("reason")}
    return await visit.order(ReplayOrdered, "POST", f"{LETTERS}:replay-all", document=asked)


async def _replay(visit: Visit, fingerprint: str, limit: int, *, dry_run: bool) -> ReplayAnswer:
    asked = {
        "filter": {"fingerprint": fingerprint},
        "limit": limit,
        "reason": visit.form.one("reason") or "tried out in the console",
        "dryRun": dry_run,
    }
    return await visit.order(ReplayAnswer, "POST", f"{LETTERS}:replay", document=asked)


async def _example(visit: Visit, letter_id: str) -> LetterView | None:
    return await visit.look(LetterView, f"{LETTERS}/{letter_id}")


async def _watched(visit: Visit, fingerprint: str) -> Context | None:
    """How those fare that this session replayed, or how far the job is that does."""
    watched = visit.session.watched.get(fingerprint)
    if watched is None:
        return None
    if watched.walk is not None:
        return {"walk": await visit.glance(WholeJob, f"/v1/operator/jobs/{watched.walk}")}
    if not watched.job_ids:
        return None
    asked = {"jobIds": list(watched.job_ids)}
    outcomes = await visit.order(OutcomesView, "POST", "/v1/operator/jobs:outcomes", document=asked)
    return {"jobs": watched.job_ids, "outcomes": outcomes}


def _when(letters: list[LetterView]) -> list[int]:
    """How many of these died in each of equal spans, from the first to the last."""
    moments = [letter.died_at.timestamp() for letter in letters]
    if not moments[1:]:
        return []
    first, length = min(moments), max(max(moments) - min(moments), 1.0)
    steps = Counter(min(STEPS - 1, int((at - first) / length * STEPS)) for at in moments)
    return [steps[step] for step in range(STEPS)]
