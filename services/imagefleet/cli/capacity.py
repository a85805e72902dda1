"""`imagefleet capacity`: what a fleet needs for so many images a day, and what a day costs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from imagefleet.cli.estimates import DAY, SHIPPED_PRICES, Prices, Workload, prices_of
from imagefleet.cli.output import Part, complain, section, show
from imagefleet.cli.verbs import Json
from imagefleet.client.api import Document

ImagesPerDay = Annotated[int, typer.Option(min=1, max=10**9, help="So many uploads.")]
Megapixels = Annotated[float, typer.Option(min=0.01, max=108, help="Of an average original, JPEG.")]
PeakFactor = Annotated[float, typer.Option(min=1, max=1000, help="The busiest time, to the mean.")]
Replaced = Annotated[
    float, typer.Option(min=0, max=1, help="The share of images that are replaced or deleted.")
]
KeptDays = Annotated[int, typer.Option(min=1, max=36_500, help="For how long images are kept.")]
PricesFile = Annotated[
    Path | None,
    typer.Option("--prices", metavar="FILE", help="Other prices: TOML; docs/capacity.md."),
]


def capacity(
    images_per_day: ImagesPerDay,
    average_megapixels: Megapixels = 12,
    peak_factor: PeakFactor = 4,
    replaced: Replaced = 0.01,
    kept_days: KeptDays = 365,
    prices: PricesFile = None,
    as_json: Json = False,
) -> None:
    """Say what so many images a day need and cost, and what is too small first when they grow.

    Reckoned from measured figures (docs/capacity.md); nobody is asked.

    For example:

        imagefleet capacity --images-per-day 100000
        imagefleet capacity --images-per-day 5000000 --average-megapixels 24
    """
    load = Workload(
        images_a_day=images_per_day,
        megapixels=average_megapixels,
        peak_factor=peak_factor,
        replaced=replaced,
        kept_days=kept_days,
    )
    answer = _answer(load, prices_of(prices or SHIPPED_PRICES))
    show(answer, lambda _: _seen(answer), as_json=as_json)
    if not as_json:
        complain("reckoned from what docs/capacity.md says was measured; measure your own pictures")


def _answer(load: Workload, prices: Prices) -> Document:
    takes, jobs, charges = load.takes, load.jobs_a_day, load.bill(prices)
    flows = {
        "SQS requests": takes.sqs_requests,
        "S3 writes": takes.s3_writes,
        "S3 reads": takes.s3_reads,
        "stored in S3, GB": (takes.original_kb + takes.variants_kb) / 1e6,
        "log of Postgres, GB": takes.log_kb / 1e6,
        "processor of Postgres, s": takes.postgres_ms / 1000,
        "CloudFront paths": load.paths_a_day / jobs,
    }
    return {
        "imagesPerDay": load.images_a_day,
        "averageMegapixels": load.megapixels,
        "jobsPerSecond": {"average": jobs / DAY, "peak": load.peak},
        "processes": [crew._asdict() for crew in load.crews()],
        "load": [
            {"what": what, "perDay": jobs * each, "perSecondAtPeak": load.peak * each}
            for what, each in flows.items()
        ],
        "prices": prices.model_dump(mode="json", include={"region", "as_of", "currency"}),
        "costs": [charge._asdict() for charge in charges],
        "costPerDay": sum(charge.cost for charge in charges),
        "bounds": [
            {"what": bound.what, "most": bound.most, "unit": bound.unit, "shares": shares,
             "helps": bound.helps}
            for bound, shares in load.shares()
        ],
    }  # fmt: skip


def _seen(answer: Document) -> Iterator[Part]:
    rate, prices = answer["jobsPerSecond"], answer["prices"]
    images, size = answer["imagesPerDay"], answer["averageMegapixels"]
    yield f"{images:,.0f} images a day of {size:g} megapixels"
    yield f"{_few(rate['average'])} jobs a second, {_few(rate['peak'])} at the peak"
    yield from section(answer["processes"], {
        "process": "name", "on average": lambda crew: _few(crew["average"]), "at the peak": "peak",
        "vCPU each": "vcpus", "GiB each": "gib", "connections": "connections",
    })  # fmt: skip
    yield from section(answer["load"], {
        "what it takes": "what", "a day": lambda part: _few(part["perDay"]),
        "a second at the peak": lambda part: _few(part["perSecondAtPeak"]),
    })  # fmt: skip
    whole = {"item": "in all", "unit": "", "cost": answer["costPerDay"]}
    yield from section([*answer["costs"], whole], {
        "what a day costs": "item",
        "of": lambda line: line["unit"] and f"{_few(line['amount'])} {line['unit']}",
        prices["currency"]: lambda line: f"{line['cost']:,.2f}",
    })  # fmt: skip
    yield f"prices of {prices['region']}, {prices['as_of']}"
    yield from section(answer["bounds"], {
        "how much of it is needed": "what",
        "there is": lambda bound: f"{bound['most']:,g} {bound['unit']}".rstrip(),
        "now": _share("1"), "x10": _share("10"), "x100": _share("100"), "what helps": "helps",
    }, wraps=("what helps",), drops=("there is",))  # fmt: skip


def _share(times: str) -> Callable[[Document], str]:
    return lambda bound: f"{bound['shares'][times]:,.0%}"


def _few(number: float) -> str:
    """Three digits, or all of what stands before the point."""
    return f"{number:.3g}" if number < 99.5 else f"{number:,.0f}"  # noqa: PLR2004 - three digits
