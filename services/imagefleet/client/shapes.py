"""What the API answers, as far as a producer needs it; docs/api.md has all of it."""

import uuid
from datetime import datetime
from typing import Final

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from imagefleet.jobs.model import JobState

TERMINAL: Final = frozenset({JobState.COMPLETED, JobState.FAILED})


class Shape(BaseModel):
    """Something the API answered; fields that a newer API adds are kept."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="allow", frozen=True, validate_by_name=True
    )

    def document(self) -> dict[str, object]:
        """As it was answered."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Failure(Shape):
    code: str
    message: str


class Progress(Shape):
    done: int
    total: int | None = None


class Accepted(Shape):
    job_id: uuid.UUID
    image_id: uuid.UUID
    status: JobState


class AcceptedJob(Shape):
    job_id: uuid.UUID
    status: JobState


class Job(Shape):
    job_id: uuid.UUID
    job_type: str
    status: JobState
    image_id: uuid.UUID | None = None
    progress: Progress | None = None
    failure: Failure | None = None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None = None
    next_attempt_at: datetime | None = None

    @property
    def over(self) -> bool:
        """Whether it will not change any more."""
        return self.status in TERMINAL

    @property
    def steps(self) -> str | None:
        """Its progress as people read it; None if it tells none."""
        if self.progress is None:
            return None
        return "/".join(str(n) for n in (self.progress.done, self.progress.total) if n is not None)


class Variant(Shape):
    name: str
    format: str
    width: int
    height: int
    bytes: int
    url: str
    stable_url: str


class Source(Shape):
    format: str
    width: int
    height: int
    bytes: int


class DeletedObjects(Shape):
    deleted: int
    not_there: int | None = None
    errors: int = 0


class Deletion(Shape):
    requested_at: datetime
    objects_deleted_at: datetime | None = None
    objects: DeletedObjects | None = None
    invalidation_id: uuid.UUID | None = None
    dark_at: datetime | None = None
    seconds_to_dark: float | None = None


class Image(Shape):
    image_id: uuid.UUID
    status: str
    reference: str | None = None
    revision: int | None = None
    source: Source | None = None
    variants: tuple[Variant, ...] = ()
    deletion: Deletion | None = None


class JobPage(Shape):
    jobs: tuple[Job, ...]
    next_cursor: str | None = None


class ImagePage(Shape):
    images: tuple[Image, ...]
    next_cursor: str | None = None
