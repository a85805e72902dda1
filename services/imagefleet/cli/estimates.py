"""What a fleet needs for so many images a day, what a day costs, and what is too small first.

Reckoned from what was measured; docs/capacity.md says by which command each figure was, and a test
compares that page with what stands here.
"""

import math
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from imagefleet.errors import Misconfigured
from imagefleet.settings.slices import POOLED

DAY: Final = 86_400  # seconds
SHIPPED_PRICES: Final = Path(__file__).with_name("prices.toml")


class PictureTakes(NamedTuple):
    """What a JPEG takes from its upload to the variants of the shipped default recipe."""

    worker_ms: float
    api_ms: float
    postgres_ms: float
    sqs_requests: float
    s3_writes: float
    s3_reads: float
    log_kb: float
    original_kb: float
    variants_kb: float


# By megapixels; between two of them it is in proportion.
MEASURED: Final[Mapping[float, PictureTakes]] = {
    0.5: PictureTakes(127, 7, 6.7, 1.3, 9, 1, 16.2, 130, 451),
    2: PictureTakes(414, 8, 5, 2, 11, 1, 17.6, 515, 1_211),
    12: PictureTakes(604, 18, 6.7, 2.3, 11, 1, 16.7, 3_086, 2_038),
    24: PictureTakes(621, 27, 7.5, 2.3, 11, 1, 16.3, 6_166, 1_879),
    48: PictureTakes(778, 47, 7.5, 2.8, 14, 1, 17.3, 12_336, 1_933),
}
JOB_KB: Final = 1.3  # of a job and its attempt, with all indexes, for as long as retention
IMAGE_KB: Final = 6.6  # of an image and its variants, for as long as it is kept
FORGOTTEN_A_SECOND: Final = 25_000  # jobs, by pages of 500 without rests
BUSY: Final = 0.7  # of their processors is what processes are planned to use at the peak
RETENTION_DAYS: Final = 30
PRUNED_FOR: Final = 0.25  # of the time: half of each minute, resting as long as it worked
WORKER_VCPUS: Final = 2  # one a child
SLOTS: Final = 16  # of a worker in a lane

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Prices(BaseModel):
    """A file of prices; every key has to be there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    region: str
    as_of: date
    currency: str
    vcpu_hour: Price
    gib_hour: Price
    postgres_vcpu_hour: Price
    postgres_gb_month: Price
    sqs_million_requests: Price
    s3_thousand_writes: Price
    s3_thousand_reads: Price
    s3_gb_month: Price
    invalidation_path: Price
    free_paths_a_month: Price


def prices_of(file: Path) -> Prices:
    """Misconfigured with every fault of the file."""
    try:
        return Prices.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        told = error.errors(include_url=False, include_context=False)
        faults = [f"\n  {'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in told]
        detail = f"the prices of {file} cannot be used:{''.join(faults)}"
        raise Misconfigured(detail) from error
    except (OSError, ValueError) as error:  # no file, no text, no TOML
        detail = f"the prices of {file} cannot be read: {error}"
        raise Misconfigured(detail) from error


class Crew(NamedTuple):
    """Processes of a kind: how many on average over a day, and at most."""

    name: str
    average: float
    peak: int
    vcpus: float
    gib: float
    connections: int
    """To Postgres, of all of them."""


class Charge(NamedTuple):
    """A line of the bill of a day."""

    item: str
    amount: float
    unit: str
    cost: float


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is asked of a fleet."""

    images_a_day: float
    megapixels: float
    peak_factor: float
    replaced: float
    """Of the images so many are replaced or deleted later: each owes one path."""
    kept_days: int

    @property
    def takes(self) -> PictureTakes:
        """An average picture."""
        sizes = [*MEASURED]
        at = min(max(bisect_left(sizes, self.megapixels), 1), len(sizes) - 1)
        below, above = sizes[at - 1], sizes[at]
        part = max(0.0, (self.megapixels - below) / (above - below))
        pairs = zip(MEASURED[below], MEASURED[above], strict=True)
        return PictureTakes(*(low + (high - low) * part for low, high in pairs))

    @property
    def jobs_a_day(self) -> float:
        return self.images_a_day * (1 + self.replaced)

    @property
    def paths_a_day(self) -> float:
        return self.images_a_day * self.replaced

    def at_peak(self, a_day: float) -> float:
        """A second of the busiest time."""
        return a_day / DAY * self.peak_factor

    @property
    def peak(self) -> float:
        """Jobs."""
        return self.at_peak(self.jobs_a_day)

    @property
    def postgres_vcpus(self) -> float:
        return self.peak * self.takes.postgres_ms / 1000 / BUSY

    def crews(self) -> tuple[Crew, ...]:
        """Workers and APIs come and go with the load; there are two of what must not be away."""
        average, worker = self.jobs_a_day / DAY, self.takes.worker_ms / 1000 / BUSY / WORKER_VCPUS
        api = self.takes.api_ms / 1000 / BUSY
        workers, apis = _whole(self.peak * worker, 1), _whole(self.peak * api, 2)
        return (
            Crew(
                "worker",
                average * worker,
                workers,
                WORKER_VCPUS,
                2,
                workers * (POOLED["worker"] + 1),
            ),
            Crew("api", max(2, average * api), apis, 1, 1, apis * 2 * POOLED["api"]),
            Crew("maintenance", 2, 2, 0.5, 0.5, 2 * (POOLED["maintenance"] + 1)),
        )

    def bill(self, prices: Prices) -> list[Charge]:
        """A day when images have been kept for as long as they are."""
        takes, jobs, month, crews = self.takes, self.jobs_a_day, 30, self.crews()
        kept = self.images_a_day * self.kept_days
        rows = (jobs * RETENTION_DAYS * JOB_KB + kept * IMAGE_KB) / 1e6
        stored = kept * (takes.original_kb + takes.variants_kb) / 1e6
        paths = max(0.0, self.paths_a_day - prices.free_paths_a_month / month)
        vcpus = sum(crew.average * crew.vcpus for crew in crews)
        gib = sum(crew.average * crew.gib for crew in crews)
        database = _whole(self.postgres_vcpus, 2)
        lines = (
            ("processes, processors", 24 * vcpus, "vCPU-hours", prices.vcpu_hour),
            ("processes, memory", 24 * gib, "GiB-hours", prices.gib_hour),
            ("Postgres, processors", 24 * database, "vCPU-hours", prices.postgres_vcpu_hour),
            ("Postgres, storage", rows, "GB", prices.postgres_gb_month / month),
            ("SQS", jobs * takes.sqs_requests / 1e6, "M requests", prices.sqs_million_requests),
            ("S3, writes", jobs * takes.s3_writes / 1e3, "k requests", prices.s3_thousand_writes),
            ("S3, reads", jobs * takes.s3_reads / 1e3, "k requests", prices.s3_thousand_reads),
            ("S3, storage", stored, "GB", prices.s3_gb_month / month),
            ("CloudFront, invalidations", paths, "paths", prices.invalidation_path),
        )
        return [Charge(item, amount, unit, amount * price) for item, amount, unit, price in lines]

    def shares(self) -> list[tuple["Bound", dict[str, float]]]:
        """Of each bound the part needed at 1, 10 and 100 times this; most first."""
        loads = {
            str(times): replace(self, images_a_day=self.images_a_day * times)
            for times in (1, 10, 100)
        }
        parts = [
            (bound, {times: bound.needed(load) / bound.most for times, load in loads.items()})
            for bound in BOUNDS
        ]
        return sorted(parts, key=lambda part: -part[1]["100"])


