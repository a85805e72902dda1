"""The edge and what is stored: what CloudFront is owed, what is swept, pruned, and missing."""

import asyncio
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from imagefleet.console.showing import Context
from imagefleet.console.visits import VisitHere
from imagefleet.console.wording import amount
from imagefleet.errors import RequestRejected
from imagefleet.jobs.shapes.edge import EdgeStatus, OwedInvalidations
from imagefleet.jobs.shapes.fleet import PruneView
from imagefleet.jobs.shapes.sweeping import SweepView

RUNS_SHOWN: Final = 8

router = APIRouter()


@router.get("/edge")
async def show_edge(visit: VisitHere) -> Response:
    """How far the edge agrees, and what was removed."""

    async def look() -> Context:
        edge, sweep, prune = await asyncio.gather(
            visit.glance(EdgeStatus, "/v1/operator/edge"),
            visit.glance(SweepView, "/v1/operator/sweep"),
            visit.glance(PruneView, "/v1/operator/prune"),
        )
        return {"edge": edge, "sweep": sweep, "prune": prune, "runs_shown": RUNS_SHOWN}

    return await visit.show("edge.html", look)


@router.post("/edge/invalidate")
async def invalidate(visit: VisitHere) -> Response:
    """Owe the edge an invalidation of each of these images."""
    ids = visit.form.one("images").replace(",", " ").split()
    if not ids:
        raise RequestRejected("no_image", "No image was named. Nothing was changed.")
    owed = await visit.order(
        OwedInvalidations,
        "POST",
        "/v1/operator/edge/invalidations",
        document={"imageIds": ids, "reason": visit.form.one("reason") or None},
    )
    many = len(owed.invalidations)
    whose = "1 image" if many == 1 else f"{amount(many)} images"
    return visit.done(f"CloudFront is told to forget {whose} within seconds.")
