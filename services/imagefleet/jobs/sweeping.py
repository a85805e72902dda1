"""What a walk through the buckets has come to: kept between its steps, and for operators."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal, Self, TypeAlias
from uuid import UUID

from pydantic import BaseModel, ConfigDict

Bucket: TypeAlias = Literal["outputs", "originals"]

MOST_MISSING: Final = 100  # that are named; the others are counted
PREFIXES: Final[dict[Bucket, str]] = {"outputs": "i/", "originals": "o/"}


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True)


class Missing(_Kept):
    """An object that a row names and S3 does not have."""

    bucket: Bucket
    key: str
    tenant_id: str
    image_id: UUID
    found_at: datetime
    reprocess: bool
    """Whether rendering the image again makes it anew: its original is there."""


class Progress(_Kept):
    """How far a walk is, and what it has found so far."""

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
    missing: tuple[Missing, ...] = ()
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

    def passed(self, end: str | None, missing: Iterable[Missing]) -> Self:
        """Go on to a key; None is the end of the bucket. What was missing before it is as found."""
        before = [one for one in self.missing if not self._passes(one, end)]
        now = [*before, *missing]
        place: dict[str, str] = {} if end is None else {"after": end}
        if end is None and self.bucket == "outputs":
            place = {"bucket": "originals", "after": ""}
        news = {
            "missing": tuple(now[:MOST_MISSING]),
            "unnamed": self.unnamed + len(now[MOST_MISSING:]),
        }
        return self.model_copy(update=news | place)

    def _passes(self, one: Missing, end: str | None) -> bool:
        return (
            one.bucket == self.bucket and self.after < one.key and (end is None or one.key <= end)
        )
