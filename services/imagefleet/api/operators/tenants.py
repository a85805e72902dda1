"""Operators and tenants: what each has open, what limits it, and an end to all of its jobs.

An end to what a filter finds of every tenant is ordered here as well.
Holding a tenant back is a pause like any other (`pauses`); creating one is not for this role.
"""

from typing import Annotated, Final, Self

from fastapi import Path, Query, Request
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.bodies import read_json
from imagefleet.api.http.openapi import Routes, described, json_body
from imagefleet.api.http.requests import TOKEN, Tools, ToolsHere, answer
from imagefleet.api.operators.schemas import TARGET, TENANT, who
from imagefleet.api.producers.ranges import PageSize
from imagefleet.api.producers.schemas import Incoming, Reason, RunAt
from imagefleet.api.producers.submitting import draft, fingerprint
from imagefleet.jobs.kinds import CancelJobs, OpenJobs
from imagefleet.jobs.limits import LIMITS, OPEN_JOBS
from imagefleet.jobs.model import TenantId
from imagefleet.jobs.shapes.jobs import OperatorLinks
from imagefleet.jobs.shapes.rules import CancellationView, LimitView, TenantPage, WholeTenantView
from imagefleet.settings.in_force import Overlay
from imagefleet.store.fleet.audit import Act
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.fleet.tenants import (
    DEFAULTS,
    WEIGHT,
    get_tenant,
    list_tenants,
    require_tenant,
    set_limits,
)
from imagefleet.store.jobs.cancelling import Chosen, count_chosen, ring_first
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.letters.replays import READ_CLOCK

HEAVIEST: Final = 100
_KIND: Final = "tenant"


TenantHere = Annotated[str, Path(alias="tenant", pattern=TENANT)]

router = Routes(tags=["tenants"])


class NewLimits(Incoming):
    """Limits to be set; null undoes one."""

    limits: Annotated[dict[str, int | None], Field(min_length=1)]
    reason: Reason

    @model_validator(mode="after")
    def _within_bounds(self) -> Self:
        bounds = {WEIGHT: (1, HEAVIEST)}
        bounds |= {name: (limit.lowest, limit.highest) for name, limit in LIMITS.items()}
        if not self.limits.keys() <= bounds.keys():
            raise PydanticCustomError("unknown_limit", f"limits may be: {', '.join(bounds)}")
        for name, value in self.limits.items():
            lowest, highest = bounds[name]
            if value is not None and not lowest <= value <= highest:
                raise PydanticCustomError("out_of_range", f"{name} is {lowest} to {highest}")
        return self


class NewCancellation(OpenJobs, Incoming):
    """Which open jobs are cancelled: those that all of these let through."""

    submitted_before: RunAt | None = None
    submitted_after: RunAt | None = None
    correlation_id: Annotated[str, Field(pattern=TOKEN)] | None = None
    target: Annotated[str, Field(pattern=TARGET)] | None = None
    dry_run: bool = False
    reason: Reason


class AnyCancellation(NewCancellation):
    """Which open jobs of one tenant, or of every one, are cancelled."""

    tenant: Annotated[TenantId, Field(pattern=TENANT)] | None = None


@router.get("/v1/operator/tenants", **described("List tenants", TenantPage))
async def find_tenants(
    _key: Operator,
    tools: ToolsHere,
    limit: PageSize = 50,
    cursor: Annotated[str, Query(pattern=TENANT)] | None = None,
) -> Response:
    """By name, with what each has open and whether it is paused."""
    async with tools.operating("list_tenants", "tenants") as connection:
        tenants = await list_tenants(connection, after=cursor or "", limit=limit + 1)
    page = tenants[:limit]
    more = page[-1].tenant if len(tenants) > limit else None
    return answer(TenantPage(tenants=page, next_cursor=more))


@router.get("/v1/operator/tenants/{tenant}", **described("Look at a tenant", WholeTenantView, 404))
async def show_tenant(tenant: TenantHere, _key: Operator, tools: ToolsHere) -> Response:
    """What it has open, and every limit: its default, its value, and what is used."""
    async with tools.operating("get_tenant", "tenants") as connection:
        whole = await get_tenant(connection, TenantId(tenant))
    return answer(_whole(whole, tools.live.now))


@router.put(
    "/v1/operator/tenants/{tenant}/limits",
    **described("Set limits of a tenant", WholeTenantView, 404, takes=json_body(NewLimits)),
)
async def put_limits(
    request: Request, tenant: TenantHere, key: Operator, tools: ToolsHere
) -> Response:
    """Set those that are named, or undo them; the others stay."""
    asked = await read_json(request, NewLimits)
    tenant_id, wanted = TenantId(tenant), asked.limits
    async with tools.acting("set_limits", "tenants", request, key) as acting:
        before, after = await set_limits(
            acting.connection, tenant_id, wanted, by=who(key), reason=asked.reason
        )
        await acting.record(
            Act(
                action="limit",
                kind=_KIND,
                name=tenant,
                tenant_id=tenant_id,
                before=before,
                after=after,
                reason=asked.reason,
            )
        )
        whole = await get_tenant(acting.connection, tenant_id)
    return answer(_whole(whole, tools.live.now))


