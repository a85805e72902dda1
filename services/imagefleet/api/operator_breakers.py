"""Operators and what jobs run on: the services behind circuit breakers, and the workers."""

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Query
from starlette.responses import Response

from imagefleet.api.auth import Operator
from imagefleet.api.fleet_schemas import Breakers, BreakerView, HeldJobView, Workers, WorkerView
from imagefleet.api.openapi import problems
from imagefleet.api.operator_letters import who
from imagefleet.api.operator_schemas import shown
from imagefleet.api.tools import Tools, tools_of
from imagefleet.api.views import answer
from imagefleet.errors import NotFound
from imagefleet.store.breakers import Breaker, force_open, list_breakers, reset_breaker
from imagefleet.store.database import Connection
from imagefleet.store.oversight import HeldJob, WorkerReport, list_workers

ToolsHere = Annotated[Tools, Depends(tools_of)]
Service = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_.-]{0,62}$")]
Everybody = Annotated[
    bool, Query(alias="all", description="Also those that ended within the last day.")
]

_BREAKER: Final = "circuit breaker"

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
    return answer(Breakers(breakers=[shown(BreakerView, each) for each in found]))


@router.post(
    "/v1/operator/breakers/{service}/open",
    summary="Force a circuit breaker open",
    response_model=BreakerView,
    responses=problems(),
)
async def open_breaker(service: Service, key: Operator, tools: ToolsHere) -> Response:
    """Hold back every job that needs the service, until a reset."""
    async with tools.operating("force_open", "circuit_breakers") as connection:
        await force_open(connection, service, by=who(key))
        found = await _breaker(connection, service)
    return answer(shown(BreakerView, found))


@router.post(
    "/v1/operator/breakers/{service}/reset",
    summary="Reset a circuit breaker",
    response_model=BreakerView,
    responses=problems(404),
)
async def close_breaker(service: Service, key: Operator, tools: ToolsHere) -> Response:
    """Close it and forget its failures; what it held back is due at once."""
    async with tools.operating("reset_breaker", "circuit_breakers") as connection:
        if not await reset_breaker(connection, service, by=who(key)):
            raise NotFound(_BREAKER)
        found = await _breaker(connection, service)
    return answer(shown(BreakerView, found))


async def _breaker(connection: Connection, service: str) -> Breaker:
    return next(each for each in await list_breakers(connection) if each.service == service)


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
