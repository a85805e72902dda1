"""Jobs: found by what is known of them; a few that were chosen, or all of a kind, are ended."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from imagefleet.console.showing import Context
from imagefleet.console.visits import Visit, VisitHere
from imagefleet.console.wording import amount, there
from imagefleet.errors import FleetError, RequestRejected
from imagefleet.jobs.model import JobState
from imagefleet.jobs.shapes.jobs import OrderedJob, OverseenJobPage, RetryNow
from imagefleet.jobs.shapes.letters import ReplayAnswer, ReplayOrdered
from imagefleet.jobs.shapes.rules import CancellationView

JOBS: Final = "/v1/operator/jobs"
SHOWN: Final = "50"
OF_LETTERS: Final = {"tenant": "tenant", "type": "jobType", "code": "reason"}
AT_ONCE: Final = 8  # requests of one order; the API counts them for the key

router = APIRouter()


class Asked(BaseModel):
    """What a reader looks for; each by its name in the address."""

    model_config = ConfigDict(frozen=True)

    id: str = ""
    status: str = ""
    type: str = ""
    tenant: str = ""
    code: str = ""
    target: str = ""
    correlation: str = ""
    after: str = ""
    before: str = ""

    def parameters(self) -> dict[str, str | None]:
        """As the API takes them."""
        asked = {
            "idPrefix": self.id,
            "status": self.status,
            "jobType": self.type,
            "tenant": self.tenant,
            "code": self.code,
            "target": self.target,
            "correlationId": self.correlation,
            "createdAfter": _moment(self.after),
            "createdBefore": _moment(self.before),
        }
        return {name: value or None for name, value in asked.items()}

    @property
    def may_replay(self) -> bool:
        """Whether it asks for what failed, and for nothing that is not known of dead letters."""
        asked = {name for name, value in self.model_dump().items() if value}
        return self.status == JobState.FAILED and asked <= {"status", *OF_LETTERS}

    def letters(self) -> dict[str, str]:
        """As an order to replay takes them."""
        chosen = {name: getattr(self, field) for field, name in OF_LETTERS.items()}
        return {name: value for name, value in chosen.items() if value}

    def order(self) -> dict[str, object]:
        """As an order to cancel takes them."""
        if self.id or not any(self.model_dump().values()):
            sentence = "Filter by something else than an id first. Nothing was done."
            raise RequestRejected("no_filter", sentence)
        asked = {
            "tenant": self.tenant,
            "jobType": self.type,
            "status": self.status,
            "code": self.code,
            "target": self.target,
            "correlationId": self.correlation,
            "submittedAfter": _moment(self.after),
            "submittedBefore": _moment(self.before),
        }
        return {name: value for name, value in asked.items() if value}


AskedHere = Annotated[Asked, Depends(Asked)]


@router.get("/jobs")
async def show_jobs(visit: VisitHere, asked: AskedHere, cursor: str = "") -> Response:
    """The newest first, those that every filter lets through."""

    async def look() -> Context:
        fields = asked.model_dump()
        parameters = asked.parameters() | {"limit": SHOWN, "cursor": cursor or None}
        page = await visit.look(OverseenJobPage, JOBS, parameters)
        more = page.next_cursor
        return {
            "jobs": page.jobs,
            "asked": fields,
            "filtered": any(fields.values()),
            "may_replay": asked.may_replay,
            "is_open": asked.status not in {JobState.COMPLETED, JobState.FAILED} and not asked.id,
            "older": more and there("/jobs", fields | {"cursor": more}),
            "newest": cursor and there("/jobs", fields),
            "states": [*JobState],
            "query": there("", fields),
        }

    return await visit.show("jobs.html", look)


@router.post("/jobs/chosen")
async def order_chosen(visit: VisitHere) -> Response:
    """Cancel, fail or ring those whose boxes were ticked."""
    ids = [UUID(text) for text in visit.form.get("job", [])]
    how, reason = visit.form.one("how"), visit.form.one("reason")

    async def end(job_id: UUID) -> bool:
        path, because = f"{JOBS}/{job_id}/{how}", {"reason": reason}
        ordered = await visit.order(OrderedJob, "POST", path, document=because)
        return ordered.job_id != job_id

    async def ring(job_id: UUID) -> bool:
        path = f"{JOBS}/{job_id}/retry-now"
        return (await visit.order(RetryNow, "POST", path, {"reason": reason or None})).rung

    async def replay(job_id: UUID) -> bool:
        path, one = "/v1/operator/dead-letters:replay", {"ids": [str(job_id)], "reason": reason}
        answer = await visit.order(ReplayAnswer, "POST", path, document=one)
        return any(letter.replayed_as for letter in answer.replays)

    match how:
        case "replay":
            order, told = replay, "are replayed"
        case "cancel":
            order, told = end, "are being cancelled"
        case "fail":
            order, told = end, "are being failed"
        case _:
            order, told = ring, "are due now"
    done, refused = await _each(ids, order)
    others = len(ids) - done - len(refused)
    rest = f" {amount(others)} had nothing to be done about." if others else ""
    why = f" {amount(len(refused))} were refused: {refused[0]}" if refused else ""
    return visit.done(f"{amount(done)} of {amount(len(ids))} {told}.{rest}{why}")


@router.post("/jobs/all/count")
async def count_all(visit: VisitHere, asked: AskedHere) -> Response:
    """How many an order by these filters would find; nothing is done."""
    counted = await _cancel(visit, asked, dry_run=True)
    return visit.part("counted.html", "counted", {"counted": counted})


@router.post("/jobs/all/cancel")
async def cancel_all(visit: VisitHere, asked: AskedHere) -> Response:
    """Cancel all that these filters let through, by one job."""
    ordered = await _cancel(visit, asked, dry_run=False)
    found = f"{amount(ordered.jobs)} jobs{' or more' if ordered.jobs_is_at_least else ''}"
    return visit.done(f"A job of its own cancels {found}.", f"/jobs/{ordered.job_id}")


@router.post("/jobs/all/count-replay")
async def count_failed(visit: VisitHere, asked: AskedHere) -> Response:
    """How many failures an order to replay by these filters would find; nothing is done."""
    counted = await _replay(visit, asked, dry_run=True)
    return visit.part("counted.html", "replayed", {"counted": counted})


@router.post("/jobs/all/replay")
async def replay_all(visit: VisitHere, asked: AskedHere) -> Response:
    """Replay all that failed and these filters let through, by one job."""
    ordered = await _replay(visit, asked, dry_run=False)
    found = f"{amount(ordered.letters)}{' or more' if ordered.letters_is_at_least else ''}"
    return visit.done(f"A job of its own replays {found} failed jobs.", f"/jobs/{ordered.job_id}")


async def _replay(visit: Visit, asked: Asked, *, dry_run: bool) -> ReplayOrdered:
    chosen = asked.letters()
    if not chosen:
        sentence = "Filter by a tenant, a type or a failure code first. Nothing was done."
        raise RequestRejected("no_filter", sentence)
    because = visit.form.one("reason") or ("counted in the console" if dry_run else "")
    document = {"filter": chosen, "reason": because, "dryRun": dry_run}
    path = "/v1/operator/dead-letters:replay-all"
    return await visit.order(ReplayOrdered, "POST", path, document=document)


async def _cancel(visit: Visit, asked: Asked, *, dry_run: bool) -> CancellationView:
    """By the filters of the list, and what the form itself asks for."""
    more = {"jobType": visit.form.one("type"), "lane": visit.form.one("lane")}
    document = asked.order() | {name: value for name, value in more.items() if value}
    because = visit.form.one("reason") or ("counted in the console" if dry_run else "")
    document |= {"reason": because, "dryRun": dry_run}
    return await visit.order(CancellationView, "POST", f"{JOBS}:cancel", document=document)


async def _each(ids: list[UUID], order: Callable[[UUID], Awaitable[bool]]) -> tuple[int, list[str]]:
    """Order it of each, a few at a time; how many it was done to, and why not to others."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one_by_one(job_id: UUID) -> bool | str:
        async with turns:
            try:
                return await order(job_id)
            except FleetError as error:
                return error.public_message

    answers = await asyncio.gather(*(one_by_one(job_id) for job_id in ids))
    return answers.count(True), [text for text in answers if isinstance(text, str)]


def _moment(written: str) -> str:
    """A day, or a minute of it, as a browser's field has it; in UTC, as the page says."""
    if not written:
        return ""
    try:
        return datetime.fromisoformat(written).replace(tzinfo=UTC).isoformat()
    except ValueError:
        return written
