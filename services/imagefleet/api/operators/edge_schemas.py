"""What the operators' routes of the edge take and tell."""

from datetime import date, datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from imagefleet.api.operators.schemas import Reason
from imagefleet.api.producers.schemas import Incoming
from imagefleet.jobs.shapes.shape import Seconds, Shape

MOST_IMAGES: Final = 100


class MonthView(Shape):
    """What CloudFront took this month of UTC; `debts` of one image share a path."""

    month: date
    paths: int
    budget: int
    over_budget: bool
    debts: int
    batches: int


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


class NewInvalidations(Incoming):
    """Images that the edge is to forget."""

    image_ids: Annotated[list[UUID], Field(min_length=1, max_length=MOST_IMAGES)]
    reason: Reason | None = None


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
