"""What the edge is owed, and what CloudFront was told of it; a deletion until all is dark."""

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


class DeletedObjects(Shape):
    """What S3 answered."""

    deleted: int
    not_there: int | None = None
    errors: int
    keys: list[str]


class Deletion(Shape):
    """How far the deletion of an image is; the receipt, once it is dark."""

    requested_at: datetime
    requested_by: str
    objects_deleted_at: datetime | None = None
    objects: DeletedObjects | None = None
    invalidation_id: UUID | None = None
    dark_at: datetime | None = None
    seconds_to_dark: float | None = None
    emptied_again_at: datetime | None = None

    @classmethod
    def of(cls, row: Row) -> Self:
        """With the time that it took to be dark."""
        dark_at = row["dark_at"]
        took = None if dark_at is None else (dark_at - row["requested_at"]).total_seconds()
        return super().of(dict(row) | {"seconds_to_dark": took})
