"""The shapes of the operators' routes that are about dead letters."""

from datetime import datetime
from typing import Annotated, Final, Self
from uuid import UUID

from pydantic import Field, model_validator

from imagefleet.api.operators.schemas import TENANT, TYPE, Reason
from imagefleet.api.producers.schemas import Incoming, RunAt
from imagefleet.jobs.shapes.shape import Shape
from imagefleet.store.letters.replays import MOST_AT_ONCE, ReplayOutcome

CODE: Final = r"^[a-z][a-z0-9_]{0,62}$"
FINGERPRINT: Final = r"^[0-9a-f]{32,64}$"
MOST_ACKNOWLEDGED: Final = 1000


class LetterChoice(Incoming):
    """Which open dead letters; everything that is set must hold, and nothing set is all of them."""

    tenant: Annotated[str, Field(pattern=TENANT)] | None = None
    job_type: Annotated[str, Field(pattern=TYPE)] | None = None
    reason: Annotated[str, Field(pattern=CODE)] | None = None
    fingerprint: Annotated[str, Field(pattern=FINGERPRINT)] | None = None


class _Chosen(Incoming):
    filter: LetterChoice | None = None

    def _has_one_choice(self, ids: object) -> Self:
        if (ids is None) == (self.filter is None):
            raise ValueError
        return self


class Acknowledgement(_Chosen):
    """Somebody knows, and nothing is to be done: by ids, or the oldest that a filter names."""

    ids: Annotated[list[UUID], Field(min_length=1, max_length=MOST_ACKNOWLEDGED)] | None = None
    note: Reason
    limit: Annotated[int, Field(ge=1, le=MOST_ACKNOWLEDGED)] = MOST_ACKNOWLEDGED

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        return self._has_one_choice(self.ids)


class ReplayRequest(_Chosen):
    """Run failed jobs again as new ones: by ids, or the oldest that a filter names."""

    ids: Annotated[list[UUID], Field(min_length=1, max_length=MOST_AT_ONCE)] | None = None
    reason: Reason
    limit: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)] = MOST_AT_ONCE
    after: UUID | None = None
    died_until: RunAt | None = None
    dry_run: bool = False
    force: bool = False

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        return self._has_one_choice(self.ids)


class LetterView(Shape):
    """A job that failed for good, or a message that is of no job."""

    id: UUID
    job_id: UUID | None = None
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
    replayed_as: UUID | None = None


class WholeLetter(LetterView):
    """The same with the job's row as it was when it failed."""

    snapshot: dict[str, object]


class LetterPage(Shape):
    """Dead letters, oldest first: the order in which they are to be dealt with."""

    letters: list[LetterView]
    next_cursor: UUID | None = None


class LetterGroupView(Shape):
    """Open letters of one fault."""

    fingerprint: str
    job_type: str | None = None
    reason: str
    letters: int
    replayable: int
    first_died_at: datetime
    last_died_at: datetime
    example: UUID
    tenant: str | None = None
    tenants: int


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
    job_id: UUID | None = None
    outcome: ReplayOutcome
    replayed_as: UUID | None = None


class ReplayAnswer(Shape):
    """What became of each letter; the next page is `after` the cursor, `died_until` the time."""

    replays: list[ReplayedLetter]
    next_cursor: UUID | None = None
    as_of: datetime | None = None
