"""Operators and what jobs run on: the services behind circuit breakers, and the workers."""

from dataclasses import asdict
from typing import Annotated, Final

import structlog
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.openapi import problems
from imagefleet.api.http.tools import ToolsHere, answer
from imagefleet.api.operators.fleet_schemas import (
    Breakers,
    BreakerView,
    HeldJobView,
    Workers,
    WorkerView,
)
from imagefleet.api.operators.letters import who
from imagefleet.api.operators.schemas import Why
from imagefleet.errors import NotFound
from imagefleet.store.fleet.audit import Act
from imagefleet.store.fleet.breakers import (
    Breaker,
    force_open,
    hold_breaker,
    list_breakers,
    reset_breaker,
)
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.jobs.oversight import HeldJob, WorkerReport, list_workers

Service = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_.-]{0,62}$")]
Everybody = Annotated[
    bool, Query(alias="all", description="Also those that ended within the last day.")
]

_BREAKER: Final = "circuit breaker"
_KIND: Final = "circuit_breaker"

log = structlog.get_logger()

router = APIRouter()


@router.get(
    "/v1/operator/breakers",
    summary="List circuit breakers",
    response_model=Breakers,
    responses=problems(),
)
async def find_breakers(_key: Operator, tools: ToolsHere) -> Response:
    """One for each service that was ever reported or forced."""
    async with tools.operating("list_breakers", "circuit_breakers") as connection:
        found = await list_breakers(connection)
    return answer(
        Breakers(
            breakers=[BreakerView.model_validate(each, from_attributes=True) for each in found]
        )
    )


@router.post(
    "/v1/operator/breakers/{service}/open",
    summary="Force a circuit breaker open",
    response_model=BreakerView,
    responses=problems(),
)
async def open_breaker(
    request: Request, service: Service, key: Operator, tools: ToolsHere, reason: Why = None
) -> Response:
    """Hold back every job that needs the service, until a reset."""
    async with tools.acting("force_open", "circuit_breakers", request, key) as acting:
        await acting.take_turns(_KIND, service)
        before = await hold_breaker(acting.connection, service)
        await force_open(acting.connection, service, by=who(key))
        after = await hold_breaker(acting.connection, service)
        await acting.record(_act("open", service, before, after, reason))
    if before is None or not before.forced:
        _log("breaker.opened", key, after, reason)
    return answer(BreakerView.model_validate(after, from_attributes=True))


@router.post(
    "/v1/operator/breakers/{service}/reset",
    summary="Reset a circuit breaker",
    response_model=BreakerView,
    responses=problems(404),
)
async def close_breaker(
    request: Request, service: Service, key: Operator, tools: ToolsHere, reason: Why = None
) -> Response:
    """Close it and forget its failures; what it held back is due at once."""
    async with tools.acting("reset_breaker", "circuit_breakers", request, key) as acting:
        await acting.take_turns(_KIND, service)
        before = await hold_breaker(acting.connection, service)
        if not await reset_breaker(acting.connection, service, by=who(key)):
            raise NotFound(_BREAKER)
        after = await hold_breaker(acting.connection, service)
        await acting.record(_act("reset", service, before, after, reason))
    if before is not None and before.state != "closed":
        _log("breaker.closed", key, after, reason)
    return answer(BreakerView.model_validate(after, from_attributes=True))


def _log(event: str, key: ApiKey, after: Breaker | None, reason: str | None) -> None:
    """After the commit, beside the lines of workers whose reports open and close breakers."""
    if after is not None:
        last = after.last_error_code
        log.warning(event, service=after.service, by=who(key), reason=reason, last_error=last)


def _act(
    action: str, service: str, before: Breaker | None, after: Breaker | None, reason: str | None
) -> Act:
    return Act(
        action=action,
        kind=_KIND,
        name=service,
        before=None if before is None else asdict(before),
        after=None if after is None else asdict(after),
        reason=reason,
    )


@router.get(
    "/v1/operator/workers",
    summary="List workers",
    response_model=Workers,
    responses=problems(),
)
async def find_workers(
    _key: Operator,
    tools: ToolsHere,
    everybody: Everybody = False,  # noqa: FBT002 - a parameter of the query
) -> Response:
    """Who lives, since when, how long ago it beat, what it holds, and whether it drains."""
    async with tools.operating("list_workers", "workers") as connection:
        found = await list_workers(connection, with_dead=everybody)
    return answer(Workers(workers=[_worker(each) for each in found]))


def _worker(worker: WorkerReport) -> WorkerView:
    fields = {name: getattr(worker, name) for name in WorkerReport.__dataclass_fields__}
    return WorkerView.model_validate(
        fields
        | {
            "lanes": list(worker.lanes),
            "types": list(worker.types),
            "held": [_held(job) for job in worker.held],
        }
    )


def _held(job: HeldJob) -> HeldJobView:
    fields = {name: getattr(job, name) for name in HeldJob.__dataclass_fields__}
    return HeldJobView.model_validate(fields | {"tenant": job.tenant_id, "job_type": job.type})
