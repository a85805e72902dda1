"""Operators and S3: what sweeping has removed lately, what waits for it, and what is missing."""

from datetime import datetime
from typing import Final
from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.openapi import problems
from imagefleet.api.http.tools import ToolsHere, answer
from imagefleet.jobs.images import Missing
from imagefleet.jobs.shapes.shape import Shape
from imagefleet.store.images.walks import (
    SweepRun,
    Walk,
    count_superseded,
    list_sweep_runs,
    read_walk,
)

MOST_SUPERSEDED: Final = 10_000
RUNS_SHOWN: Final = 10


router = APIRouter()


class MissingView(Shape):
    """An object that a row names and S3 did not have; `reprocess` is whether that makes it anew."""

    bucket: str
    key: str
    tenant: str
    image_id: UUID
    found_at: datetime
    reprocess: bool


class WalkView(Shape):
    """A walk through both buckets; `bucket` and `after` are how far it is, while it goes on."""

    started_at: datetime
    finished_at: datetime | None = None
    bucket: str | None = None
    after: str | None = None
    listed: int
    litter: int
    litter_bytes: int
    swept: int
    swept_bytes: int
    unknown: int
    held_back: int


class SweepRunView(Shape):
    """One period in which a maintenance process swept; the numbers are there once it was over."""

    period_start: datetime
    started_at: datetime
    finished_at: datetime | None = None
    revisions: int | None = None
    uploads: int | None = None
    listed: int | None = None
    objects: int | None = None
    bytes: int | None = None


class SweepView(Shape):
    """What the newest walk has found, what the last periods removed, and what waits."""

    superseded: int
    superseded_is_at_least: bool
    walk: WalkView | None = None
    missing: list[MissingView]
    missing_in_all: int
    runs: list[SweepRunView]


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
            missing=[_missing(one) for one in found],
            missing_in_all=0 if walk is None else walk.progress.all_missing,
            runs=[_run(one) for one in runs],
        )
    )


def _walk(walk: Walk) -> WalkView:
    view = WalkView.model_validate(walk.progress.model_dump() | _times(walk))
    if walk.finished_at is None:
        return view
    return view.model_copy(update={"bucket": None, "after": None})


def _times(walk: Walk) -> dict[str, object]:
    return {"started_at": walk.started_at, "finished_at": walk.finished_at}


def _missing(one: Missing) -> MissingView:
    return MissingView.model_validate(
        one.model_dump() | {"tenant": one.tenant_id}, from_attributes=True
    )


def _run(run: SweepRun) -> SweepRunView:
    told = run.report or {}
    numbers = {
        name: told[name]
        for name in ("revisions", "uploads", "listed", "objects", "bytes")
        if isinstance(told.get(name), int)
    }
    times = {name: getattr(run, name) for name in ("period_start", "started_at", "finished_at")}
    return SweepRunView.model_validate(times | numbers)
