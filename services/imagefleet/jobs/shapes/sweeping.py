"""What is swept from S3: how far a walk is, as it is kept, and what operators see of it."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Final, Self
from uuid import UUID

from pydantic import Field

from imagefleet.jobs.images import Bucket
from imagefleet.jobs.shapes.shape import RunView, Shape


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


class SweepRunView(RunView):
    """One period in which a maintenance process swept; the numbers are there once it was over."""

    revisions: int | None = None
    uploads: int | None = None
    listed: int | None = None
    objects: int | None = None
    bytes: int | None = None


class SweepView(Shape):
    """What the newest walk has found, what the last periods removed, and what waits."""

    superseded: int
    superseded_is_at_least: bool
    walk: WalkView | None = None
    missing: list[MissingView]
    missing_in_all: int
    runs: list[SweepRunView]
