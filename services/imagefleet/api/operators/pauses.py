"""Operators and pauses: what is held back, by whom and why."""

from dataclasses import asdict
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.errors import InvalidRequest
from imagefleet.api.http.intake import read_json
from imagefleet.api.http.openapi import json_body, problems
from imagefleet.api.http.tools import Tools, ToolsHere, answer
from imagefleet.api.operators.fleet_schemas import NewPause, Pauses, PauseView, Resumed, fits
from imagefleet.api.operators.letters import who
from imagefleet.api.operators.schemas import TARGET, TENANT, Why
from imagefleet.errors import NotFound
from imagefleet.jobs.model import TenantId
from imagefleet.jobs.shapes.problems import Fault
from imagefleet.store.fleet.audit import Act
from imagefleet.store.fleet.control import (
    Pause,
    PauseScope,
    PauseTerms,
    StandingPause,
    find_pause,
    list_pauses,
    pause,
    resume,
)
from imagefleet.store.fleet.tenants import require_tenant

MOST_BYTES: Final = 16_384  # of the JSON
_KIND: Final = "pause"


router = APIRouter()


@router.get(
    "/v1/operator/pauses",
    summary="List pauses",
    response_model=Pauses,
    responses=problems(),
)
async def find_pauses(_key: Operator, tools: ToolsHere) -> Response:
    """Every pause, with how many jobs that it would have held back still run."""
    async with tools.operating("list_pauses", "pauses") as connection:
        found = await list_pauses(connection)
    return answer(Pauses(pauses=[_pause(each, tools) for each in found]))


@router.put(
    "/v1/operator/pauses",
    summary="Pause",
    response_model=PauseView,
    responses=problems(400, 404, 408, 413, 415),
    openapi_extra=json_body(NewPause),
)
async def put_pause(request: Request, key: Operator, tools: ToolsHere) -> Response:
    """Hold back a target, a tenant, a type, a lane or everything; again, it changes the reason."""
    asked = await read_json(request, NewPause, most_bytes=MOST_BYTES)
    what = Pause(scope=asked.scope, name=asked.name or "", tenant_id=asked.tenant or "")
    async with tools.acting("pause", "pauses", request, key) as acting:
        connection = acting.connection
        if what.scope is PauseScope.TENANT:
            await require_tenant(connection, TenantId(what.tenant_id))
        await acting.take_turns(_KIND, _named(what))
        before = await find_pause(connection, what)
        await pause(connection, what, by=who(key), reason=asked.reason, refuse_new=asked.refuse_new)
        after = await find_pause(connection, what)
        await acting.record(_act("pause", what, before, after, asked.reason))
        (found,) = [each for each in await list_pauses(connection) if each.what == what]
    return answer(_pause(found, tools))


@router.delete(
    "/v1/operator/pauses",
    summary="Resume",
    response_model=Resumed,
    responses=problems(404),
)
async def delete_pause(
    request: Request,
    key: Operator,
    tools: ToolsHere,
    scope: PauseScope,
    name: Annotated[str | None, Query(pattern=TARGET)] = None,
    tenant: Annotated[str | None, Query(pattern=TENANT)] = None,
    reason: Why = None,
) -> Response:
    """Lift a pause; what it held back is announced within a second."""
    if not fits(scope, name, tenant):
        raise InvalidRequest([Fault(field="scope", problem="value_error")])
    what = Pause(scope=scope, name=name or "", tenant_id=tenant or "")
    async with tools.acting("resume", "pauses", request, key) as acting:
        await acting.take_turns(_KIND, _named(what))
        before = await find_pause(acting.connection, what)
        if not await resume(acting.connection, what):
            raise NotFound(_KIND)
        await acting.record(_act("resume", what, before, None, reason))
    return answer(Resumed(scope=scope, name=name, tenant=tenant))


def _act(
    action: str,
    what: Pause,
    before: PauseTerms | None,
    after: PauseTerms | None,
    reason: str | None,
) -> Act:
    return Act(
        action=action,
        kind=_KIND,
        name=_named(what),
        tenant_id=TenantId(what.tenant_id) if what.tenant_id else None,
        before=None if before is None else asdict(before),
        after=None if after is None else asdict(after),
        reason=reason,
    )


def _named(what: Pause) -> str:
    whose = what.tenant_id if what.scope is PauseScope.TENANT else ""
    return " ".join(word for word in (what.scope, whose, what.name) if word)


def _is_of_a_type(what: Pause) -> bool:
    return what.scope is PauseScope.TYPE or (what.scope is PauseScope.TENANT and what.name != "")


def _pause(standing: StandingPause, tools: Tools) -> PauseView:
    what = standing.what
    return PauseView(
        scope=what.scope,
        name=what.name or None,
        tenant=what.tenant_id or None,
        refuse_new=standing.refuse_new,
        reason=standing.reason,
        paused_by=standing.paused_by,
        paused_at=standing.paused_at,
        running=standing.running,
        # Not refused: workers may have types installed that this API has not.
        known=what.name in tools.kinds if _is_of_a_type(what) else None,
    )
