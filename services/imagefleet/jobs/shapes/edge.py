"""What is published, as operators see it: what the edge is owed, and what is swept from S3."""

from datetime import date, datetime
from typing import Self
from uuid import UUID

from imagefleet.jobs.shapes.shape import Row, Seconds, Shape


class MonthView(Shape):
    """What CloudFront took this month of UTC; `debts` of one image share a path."""

    month: date
    paths: int
    budget: int
    over_budget: bool
    debts: int
    batches: int

    @classmethod
    def of(cls, row: Row) -> Self:
        """Beside no budget; `within` says which there is."""
        return super().of(dict(row) | {"budget": 0, "over_budget": False})

    def within(self, budget: int) -> Self:
        """Beside what is expected of a month."""
        return self.model_copy(update={"budget": budget, "over_budget": self.paths > budget})


class FlusherView(Shape):
    """Who tells CloudFront; its log says `flusher.elected` with this `holder`."""

    holder: UUID
    term: int
    until: datetime
    holds: bool


class BatchView(Shape):
    """One invalidation of CloudFront's, from before it was sent."""

    batch_id: UUID
    paths: int
    created_at: datetime
    sends: int
    accepted_at: datetime | None = None
    cloudfront_id: str | None = None
    completed_at: datetime | None = None
    last_error: str | None = None


class EdgeStatus(Shape):
    """How the edge stands; of batches the oldest unfinished ones, then the last complete ones."""

    taken_at: datetime
    owed: int
    oldest_owed_for: Seconds
    paths_in_flight: int
    month: MonthView
    flusher: FlusherView | None = None
    last_error: str | None = None
    batches: list[BatchView]


class InvalidationView(Shape):
    """One image's invalidation; `completedAt` is when the edge agreed."""

    invalidation_id: UUID
    image_id: UUID
    tenant: str
    reason: str
    debts: int
    owed_at: datetime
    requested_by: str | None = None
    request_reason: str | None = None
    batch_id: UUID | None = None
    sends: int | None = None
    accepted_at: datetime | None = None
    cloudfront_id: str | None = None
    completed_at: datetime | None = None
    last_error: str | None = None


class OwedInvalidations(Shape):
    """One for each image, by the image's id."""

    invalidations: list[InvalidationView]


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

    @classmethod
    def of(cls, row: Row) -> Self:
        """With those numbers of its report that this release can read."""
        told = row["report"] or {}
        numbers = {
            name: told[name]
            for name in ("revisions", "uploads", "listed", "objects", "bytes")
            if isinstance(told.get(name), int)
        }
        return super().of(dict(row) | numbers)


class SweepView(Shape):
    """What the newest walk has found, what the last periods removed, and what waits."""

    superseded: int
    superseded_is_at_least: bool
    walk: WalkView | None = None
    missing: list[MissingView]
    missing_in_all: int
    runs: list[SweepRunView]
