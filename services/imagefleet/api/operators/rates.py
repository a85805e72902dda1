"""Operators and rates: how fast the fleet was, and what its images cost. Nothing reads history."""

from datetime import timedelta
from typing import Annotated, Final

from fastapi import Query
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.openapi import Routes, described
from imagefleet.api.http.requests import ToolsHere, answer
from imagefleet.api.operators.schemas import TYPE
from imagefleet.api.producers.schemas import RunAt
from imagefleet.errors import RequestRejected
from imagefleet.jobs.model import Lane
from imagefleet.jobs.shapes.rates import CostsView, RatesView, Span, Step
from imagefleet.store.fleet.rates import When, read_costs, read_rates

_ONE_OF: Final = "A span ends now: it goes without since and until."


LENGTHS: Final = {
    Span.HOUR: timedelta(hours=1),
    Span.DAY: timedelta(days=1),
    Span.MONTH: timedelta(days=30),
}
STEPS: Final = {Span.HOUR: Step.MINUTE, Span.DAY: Step.HOUR, Span.MONTH: Step.DAY}

router = Routes(tags=["queues"])

OfSpan = Annotated[Span | None, Query(description="Up to now, instead of since and until.")]
InSteps = Annotated[
    Step | None,
    Query(
        description="Of a span its own (minute of an hour, hour of a day, day of a month); else "
        "the shortest that is kept for so long."
    ),
]


@router.get("/v1/operator/rates", **described("Look at how fast it is", RatesView))
async def show_rates(
    _key: Operator,
    tools: ToolsHere,
    span: OfSpan = None,
    since: RunAt | None = None,
    until: RunAt | None = None,
    step: InSteps = None,
    job_type: Annotated[str | None, Query(alias="jobType", pattern=TYPE)] = None,
    lane: Lane | None = None,
) -> Response:
    """Jobs a minute, failures and retries; how long attempts waited and took. Of the last hour."""
    asked = _asked(span, since, until, step, otherwise=Span.HOUR)
    async with tools.operating("read_rates", "rollups") as connection:
        return answer(await read_rates(connection, asked, job_type=job_type, lane=lane))


@router.get("/v1/operator/costs", **described("Look at what images cost", CostsView))
async def show_costs(
    _key: Operator,
    tools: ToolsHere,
    span: OfSpan = None,
    since: RunAt | None = None,
    until: RunAt | None = None,
    step: InSteps = None,
) -> Response:
    """Images published; requests of SQS, writes of S3 and invalidation paths. Of the last day."""
    asked = _asked(span, since, until, step, otherwise=Span.DAY)
    async with tools.operating("read_costs", "rollups") as connection:
        return answer(await read_costs(connection, asked))


def _asked(
    span: Span | None,
    since: RunAt | None,
    until: RunAt | None,
    step: Step | None,
    *,
    otherwise: Span,
) -> When:
    if since is None and until is None:
        chosen = span or otherwise
        return When(span=LENGTHS[chosen], step=step or STEPS[chosen])
    if span is not None:
        raise RequestRejected("invalid_filter", _ONE_OF)
    return When(span=LENGTHS[otherwise], since=since, until=until, step=step)
