"""Operators and S3: what sweeping has removed lately, what waits for it, and what is missing."""

from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.openapi import problems
from imagefleet.api.http.tools import ToolsHere, answer
from imagefleet.jobs.shapes.edge import MissingView, SweepView, WalkView
from imagefleet.store.images.superseded import count_superseded
from imagefleet.store.images.sweeping import Walk, list_sweep_runs, read_walk

MOST_SUPERSEDED: Final = 10_000
RUNS_SHOWN: Final = 10


router = APIRouter()


@router.get(
    "/v1/operator/sweep",
    summary="Look at what is swept",
    response_model=SweepView,
    responses=problems(),
)
async def show_sweep(_key: Operator, tools: ToolsHere) -> Response:
    """Maintenance sweeps every minute by itself; this tells what came of it, and what is gone."""
    async with tools.operating("read_walk", "periods") as connection:
        walk = await read_walk(connection)
        superseded = await count_superseded(connection, most=MOST_SUPERSEDED)
        runs = await list_sweep_runs(connection, limit=RUNS_SHOWN)
    found = () if walk is None else walk.progress.missing
    return answer(
        SweepView(
            superseded=superseded,
            superseded_is_at_least=superseded >= MOST_SUPERSEDED,
            walk=None if walk is None else _walk(walk),
            missing=[MissingView.of(one.model_dump()) for one in found],
            missing_in_all=0 if walk is None else walk.progress.all_missing,
            runs=runs,
        )
    )


def _walk(walk: Walk) -> WalkView:
    times = {"started_at": walk.started_at, "finished_at": walk.finished_at}
    place = {} if walk.finished_at is None else {"bucket": None, "after": None}
    return WalkView.of(walk.progress.model_dump() | times | place)
