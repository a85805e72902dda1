"""Now: one sentence that says what is wrong first, what stands behind it, and how fast it goes."""

import asyncio
from collections.abc import Iterable
from typing import Final, Literal

from fastapi import APIRouter
from starlette.responses import Response

from imagefleet.console.concerns import Seen, concerns
from imagefleet.console.showing import Context, Trouble
from imagefleet.console.visits import Visit, VisitHere
from imagefleet.jobs.model import Lane
from imagefleet.jobs.shapes.edge import EdgeStatus
from imagefleet.jobs.shapes.explaining import LaneExplanationView
from imagefleet.jobs.shapes.fleet import Breakers, LedgerView, Pauses, QueueStats, Workers
from imagefleet.jobs.shapes.letters import LetterGroups
from imagefleet.jobs.shapes.rates import LENGTHS, MINUTE, CostsView, RatesView, Span, Spread

RATES: Final = "/v1/operator/rates"
FAULTS_SHOWN: Final = 8

router = APIRouter()


@router.get("/")
async def show_now(visit: VisitHere, span: Span = Span.HOUR) -> Response:
    """How the fleet is."""

    async def look() -> Context:
        asked = {"span": span.value}
        beside = Span.DAY if span is Span.HOUR else Span.HOUR
        seen, rates, costs, others = await asyncio.gather(
            _seen(visit),
            visit.glance(RatesView, RATES, asked),
            visit.glance(CostsView, "/v1/operator/costs", asked),
            visit.glance(RatesView, RATES, {"span": beside.value}),
        )
        charts = {} if isinstance(rates, Trouble) else _charts(rates)
        told = {"seen": seen, "concerns": concerns(seen), "rates": rates, "costs": costs}
        told |= {"beside": others, "beside_span": beside.value}
        return {**told, "charts": charts, "span": span.value}

    return await visit.show("now.html", look)


async def _seen(visit: Visit) -> Seen:
    few = {"limit": str(FAULTS_SHOWN)}
    (queues, breakers, pauses, faults), (ledger, edge, workers), lanes = await asyncio.gather(
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
        asyncio.gather(
            *(
                visit.glance(LaneExplanationView, f"/v1/operator/lanes/{lane}/explain")
                for lane in Lane
            )
        ),
    )
    waits = {lane.lane for lane in queues.lanes if lane.waiting}
    return Seen(
        queues=queues,
        lanes={lane: why for lane, why in zip(Lane, lanes, strict=True) if lane in waits},
        breakers=breakers,
        pauses=pauses,
        faults=faults,
        ledger=ledger,
        edge=edge,
        workers=workers,
    )


def _charts(rates: RatesView) -> Context:
    """What is drawn: up to where it is counted, and nothing where nothing was."""
    points = [point for point in rates.points if point.at < rates.counted_until]
    moments = [point.at.timestamp() for point in points]
    minutes = LENGTHS[rates.step] / MINUTE

    def line(
        label: str, kind: str, values: Iterable[float | None], *, dash: bool = False
    ) -> object:
        return {"label": label, "kind": kind, "values": [*values], "dash": dash}

    jobs = [
        line("over", "run", (point.jobs_a_minute for point in points)),
        line("failed", "bad", (point.failed / minutes for point in points)),
        line("tried again", "warn", (point.retried / minutes for point in points), dash=True),
    ]
    times = [
        line("waits, p99", "warn", (_seconds(point.wait, "p99") for point in points), dash=True),
        line("takes, p50", "ok", (_seconds(point.duration, "p50") for point in points)),
        line("takes, p99", "run", (_seconds(point.duration, "p99") for point in points)),
    ]
    return {
        "jobs": {"x": moments, "series": jobs},
        "times": {"x": moments, "unit": " s", "series": times},
    }


def _seconds(spread: Spread | None, which: Literal["p50", "p99"]) -> float | None:
    if spread is None:
        return None
    return (spread.p50 if which == "p50" else spread.p99).total_seconds()
