"""Dead letters, as operators see them; nothing is hidden."""

from datetime import datetime
from typing import Self
from uuid import UUID

from imagefleet.jobs.model import JobId, JobState
from imagefleet.jobs.replays import ReplayOutcome
from imagefleet.jobs.shapes.jobs import OperatorLinks
from imagefleet.jobs.shapes.shape import Row, Shape


class LetterView(Shape):
    """A job that failed for good, or a message that is of no job."""

    id: UUID
    job_id: JobId | None = None
    tenant: str | None = None
    job_type: str | None = None
    reason: str
    fingerprint: str
    message: str
    detail: str | None = None
    died_at: datetime
    acknowledged_at: datetime | None = None
    acknowledged_by: str | None = None
    acknowledged_note: str | None = None
    replayed_as: JobId | None = None
    image_id: UUID | None = None
    source_seq: int | None = None
    """Of an image that could not be made: which of its originals."""


class WholeLetter(LetterView):
    """The same with the job's row as it was when it failed."""

    snapshot: dict[str, object]

    @classmethod
    def of(cls, row: Row) -> Self:
        """With the original that the job was to render, where it was to render one."""
        snapshot = row["snapshot"]
        payload = snapshot.get("payload")
        if row["type"] != "process_image" or not isinstance(payload, dict):
            return super().of(row)
        newest = snapshot.get("target_seq")  # of an upload, which brings its original itself
        told = {
            "image_id": payload.get("image_id"),
            "source_seq": payload.get("source_seq", newest),
        }
        return super().of(dict(row) | told)


class LetterPage(Shape):
    """Dead letters, oldest first: the order in which they are to be dealt with."""

    letters: list[LetterView]
    next_cursor: UUID | None = None


class LetterGroupView(Shape):
    """Open letters of one fault."""

    fingerprint: str
    job_type: str | None = None
    reason: str
    message: str
    """Of the example, the newest of them."""
    detail: str | None = None
    """The same."""
    letters: int
    replayable: int
    first_died_at: datetime
    last_died_at: datetime
    example: UUID
    tenant: str | None = None
    tenants: int
    tenant_names: list[str]
    """Of five of them at most."""
    hourly: list[int] | None = None
    """How many died in each hour of the last day, the oldest hour first; a hundred at most."""


class LetterGroups(Shape):
    """The faults behind the open letters, the most frequent first."""

    groups: list[LetterGroupView]


class Acknowledged(Shape):
    """How many letters were open until now; `more` says that the filter names further ones."""

    acknowledged: int
    more: bool


class ReplayedLetter(Shape):
    """What became of one letter."""

    letter_id: UUID
    job_id: JobId | None = None
    outcome: ReplayOutcome
    replayed_as: JobId | None = None


class ReplayOrdered(Shape):
    """How many letters it is about, of the oldest 10,000; and the job that replays them."""

    letters: int
    letters_is_at_least: bool
    job_id: JobId | None = None
    status: JobState | None = None
    links: OperatorLinks | None = None


class ReplayAnswer(Shape):
    """What became of each letter; the next page is `after` the cursor, `died_until` the time."""

    replays: list[ReplayedLetter]
    next_cursor: UUID | None = None
    as_of: datetime | None = None
