"""Operators and what is published: what the edge is owed, and what is swept from S3."""

from datetime import UTC, datetime
from typing import Annotated, Final
from uuid import UUID

import structlog
from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.bodies import read_json
from imagefleet.api.http.openapi import Routes, described, json_body
from imagefleet.api.http.requests import ToolsHere, answer
from imagefleet.api.operators.schemas import who
from imagefleet.api.producers.schemas import Incoming, Reason
from imagefleet.jobs.model import TenantId
from imagefleet.jobs.shapes.edge import EdgeStatus, InvalidationView, OwedInvalidations
from imagefleet.jobs.shapes.sweeping import SweepView, WalkView
from imagefleet.store.edge.reports import (
    get_invalidation,
    list_batches,
    owe_for_operator,
    read_month,
    sample_invalidations,
)
from imagefleet.store.fleet.audit import Act
from imagefleet.store.fleet.elections import find_flusher
from imagefleet.store.images.sweeping import Walk, count_superseded, list_sweep_runs, read_walk

UNFINISHED: Final = 20  # batches that are shown
COMPLETE: Final = 5
MOST_IMAGES: Final = 100


log = structlog.get_logger()
router = Routes(tags=["edge"])


class NewInvalidations(Incoming):
    """Images that the edge is to forget."""

    image_ids: Annotated[list[UUID], Field(min_length=1, max_length=MOST_IMAGES)]
    reason: Reason | None = None


@router.get("/v1/operator/edge", **described("Look at the edge", EdgeStatus))
async def show_edge(_key: Operator, tools: ToolsHere) -> Response:
    """What is owed and sent, what that costs this month, and who tells CloudFront."""
    async with tools.operating("read_edge", "invalidations") as connection:
        sample = await sample_invalidations(connection)
        month = await read_month(connection)
        batches = await list_batches(connection, unfinished=UNFINISHED, complete=COMPLETE)
        flusher = await find_flusher(connection)
    errors = [
        batch.last_error for batch in batches if batch.last_error and batch.completed_at is None
    ]
    return answer(
        EdgeStatus(
            taken_at=datetime.now(UTC),
            owed=sample.owed,
            oldest_owed_for=sample.oldest_age,
            paths_in_flight=sample.in_flight,
            month=month.within(tools.edge_monthly_paths),
            flusher=flusher,
            last_error=errors[-1] if errors else None,
            batches=batches,
        )
    )


@router.post(
    "/v1/operator/edge/invalidations",
    **described(
        "Invalidate images", OwedInvalidations, 404, status=202, takes=json_body(NewInvalidations)
    ),
)
async def owe_invalidations(request: Request, key: Operator, tools: ToolsHere) -> Response:
    """Owe the edge an invalidation of each; where one waits to be sent already, it is that one."""
    asked = await read_json(request, NewInvalidations)
    async with tools.acting("owe_for_operator", "invalidations", request, key) as acting:
        owed = await owe_for_operator(
            acting.connection, asked.image_ids, by=who(key), reason=asked.reason
        )
        tenants = {debt.tenant for debt in owed}
        await acting.record(
            Act(
                action="invalidate",
                kind="image",
                name=str(owed[0].image_id) if len(owed) == 1 else f"{len(owed)} images",
                tenant_id=TenantId(tenants.pop()) if len(tenants) == 1 else None,
                after={str(debt.image_id): debt.invalidation_id for debt in owed},
                reason=asked.reason,
            )
        )
    log.info("invalidation.owed", images=len(owed), by=who(key))
    return answer(OwedInvalidations(invalidations=owed), 202)


@router.get(
    "/v1/operator/edge/invalidations/{invalidation_id}",
    **described("Show an invalidation", InvalidationView, 404),
)
async def show_invalidation(invalidation_id: UUID, _key: Operator, tools: ToolsHere) -> Response:
    """How far it is: owed, sent with a batch, complete."""
    async with tools.operating("get_invalidation", "invalidations") as connection:
        return answer(await get_invalidation(connection, invalidation_id))


MOST_SUPERSEDED: Final = 10_000
RUNS_SHOWN: Final = 10


@router.get("/v1/operator/sweep", **described("Look at what is swept", SweepView))
async def show_sweep(_key: Operator, tools: ToolsHere) -> Response:
    """Maintenance sweeps every minute by itself; this tells what came of it, and what is gone."""
    async with tools.operating("read_walk", "periods") as connection:
        walk = await read_walk(connection)
        superseded = await count_superseded(connection, most=MOST_SUPERSEDED)
        runs = await list_sweep_runs(connection, limit=RUNS_SHOWN)
    missing = () if walk is None else walk.progress.missing
    return answer(
        SweepView(
            superseded=superseded,
            superseded_is_at_least=superseded >= MOST_SUPERSEDED,
            walk=None if walk is None else _walk(walk),
            missing=list(missing),
            missing_in_all=0 if walk is None else walk.progress.all_missing,
            runs=runs,
        )
    )


def _walk(walk: Walk) -> WalkView:
    times = {"started_at": walk.started_at, "finished_at": walk.finished_at}
    place = {} if walk.finished_at is None else {"bucket": None, "after": None}
    return WalkView.of(walk.progress.model_dump() | times | place)
