"""Operators and pauses: what is held back, by whom and why."""

from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import Query, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.bodies import read_json
from imagefleet.api.http.errors import InvalidRequest
from imagefleet.api.http.openapi import Routes, described, json_body
from imagefleet.api.http.requests import Tools, ToolsHere, answer
from imagefleet.api.operators.schemas import (
    ONE_THING,
    TARGET,
    TENANT,
    NewPause,
    Why,
    fits,
    who,
)
from imagefleet.errors import NotFound
from imagefleet.jobs.faults import Fault
from imagefleet.jobs.model import PauseScope, TenantId
from imagefleet.jobs.shapes.fleet import Pauses, PauseView, Resumed
from imagefleet.store.fleet.audit import Act
from imagefleet.store.fleet.pauses import Pause, find_pause, list_pauses, pause, resume
from imagefleet.store.fleet.tenants import require_tenant

_KIND: Final = "pause"

router = Routes(tags=["pauses"])


@router.get("/v1/operator/pauses", **described("List pauses", Pauses))
async def find_pauses(_key: Operator, tools: ToolsHere) -> Response:
    """Every pause, with how many jobs that it would have held back still run."""
    async with tools.operating("list_pauses", "pauses") as connection:
        pauses = await list_pauses(connection)
    return answer(Pauses(pauses=[_with_known(each, tools) for each in pauses]))


@router.put("/v1/operator/pauses", **described("Pause", PauseView, 404, takes=json_body(NewPause)))
async def put_pause(request: Request, key: Operator, tools: ToolsHere) -> Response:
    """Hold back a target, a tenant, a type, a lane or everything; again, it changes the reason."""
    asked = await read_json(request, NewPause)
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
        named = (asked.scope, asked.name, asked.tenant)
        (view,) = [
            each
            for each in await list_pauses(connection)
            if (each.scope, each.name, each.tenant) == named
        ]
    return answer(_with_known(view, tools))


@router.delete("/v1/operator/pauses", **described("Resume", Resumed, 404))
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
        raise InvalidRequest([Fault(field="scope", problem="one_thing", detail=ONE_THING)])
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
    before: Mapping[str, object] | None,
    after: Mapping[str, object] | None,
    reason: str | None,
) -> Act:
    return Act(
        action=action,
        kind=_KIND,
        name=_named(what),
        tenant_id=TenantId(what.tenant_id) if what.tenant_id else None,
        before=before,
        after=after,
        reason=reason,
    )


def _named(what: Pause) -> str:
    whose = what.tenant_id if what.scope is PauseScope.TENANT else ""
    return " ".join(word for word in (what.scope, whose, what.name) if word)


def _with_known(pause: PauseView, tools: Tools) -> PauseView:
    """Not refused if it is not: workers may have types installed that this API has not."""
    names_a_type = pause.scope is PauseScope.TYPE or (
        pause.scope is PauseScope.TENANT and pause.name is not None
    )
    known = pause.name in tools.kinds if names_a_type else None
    return pause.model_copy(update={"known": known})
