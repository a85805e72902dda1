"""What is published, as operators see it: what the edge is owed, and what is swept from S3."""

from collections.abc import Iterable
from datetime import date, datetime
from typing import Annotated, Final, Self
from uuid import UUID

from pydantic import Field

from imagefleet.jobs.images import Bucket
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
    tenant_id: Annotated[str, Field(alias="tenant")]
    """By its own name where a walk keeps it."""
    image_id: UUID
    found_at: datetime
    reprocess: bool


MOST_MISSING: Final = 100  # that are named; the others are counted


class SweepProgress(Shape):
    """How far a walk is, and what it has found so far: as it is kept, never shown as such."""

    bucket: Bucket = "outputs"
    after: str = ""
    """Everything up to this key is done, and all outputs before any original."""
    listed: int = 0
    litter: int = 0
    """Objects that nothing names any more."""
    litter_bytes: int = 0
    swept: int = 0
    swept_bytes: int = 0
    unknown: int = 0
    """Objects that are not ours, or of images that this database does not know."""
    held_back: int = 0
    """Originals that were not deleted because too many of them would have been."""
    missing: tuple[MissingView, ...] = ()
    """As each key was found when it was passed last, on this walk or the one before."""
    unnamed: int = 0
    """How many more are missing."""

    @property
    def all_missing(self) -> int:
        """How many are missing."""
        return len(self.missing) + self.unnamed

    def again(self) -> Self:
        """A new walk, from the beginning."""
        return type(self)(missing=self.missing)

    def passed(self, end: str | None, missing: Iterable[MissingView]) -> Self:
        """Go on to a key; None is the end of the bucket. What was missing before it is as found."""
        before = [view for view in self.missing if not self._passes(view, end)]
        now = [*before, *missing]
        place: dict[str, str] = {} if end is None else {"after": end}
        if end is None and self.bucket == "outputs":
            place = {"bucket": "originals", "after": ""}
        news = {
            "missing": tuple(now[:MOST_MISSING]),
            "unnamed": self.unnamed + len(now[MOST_MISSING:]),
        }
        return self.model_copy(update=news | place)

    def _passes(self, view: MissingView, end: str | None) -> bool:
        return (
            view.bucket == self.bucket
            and self.after < view.key
            and (end is None or view.key <= end)
        )


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
