"""What producers send: camelCase, and nothing unknown coming in."""

from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from imagefleet.api.http.intake import IMAGE_TYPES
from imagefleet.api.producers.terms import IdempotencyKey, Incoming, Reference, Terms
from imagefleet.jobs.images import Focal
from imagefleet.jobs.kinds import RecipeName, Share
from imagefleet.jobs.shapes.shape import AcceptedJob, Problem, Shape

MAX_PAYLOAD_BYTES: Final = 65_536
MOST_IN_A_BATCH: Final = 100

JOB_TYPE_FORMAT: Final = "job-type"
"""Marks in a schema what names a job type that producers may submit."""


def focal_of(query: str) -> Focal:
    """The point that a query gives in this form, such as 0.3,0.7."""
    return Focal(*map(float, query.split(",")))


class Point(Incoming):
    """A point of a picture, as shares of its width and height."""

    x: Share
    y: Share

    @property
    def focal(self) -> Focal:
        return Focal(self.x, self.y)


class NewJob(Terms):
    """A job to be accepted."""

    job_type: Annotated[
        str, Field(min_length=1, max_length=63, json_schema_extra={"format": JOB_TYPE_FORMAT})
    ]
    payload: dict[str, object] = Field(default_factory=dict)
    idempotency_key: IdempotencyKey | None = None


class NewJobs(Incoming):
    """Jobs to be accepted, each by itself."""

    # Each is read on its own, so that one that is wrong costs no other its answer.
    jobs: Annotated[list[dict[str, object]], Field(min_length=1, max_length=MOST_IN_A_BATCH)]


class Cancellation(Incoming):
    """Why a job is cancelled; for the operators' eyes."""

    reason: Annotated[str, Field(pattern=r"^[^\x00]{0,500}$")] = ""
    idempotency_key: IdempotencyKey | None = None


class Reprocessing(Terms):
    """How an image is rendered again; without a recipe, as it was."""

    recipe: RecipeName | None = None
    idempotency_key: IdempotencyKey | None = None


class ImageEdit(Terms):
    """What an image is to be from now on."""

    focal_point: Point | None
    """Null: none."""
    idempotency_key: IdempotencyKey | None = None


class NewUpload(Incoming):
    """A file that will be posted to S3 directly."""

    content_type: Annotated[
        str, Field(min_length=1, max_length=100, json_schema_extra={"enum": [*IMAGE_TYPES]})
    ]
    max_bytes: Annotated[int, Field(ge=1, lt=2**63)] | None = None


class StoredUpload(Terms):
    """A file that was posted to S3, to become an image."""

    upload_id: UUID
    recipe: RecipeName = "default"
    reference: Reference | None = None
    focal_point: Point | None = None
    idempotency_key: IdempotencyKey | None = None


class BatchAnswer(Shape):
    """What came of one job of a batch."""

    status: int
    job: AcceptedJob | None = None
    problem: Problem | None = None


class BatchAnswers(Shape):
    """One answer for each job, in order."""

    answers: list[BatchAnswer]
