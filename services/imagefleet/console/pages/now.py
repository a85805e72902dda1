"""Now: one sentence that says what is wrong first, and what stands behind it."""

import asyncio
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from imagefleet.console.concerns import Seen, concerns
from imagefleet.console.showing import Context
from imagefleet.console.visits import Visit, VisitHere
from imagefleet.jobs.shapes.edge import EdgeStatus
from imagefleet.jobs.shapes.fleet import Breakers, LedgerView, Pauses, QueueStats, Workers
from imagefleet.jobs.shapes.letters import LetterGroups

FAULTS_SHOWN: Final = 8

router = APIRouter()


@router.get("/")
async def show_now(visit: VisitHere) -> Response:
    """How the fleet is."""

    async def look() -> Context:
        seen = await _seen(visit)
        return {"seen": seen, "concerns": concerns(seen)}

    return await visit.show("now.html", look)


async def _seen(visit: Visit) -> Seen:
    few = {"limit": str(FAULTS_SHOWN)}
    (queues, breakers, pauses, faults), (ledger, edge, workers) = await asyncio.gather(
        asyncio.gather(
            visit.look(QueueStats, "/v1/operator/queues"),
            visit.glance(Breakers, "/v1/operator/breakers"),
            visit.glance(Pauses, "/v1/operator/pauses"),
            visit.glance(LetterGroups, "/v1/operator/dead-letters/groups", few),
        ),
        asyncio.gather(
            visit.glance(LedgerView, "/v1/operator/ledger"),
            visit.glance(EdgeStatus, "/v1/operator/edge"),
            visit.glance(Workers, "/v1/operator/workers"),
        ),
    )
    return Seen(
        queues=queues,
        breakers=breakers,
        pauses=pauses,
        faults=faults,
        ledger=ledger,
        edge=edge,
        workers=workers,
    )
