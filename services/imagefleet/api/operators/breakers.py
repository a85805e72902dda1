"""Operators and what jobs run on: the services behind circuit breakers, and the workers."""

from typing import Annotated, Final

import structlog
from fastapi import Path, Query, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.openapi import Routes, described
from imagefleet.api.http.requests import ToolsHere, answer
from imagefleet.api.operators.schemas import Why, who
from imagefleet.errors import NotFound
from imagefleet.jobs.shapes.fleet import Breakers, BreakerView, Workers
from imagefleet.store.fleet.audit import Act, Acting
from imagefleet.store.fleet.breakers import (
    find_breaker,
    force_open,
    hold_breaker,
    list_breakers,
    reset_breaker,
)
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.fleet.workers import list_workers

Service = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_.-]{0,62}$")]
Everybody = Annotated[
    bool, Query(alias="all", description="Also those that ended within the last day.")
]

_BREAKER: Final = "circuit breaker"
_KIND: Final = "circuit_breaker"

log = structlog.get_logger()

router = Routes(tags=["fleet"])


@router.get("/v1/operator/breakers", **described("List circuit breakers", Breakers))
async def find_breakers(_key: Operator, tools: ToolsHere) -> Response:
    """One for each service that was ever reported or forced."""
    async with tools.operating("list_breakers", "circuit_breakers") as connection:
        breakers = await list_breakers(connection)
    return answer(Breakers(breakers=breakers))


@router.post(
    "/v1/operator/breakers/{service}/open", **described("Force a circuit breaker open", BreakerView)
)
async def open_breaker(
    request: Request, service: Service, key: Operator, tools: ToolsHere, reason: Why = None
) -> Response:
    """Hold back every job that needs the service, until a reset."""
    async with tools.acting("force_open", "circuit_breakers", request, key) as acting:
        await acting.take_turns(_KIND, service)
        before = await hold_breaker(acting.connection, service)
        await force_open(acting.connection, service, by=who(key))
        after = await _recorded(acting, "open", service, before, reason)
    if before is None or not before.forced:
        _log("breaker.opened", key, after, reason)
    return answer(after)


@router.post(
    "/v1/operator/breakers/{service}/reset",
    name="reset_breaker",
    **described("Reset a circuit breaker", BreakerView, 404),
)
async def close_breaker(
    request: Request, service: Service, key: Operator, tools: ToolsHere, reason: Why = None
) -> Response:
    """Close it and forget its failures; what it held back is due at once."""
    async with tools.acting("reset_breaker", "circuit_breakers", request, key) as acting:
        await acting.take_turns(_KIND, service)
        before = await hold_breaker(acting.connection, service)
        await reset_breaker(acting.connection, service, by=who(key))
        after = await _recorded(acting, "reset", service, before, reason)
    if before is not None and before.state != "closed":
        _log("breaker.closed", key, after, reason)
    return answer(after)


async def _recorded(
    acting: Acting, action: str, service: str, before: BreakerView | None, reason: str | None
) -> BreakerView:
    """What became of it; not found where there is none."""
    after = await find_breaker(acting.connection, service)
    if after is None:
        raise NotFound(_BREAKER)
    await acting.record(
        Act(
            action=action,
            kind=_KIND,
            name=service,
            before=None if before is None else before.model_dump(),
            after=after.model_dump(),
            reason=reason,
        )
    )
    return after


def _log(event: str, key: ApiKey, after: BreakerView, reason: str | None) -> None:
    """After the commit, beside the lines of workers whose reports open and close breakers."""
    last = after.last_error_code
    log.warning(event, service=after.service, by=who(key), reason=reason, last_error=last)


@router.get("/v1/operator/workers", **described("List workers", Workers))
async def find_workers(
    _key: Operator,
    tools: ToolsHere,
    everybody: Everybody = False,  # noqa: FBT002 - a parameter of the query
) -> Response:
    """Who lives, since when, how long ago it beat, what it holds, and whether it drains."""
    async with tools.operating("list_workers", "workers") as connection:
        workers = await list_workers(connection, with_dead=everybody)
    return answer(Workers(workers=workers))
