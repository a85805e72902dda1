"""`imagefleet queue rates` and `costs`: how fast the fleet was, and what its images cost."""

from collections.abc import Iterator
from operator import methodcaller
from typing import Annotated, Final

import typer

from imagefleet.cli.listing import Since, Until, instant
from imagefleet.cli.output import Cell, Columns, Part, Table, at, section, show
from imagefleet.cli.progress import keep_showing
from imagefleet.cli.verbs import Every, Json, OfLane, OfType, Watch, ask
from imagefleet.client.api import Document
from imagefleet.jobs.shapes.rates import Span, Step

RATES: Final = "/v1/operator/rates"
COSTS: Final = "/v1/operator/costs"


OfSpan = Annotated[Span | None, typer.Option("--span", help="So long, up to now.")]
InSteps = Annotated[
    Step | None, typer.Option("--step", help="A line for each; else as fits the time.")
]


def rates(
    span: OfSpan = None,
    since: Since = None,
    until: Until = None,
    step: InSteps = None,
    job_type: OfType = None,
    lane: OfLane = None,
    watch: Watch = False,
    every: Every = 2,
    as_json: Json = False,
) -> None:
    """Show how fast jobs went: how many a minute, failures, how long they waited and took.

    Of the last hour, unless --span or --since says otherwise. Times are in seconds: half of the
    attempts took at most p50, one in a hundred longer than p99.

    For example:

        imagefleet queue rates
        imagefleet queue rates --span day --type process_image
        imagefleet queue rates --since 3h --json | jq .totals.duration.p99
    """
    asked = _asked(span, since, until, step) | {"jobType": job_type, "lane": lane}
    if watch:
        keep_showing(methodcaller("ask", "GET", RATES, asked), _rates, every=every, as_json=as_json)
        return
    show(ask("GET", RATES, asked), _rates, as_json=as_json)


def costs(
    span: OfSpan = None,
    since: Since = None,
    until: Until = None,
    step: InSteps = None,
    as_json: Json = False,
) -> None:
    """Show what images cost: requests of SQS, writes of S3, paths of invalidations.

    Of the last day, unless --span or --since says otherwise. What they cost in money,
    `imagefleet capacity` reckons.

    For example:

        imagefleet queue costs --span month
    """
    show(ask("GET", COSTS, _asked(span, since, until, step)), _costs, as_json=as_json)


def _asked(
    span: Span | None, since: str | None, until: str | None, step: Step | None
) -> dict[str, str | None]:
    return {"span": span, "since": instant(since), "until": instant(until), "step": step}


def _spread(name: str, part: str) -> Cell:
    def seconds(rates: Document) -> str | None:
        spread = rates.get(name)
        return f"{spread[part]:.3g}" if spread else None

    return seconds


_FIGURES: Final[Columns] = {
    "a minute": lambda rates: f"{rates['jobsAMinute']:g}",
    "completed": "completed", "failed": "failed", "retried": "retried", "lost": "lost",
    "waited p50": _spread("wait", "p50"), "waited p99": _spread("wait", "p99"),
    "took p50": _spread("duration", "p50"), "took p90": _spread("duration", "p90"),
    "took p99": _spread("duration", "p99"),
}  # fmt: skip


def _rates(seen: Document) -> Iterator[Part]:
    everything = seen["totals"] | {"jobType": "all", "lane": ""}
    yield Table(
        [everything, *seen["kinds"]],
        {"type": "jobType", "lane": "lane", **_FIGURES},
        {"drops": ("took p90", "lost", "waited p99", "retried")},
    )
    moved = [point for point in seen["points"] if point["submitted"] or "wait" in point]
    yield from section(
        moved,
        {f"{seen['step']} (UTC)": at("at"), "submitted": "submitted", **_FIGURES},
        drops=("took p90", "lost", "waited p99", "retried", "submitted"),
    )


def _costs(seen: Document) -> Iterator[Part]:
    thousand = seen["totals"].get("perThousandImages")
    billed = {
        "SQS requests": "sqsRequests", "S3 writes": "s3Writes", "paths": "invalidationPaths",
    }  # fmt: skip
    rows = [seen["totals"] | {"what": "all"}]
    if thousand:
        rows.append(thousand | {"what": "of a thousand images"})
    yield Table(rows, {"": "what", "images": "images", **billed})
    moved = [point for point in seen["points"] if any(point[name] for name in billed.values())]
    yield from section(moved, {f"{seen['step']} (UTC)": at("at"), "images": "images", **billed})
