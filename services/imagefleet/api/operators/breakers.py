"""Operators and what jobs run on: the services behind circuit breakers, and the workers."""

from typing import Annotated, Final
from uuid import UUID

import structlog
from fastapi import Path, Query, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.bodies import read_json
from imagefleet.api.http.openapi import Routes, described, json_body
from imagefleet.api.http.requests import ToolsHere, answer
from imagefleet.api.operators.schemas import Because, Why, who
from imagefleet.errors import NotFound
from imagefleet.jobs.model import WorkerId
from imagefleet.jobs.shapes.fleet import Breakers, BreakerView, Workers, WorkerView
from imagefleet.store.database import Connection
from imagefleet.store.fleet.audit import Act, Acting
from imagefleet.store.fleet.breakers import (
    find_breaker,
    force_open,
    hold_breaker,
    list_breakers,
    reset_breaker,
)
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.fleet.workers import list_workers, request_drain

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


@router.post(
    "/v1/operator/workers/{worker_id}/drain",
    name="drain_worker",
    **described("Drain a worker", WorkerView, 404, takes=json_body(Because)),
)
async def drain(request: Request, worker_id: UUID, key: Operator, tools: ToolsHere) -> Response:
    """Let it end what it has, and itself, as SIGTERM does; its next beat tells it so."""
    asked = await read_json(request, Because)
    this = WorkerId(worker_id)
    async with tools.acting("request_drain", "workers", request, key) as acting:
        before = await _worker(acting.connection, this)
        requested = await request_drain(acting.connection, this)
        after = await _worker(acting.connection, this)
        if requested:
            await acting.record(
                Act(
                    action="drain",
                    kind="worker",
                    name=str(worker_id),
                    before=_what_it_did(before),
                    after=_what_it_did(after),
                    reason=asked.reason,
                )
            )
        else:
            acting.found_nothing()
    return answer(after)


async def _worker(connection: Connection, worker_id: WorkerId) -> WorkerView:
    """It, if it lives or ended within a day."""
    workers = await list_workers(connection, with_dead=True, worker_id=worker_id)
    if not workers:
        raise NotFound("worker")
    return workers[0]


def _what_it_did(worker: WorkerView) -> dict[str, object]:
    return {
        "host": worker.host,
        "pid": worker.pid,
        "held": len(worker.held),
        "drain_requested_at": worker.drain_requested_at,
    }