@router.post(
    "/v1/operator/tenants/{tenant}/cancel",
    name="cancel_jobs_of_tenant",
    **described(
        "Cancel a tenant's jobs",
        CancellationView,
        404,
        status=202,
        unchanged=CancellationView,
        takes=json_body(NewCancellation),
    ),
)
async def cancel_all(
    request: Request, tenant: TenantHere, key: Operator, tools: ToolsHere
) -> Response:
    """Submit one job that cancels what is open, or with `dryRun` only say how much that is."""
    asked = await read_json(request, NewCancellation)
    wanted = CancelJobs(**asked.model_dump(exclude={"dry_run"}))
    return await _cancel(request, tools, key, TenantId(tenant), wanted, dry_run=asked.dry_run)


@router.post(
    "/v1/operator/jobs:cancel",
    name="cancel_jobs_of_any_tenant",
    **described(
        "Cancel all open jobs of a filter",
        CancellationView,
        404,
        status=202,
        unchanged=CancellationView,
        takes=json_body(AnyCancellation),
    ),
)
async def cancel_any(request: Request, key: Operator, tools: ToolsHere) -> Response:
    """Submit one job that cancels what is open of every tenant, or of the one that is named."""
    asked = await read_json(request, AnyCancellation)
    wanted = CancelJobs(**asked.model_dump(exclude={"dry_run", "tenant"}))
    return await _cancel(request, tools, key, asked.tenant, wanted, dry_run=asked.dry_run)


async def _cancel(
    request: Request,
    tools: Tools,
    key: ApiKey,
    tenant_id: TenantId | None,
    wanted: CancelJobs,
    *,
    dry_run: bool,
) -> Response:
    """Each order is a walk of its own: one that has begun passes over what was submitted since."""
    async with tools.operating("count_chosen", "jobs") as connection:
        if tenant_id is not None:
            await require_tenant(connection, tenant_id)
        chosen = await count_chosen(connection, tenant_id, wanted)
        now = await connection.fetchval(READ_CLOCK)
    if dry_run:
        return answer(_counted(chosen), 200)
    filters = wanted.model_dump(mode="json", exclude={"reason"}, exclude_defaults=True)
    named = " ".join(f"{name}={value}" for name, value in filters.items())
    if tenant_id is None:  # it may take long to come to the last: what is meant is what is there
        until = min(now, wanted.submitted_before or now)
        wanted = wanted.model_copy(update={"every_tenant": True, "submitted_before": until})
    payload = wanted.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    # Of every tenant it is a job of the operator's own.
    asking = draft(
        request,
        tools.kinds["cancel_jobs"],
        by=key,
        on_behalf_of=tenant_id or key.tenant_id,
        priority=0,
    )
    submission = asking.whole(
        payload, fingerprint=fingerprint("POST /v1/operator/tenants/{tenant}/cancel", payload)
    )
    async with tools.acting("submit_job", "jobs", request, key) as acting:
        submitted = await submit_job(acting.connection, submission)
        await ring_first(acting.connection, submitted.job_id)
        await acting.record(
            Act(
                action="cancel",
                kind=_KIND if tenant_id else "job",
                name=tenant_id or named or "all",
                tenant_id=tenant_id,
                before={"jobs": chosen.jobs, "complete": chosen.complete},
                after={"payload": payload, "ended_by": str(submitted.job_id)},
                reason=wanted.reason,
            )
        )
    tools.ring([(submission, submitted)])
    links = OperatorLinks.from_job(submitted.job_id)
    ordered = {"job_id": submitted.job_id, "status": submitted.state, "links": links}
    return answer(_counted(chosen).model_copy(update=ordered), 202, {"Location": links.self})


def _counted(chosen: Chosen) -> CancellationView:
    return CancellationView(jobs=chosen.jobs, jobs_is_at_least=not chosen.complete)


def _whole(tenant: WholeTenantView, now: Overlay) -> WholeTenantView:
    values = {OPEN_JOBS: tenant.max_open_jobs, WEIGHT: tenant.weight}
    limits = [
        LimitView(
            name=name,
            default=DEFAULTS[name],
            value=value,
            used=tenant.open_jobs if name == OPEN_JOBS else None,
        )
        for name, value in values.items()
    ]
    deviations = {limit.name: limit for limit in tenant.limits}
    # Also what a newer process knows by name and this one does not.
    for name in dict.fromkeys((*LIMITS, *deviations)):
        if name not in values:
            known, limit = deviations.get(name), LIMITS.get(name)
            turned = now.limit_for_all(name)
            default = turned if turned is not None or limit is None else limit.default
            view = known or LimitView(name=name, value=default)
            limits.append(view.model_copy(update={"default": default}))
    return tenant.model_copy(update={"limits": limits})
