"""How fast the fleet is and what it costs, as operators see it: read from rollups.

What took how long is kept in buckets, each of which ends GROWTH times later than the one before,
as such counts can be added up: of minutes to hours, of lanes to a fleet. A percentile that is read
from them is the middle of its bucket, and so within a tenth of the true one.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import accumulate
from math import ceil, sqrt
from typing import Final, Self

from imagefleet.jobs.shapes.shape import Row, Seconds, Shape

GROWTH: Final = 1.2
MOST_BUCKETS: Final = 120  # the last of them ends after a month
FIRST_BUCKET: Final = timedelta(milliseconds=1)
MINUTE: Final = timedelta(minutes=1)
PER: Final = 1000  # images
MAKES_IMAGES: Final = "process_image"
DELETES_IMAGES: Final = "delete_image"
PROMISED_WITHIN: Final = {
    MAKES_IMAGES: timedelta(seconds=30),  # from accepted to shown
    DELETES_IMAGES: timedelta(seconds=60),  # from the request to dark
}
PROMISED_SHARE: Final = 0.99  # of each; docs/service-levels.md


class Step(StrEnum):
    """How long one rollup is."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"


LENGTHS: Final = {
    Step.MINUTE: MINUTE,
    Step.HOUR: timedelta(hours=1),
    Step.DAY: timedelta(days=1),
}


class Span(StrEnum):
    """A time that ends now."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


KEPT: Final = {Step.MINUTE: timedelta(days=2), Step.HOUR: timedelta(days=60)}
"""Days are kept for ever."""


class Spread(Shape):
    """How long something took: half of them at most `p50`, and so on; `max` is exact."""

    p50: Seconds
    p90: Seconds
    p99: Seconds
    max: Seconds

    @classmethod
    def read(cls, buckets: Sequence[int], longest: timedelta) -> Self | None:
        """What these counts say; None: nothing was counted."""
        if not sum(buckets):
            return None
        p50, p90, p99 = (min(percentile(buckets, share), longest) for share in (0.5, 0.9, 0.99))
        return cls(p50=p50, p90=p90, p99=p99, max=longest)


def percentile(buckets: Sequence[int], share: float) -> timedelta:
    """How long that share of what was counted took at most, by the middle of its bucket."""
    wanted = max(1, ceil(share * sum(buckets)))
    reached = accumulate(buckets)
    place = next(place for place, seen in enumerate(reached) if seen >= wanted)
    return FIRST_BUCKET * (GROWTH**place / sqrt(GROWTH)) if place else FIRST_BUCKET


class Rates(Shape):
    """What was submitted and how attempts ended; how long they waited, and how long they took.

    `failed` and `stopped` jobs are over as those that completed: these failed, those were
    cancelled, deleted or failed by an operator. `retried` ones are tried again, `released` ones
    were given back, of those that are `lost` the worker was. `promised` are images and deletions
    that a service level is about, `late` those of them that were shown, or dark, too late or never.
    """

    submitted: int
    completed: int
    failed: int
    stopped: int
    retried: int
    released: int
    lost: int
    promised: int
    late: int
    jobs_a_minute: float
    """That were over."""
    wait: Spread | None = None
    """From due until claimed, of every attempt."""
    duration: Spread | None = None
    """Of attempts that came to an end of their own: completed, retried, failed."""

    @classmethod
    def over(cls, row: Row, counted: timedelta) -> Self:
        """What a row says of so much time."""
        told = dict(row)
        over = told["completed"] + told["failed"] + told["stopped"]
        figures = {
            "jobs_a_minute": round(over / (counted / MINUTE), 2) if counted else 0.0,
            "wait": Spread.read(told["waits"], told["longest_wait"]),
            "duration": Spread.read(told["durations"], told["longest_duration"]),
        }
        return cls.of(told | figures)


class RatePoint(Rates):
    """Of one step."""

    at: datetime


class KindRates(Rates):
    """Of one type and lane."""

    job_type: str
    lane: str


class Stretch(Shape):
    """A time, in steps. Behind `countedUntil` nothing is counted yet.

    It begins later than asked where older figures of such a step are not kept any more.
    """

    since: datetime
    until: datetime
    step: Step
    counted_until: datetime


class RatesView(Stretch):
    """How fast the fleet was: in all, by type and lane with the busiest first, step by step."""

    totals: Rates
    kinds: list[KindRates]
    points: list[RatePoint]


class CostsAThousand(Shape):
    """What a thousand images took."""

    sqs_requests: float
    s3_writes: float
    invalidation_paths: float


class Costs(Shape):
    """What was published, and what SQS, S3 and CloudFront bill for all that was done meanwhile."""

    images: int
    sqs_requests: int
    s3_writes: int
    invalidation_paths: int

    def a_thousand(self) -> CostsAThousand | None:
        """What that is for a thousand images; None: none was published."""
        if not self.images:
            return None
        billed = ("sqs_requests", "s3_writes", "invalidation_paths")
        return CostsAThousand(
            **{name: round(getattr(self, name) * PER / self.images, 1) for name in billed}
        )


class CostPoint(Costs):
    """Of one step."""

    at: datetime


class CostTotals(Costs):
    """In all, and for a thousand images."""

    per_thousand_images: CostsAThousand | None = None


class CostsView(Stretch):
    """What images cost: in all, and step by step."""

    totals: CostTotals
    points: list[CostPoint]
