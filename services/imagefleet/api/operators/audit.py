"""Operators and the audit: who did what, and what the fleet did by itself."""

import re
from typing import Annotated, Final
from uuid import UUID

from fastapi import Query
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.openapi import Routes, described
from imagefleet.api.http.requests import ToolsHere, answer
from imagefleet.api.operators.schemas import TENANT
from imagefleet.api.producers.schemas import RunAt
from imagefleet.jobs.model import TenantId
from imagefleet.jobs.shapes.rules import AuditLines
from imagefleet.store.fleet.audit import AuditFilter, list_audit

MOST_ON_A_PAGE: Final = 500
MOST_LINES: Final = 2**63 - 1  # as Postgres counts
WORD: Final = r"^[a-z][a-z_]{0,62}$"
THING: Final = r"^[a-z][a-z_]{0,62}(/[^\x00]{1,600})?$"
ACTOR: Final = r"^[^\x00]{1,255}$"

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


router = Routes(tags=["audit"])


@router.get("/v1/operator/audit", **described("Read the audit", AuditLines, 404))
async def read_audit(
    _key: Operator,
    tools: ToolsHere,
    since: RunAt | None = None,
    until: RunAt | None = None,
    by: Annotated[
        str | None, Query(pattern=ACTOR, description="An actor's name, or the id of a key.")
    ] = None,
    on: Annotated[
        str | None,
        Query(pattern=THING, description="A kind of thing, or one: `job`, `circuit_breaker/s3`."),
    ] = None,
    what: Annotated[str | None, Query(pattern=WORD, description="What was done.")] = None,
    tenant: Annotated[str | None, Query(pattern=TENANT)] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_ON_A_PAGE)] = 100,
    cursor: Annotated[int | None, Query(ge=1, le=MOST_LINES)] = None,
) -> Response:
    """What people changed, and what the fleet did by itself: starts, losses, offices, breakers."""
    is_key = by is not None and _UUID.fullmatch(by) is not None
    kind, _, name = (on or "").partition("/")
    chosen = AuditFilter(
        since=since,
        until=until,
        actor=None if is_key else by,
        key_id=UUID(by) if by is not None and is_key else None,
        action=what,
        kind=kind or None,
        name=name or None,
        tenant_id=None if tenant is None else TenantId(tenant),
    )
    async with tools.operating("list_audit", "audit") as connection:
        page = await list_audit(connection, chosen, after=cursor, limit=limit)
    return answer(page)
