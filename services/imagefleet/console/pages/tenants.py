"""Tenants: what each has open, what it may, and what is done about one that is too much."""

import asyncio
from collections import Counter
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Path
from starlette.responses import Response

from imagefleet.console.showing import Context, Trouble
from imagefleet.console.visits import VisitHere
from imagefleet.console.wording import amount, there
from imagefleet.errors import RequestRejected
from imagefleet.jobs.model import JobState, Lane
from imagefleet.jobs.shapes.fleet import Pauses, QueueingView, QueueStats
from imagefleet.jobs.shapes.jobs import OverseenJobPage
from imagefleet.jobs.shapes.letters import LetterGroups
from imagefleet.jobs.shapes.rules import TenantPage, WholeTenantView

TENANTS: Final = "/v1/operator/tenants"
GROUPS: Final = "/v1/operator/dead-letters/groups"
SHOWN: Final = "50"
JOBS_SHOWN: Final = "10"
FAULTS_SHOWN: Final = "10"
MOST_FAULTS: Final = "100"  # of which letters are counted, the most frequent; by tenant

Tenant = Annotated[str, Path(pattern=r"^[^\x00/]{1,64}$")]

router = APIRouter()


@router.get("/tenants")
async def show_tenants(visit: VisitHere, cursor: str = "") -> Response:
    """Who waits longest, then all of them by name."""

    async def look() -> Context:
        asked = {"limit": SHOWN, "cursor": cursor or None}
        page, queues, faults = await asyncio.gather(
            visit.look(TenantPage, TENANTS, asked),
            visit.glance(QueueStats, "/v1/operator/queues"),
            visit.glance(LetterGroups, GROUPS, {"byTenant": "true", "limit": MOST_FAULTS}),
        )
        more = page.next_cursor
        return {
            "tenants": page.tenants,
            "ranked": _ranked(queues),
            "queues": queues,
            "failed": _failed(faults),
            "older": more and there("/tenants", {"cursor": more}),
            "newest": cursor and "/tenants",
        }

    return await visit.show("tenants.html", look)


@router.get("/tenants/{tenant}")
async def show_tenant(visit: VisitHere, tenant: Tenant) -> Response:
    """One: what it has open, its faults, its limits."""

    async def look() -> Context:
        of_it = {"tenant": tenant}
        whole, queues, faults, pauses, jobs = await asyncio.gather(
            visit.look(WholeTenantView, _path(tenant)),
            visit.glance(QueueStats, "/v1/operator/queues"),
            visit.glance(LetterGroups, GROUPS, of_it | {"limit": FAULTS_SHOWN}),
            visit.glance(Pauses, "/v1/operator/pauses"),
            visit.glance(OverseenJobPage, "/v1/operator/jobs", of_it | {"limit": JOBS_SHOWN}),
        )
        standing = pauses.pauses if isinstance(pauses, Pauses) else []
        return {
            "tenant": whole,
            "queued": _ranked(queues).get(tenant),
            "faults": faults,
            "pauses": [pause for pause in standing if pause.tenant == tenant],
            "jobs": jobs,
            "lanes": [*Lane],
            "states": [JobState.QUEUED, JobState.PROCESSING, JobState.FAILED_RETRYABLE],
        }

    return await visit.show("tenant.html", look)


@router.post("/tenants/{tenant}/limit")
async def limit(visit: VisitHere, tenant: Tenant) -> Response:
    """Set a limit of its own, or undo it."""
    name, written = visit.form.one("name"), visit.form.one("value")
    value = None if visit.form.one("how") == "reset" else _number(written)
    document = {"limits": {name: value}, "reason": visit.form.one("reason")}
    await visit.ask("PUT", f"{_path(tenant)}/limits", document=document)
    became = "has its default again" if value is None else f"is {amount(value)}"
    return visit.done(f"{name} of {tenant} {became}, within seconds.")


def _ranked(queues: QueueStats | Trouble) -> dict[str, QueueingView]:
    """Those that wait or run, who waits longest first."""
    if isinstance(queues, Trouble):
        return {}
    return {queued.tenant: queued for queued in queues.tenants}


def _failed(faults: LetterGroups | Trouble) -> Counter[str] | Trouble:
    """How many letters nobody has seen to, by tenant."""
    if isinstance(faults, Trouble):
        return faults
    counted = Counter[str]()
    for fault in faults.groups:
        counted[fault.tenant or ""] += fault.letters
    return counted


def _path(tenant: str) -> str:
    return f"{TENANTS}/{quote(tenant, safe='')}"


def _number(written: str) -> int:
    digits = written.replace(",", "").replace("_", "").replace(" ", "")
    if not digits.isdecimal():
        raise RequestRejected("no_number", "A limit is a whole number. Nothing was changed.")
    return int(digits)