def _whole(count: float, least: int) -> int:
    return max(least, math.ceil(count))


class Bound(NamedTuple):
    """What one fleet has once, how much of it there can be, and what to do then."""

    what: str
    most: float
    unit: str
    helps: str
    needed: Callable[[Workload], float]


# fmt: off
BOUNDS: Final = (
    Bound("Postgres, processors", 64, "vCPU", "cells of tenants", lambda load: load.postgres_vcpus),
    Bound("Postgres, log", 100, "MB/s", "cells of tenants",
          lambda load: load.peak * load.takes.log_kb / 1e3),
    Bound("Postgres, connections", 5_000, "", "PgBouncer in transaction mode",
          lambda load: sum(crew.connections for crew in load.crews())),
    Bound("forgetting of jobs", FORGOTTEN_A_SECOND * PRUNED_FOR, "jobs/s",
          "jobs and attempts by month; then cells of tenants", lambda load: load.jobs_a_day / DAY),
    Bound("announcing in a lane", 2_000, "messages/s",
          "lanes over several queues; then cells of tenants", lambda load: load.peak),
    Bound("SQS, in flight in a queue", 120_000, "messages", "lanes over several queues",
          lambda load: load.crews()[0].peak * SLOTS),
    Bound("S3, writes below a prefix", 3_500, "requests/s",
          "growing slowly, as S3 splits what stays busy; then cells with buckets of their own",
          lambda load: load.peak * load.takes.s3_writes),
    Bound("invalidations by path", 0.25, "paths/s", "CLOUDFRONT_CACHE_TAGS",
          lambda load: load.at_peak(load.paths_a_day)),
    Bound("invalidations by tag", 50, "tags/s", "cells with distributions of their own",
          lambda load: load.at_peak(load.paths_a_day)),
)
# fmt: on
