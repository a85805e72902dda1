"""What all shapes are, and how a request is answered: with what was accepted, or why it was not.

A shape is camelCase outside, leaves out what has no value, and never changes once it is made.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Protocol, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, PlainSerializer
from pydantic.alias_generators import to_camel

from imagefleet.jobs.faults import Fault
from imagefleet.jobs.images import image_of_target
from imagefleet.jobs.model import JobId, JobState, Submitted

Seconds = Annotated[
    timedelta, PlainSerializer(lambda span: round(span.total_seconds(), 3), return_type=float)
]

# What tables call one way and everybody outside another.
_SHOWN_AS: Final = {"tenant_id": "tenant", "type": "job_type", "state": "status"}


class Row(Protocol):
    """A row by the names of its columns, each of the type that its migration says."""

    def __getitem__(self, name: str, /) -> Any: ...  # noqa: ANN401 - only Postgres knows

    def keys(self) -> Iterable[str]: ...


class Shape(BaseModel):
    """Something that we answer; what has no value is left out."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, validate_by_name=True)

    @classmethod
    def of(cls, row: Row) -> Self:
        """What this shows of a row; its other columns are nobody's business."""
        fields = cls.model_fields
        return cls.model_validate(
            {
                name if name in fields else _SHOWN_AS.get(name, name): value
                for name, value in dict(row).items()
            }
        )

    def encoded(self) -> bytes:
        """The JSON that is sent."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()


class RunView(Shape):
    """One period of what maintenance does now and then; its numbers are there once it was over."""

    period_start: datetime
    started_at: datetime
    finished_at: datetime | None = None

    @classmethod
    def of(cls, row: Row) -> Self:
        """With those numbers of its report that this release can read."""
        told = row["report"] or {}
        numbers = {name: told[name] for name in cls.model_fields if isinstance(told.get(name), int)}
        return super().of(numbers | dict(row))


class JobLinks(Shape):
    """Where to go on from a job."""

    self: str
    events: str
    cancel: str
    image: str | None = None

    @classmethod
    def from_job(cls, job_id: UUID, image_id: UUID | None) -> Self:
        """Those of one job, which may be about an image."""
        path = f"/v1/jobs/{job_id}"
        return cls(
            self=path,
            events=f"{path}/events",
            cancel=f"{path}/cancel",
            image=None if image_id is None else f"/v1/images/{image_id}",
        )


class AcceptedJob(Shape):
    """The job that stands for the request; a repeat of it gets the same."""

    job_id: JobId
    job_type: str
    status: JobState
    links: JobLinks

    @classmethod
    def answering(cls, submitted: Submitted) -> Self:
        """The answer to a submission."""
        return cls(
            job_id=submitted.job_id,
            job_type=submitted.type,
            status=submitted.state,
            links=JobLinks.from_job(submitted.job_id, image_of_target(submitted.target)),
        )


class AcceptedImage(Shape):
    """The image, and the job that makes it."""

    job_id: UUID
    image_id: UUID
    status: JobState
    links: JobLinks

    @classmethod
    def answering(cls, submitted: Submitted, image_id: UUID) -> Self:
        """The answer to an upload; a repeat names the image of the first."""
        target = image_of_target(submitted.target)
        return cls(
            job_id=submitted.job_id,
            image_id=target or image_id,
            status=submitted.state,
            links=JobLinks.from_job(submitted.job_id, target),
        )


class Problem(Shape):
    """Why a request did not succeed (RFC 9457)."""

    type: str
    """Where its code is explained, relative to the API."""
    title: str
    status: int
    code: str
    detail: str
    request_id: str | None = None
    """What the log calls this request by."""
    errors: list[Fault] | None = None
    limit: str | None = None
    """With 429: which limit it is."""
