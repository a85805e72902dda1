"""What producers send: camelCase, and nothing unknown coming in.

The terms on which a job is taken are the same of every job, by whichever route it is submitted.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError
from starlette.convertors import PathConvertor, register_url_convertor

from imagefleet.api.http.intake import IMAGE_TYPES
from imagefleet.api.http.requests import TOKEN
from imagefleet.jobs.images import Focal
from imagefleet.jobs.kinds import TYPE_FORM, RecipeName, Share
from imagefleet.jobs.policies import MOST_ATTEMPTS
from imagefleet.jobs.shapes.shape import AcceptedJob, Problem, Shape

MAX_PAYLOAD_BYTES: Final = 65_536
MOST_IN_A_BATCH: Final = 100

JOB_TYPE_FORMAT: Final = "job-type"
"""Marks in a schema what names a job type that producers may submit."""
PRINTABLE_ASCII: Final = r"^[\x21-\x7e]{1,255}$"
NO_CONTROLS: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,255}$"
SENTENCE: Final = r"^[^\x00]{1,500}$"
_SHARE: Final = r"(0(\.[0-9]{1,9})?|1(\.0{1,9})?)"
FOCAL: Final = rf"^{_SHARE},{_SHARE}$"

# Further away it is a slip, and beyond a calendar's ends nobody could read the row again.
_EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(2100, 1, 1, tzinfo=UTC)
_FURTHEST_FROM_UTC: Final = timedelta(
    hours=15, minutes=59
)  # what Postgres reads; clocks keep to 14
_BEYOND: Final = "must be from 2000 to 2099, and less than 16 hours from UTC"


class WholeTarget(PathConvertor):
    """A target alone in an address, slashes and all: what is done to it stands behind one more."""

    regex = ".*(?<!/pause)(?<!/cancel)"


register_url_convertor("whole_target", WholeTarget())


def _in_this_century(moment: datetime) -> datetime:
    is_far = abs(moment.utcoffset() or timedelta()) > _FURTHEST_FROM_UTC
    if is_far or not _EARLIEST <= moment < _LATEST:
        raise PydanticCustomError("out_of_range", _BEYOND)
    return moment


class Incoming(BaseModel):
    """Something that anybody may have written."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, hide_input_in_errors=True
    )


IdempotencyKey = Annotated[str, Field(pattern=PRINTABLE_ASCII)]
Reference = Annotated[str, Field(pattern=NO_CONTROLS)]
Reason = Annotated[str, Field(pattern=SENTENCE)]
ReasonIfAny = Annotated[str, Field(pattern=r"^[^\x00]{0,500}$")]
RunAt = Annotated[AwareDatetime, AfterValidator(_in_this_century)]


class Timing(Incoming):
    """When a job is to run, and how often it is tried."""

    priority: Annotated[int, Field(ge=0, le=1000, description="Lower is earlier.")] = 100
    run_at: Annotated[RunAt | None, Field(description="Not before this time, with its zone.")] = (
        None
    )
    max_attempts: Annotated[
        int | None, Field(ge=1, le=MOST_ATTEMPTS, description="The type's own if not given.")
    ] = None


class Terms(Timing):
    """And what it belongs to."""

    dedup_key: Annotated[
        Reference | None, Field(description="At most one open job of its type may bear it.")
    ] = None
    correlation_id: Annotated[
        str | None, Field(pattern=TOKEN, description="To find what belongs together.")
    ] = None
    parent_job_id: Annotated[UUID | None, Field(description="A job of yours.")] = None


class NewOriginal(Terms):
    """What is said in the query about an image's new original."""

    recipe: Annotated[
        RecipeName | None, Field(description="Which variants are made; `GET /v1/recipes`.")
    ] = None
    focal: Annotated[
        str | None,
        Field(
            pattern=FOCAL,
            description="What is kept where it is cut: shares of width and height.",
        ),
    ] = None


class NewImage(NewOriginal):
    """What is said in the query about a new image."""

    reference: Annotated[
        Reference | None, Field(description="A name of yours, to find the image by.")
    ] = None


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

    reason: ReasonIfAny = ""
    idempotency_key: IdempotencyKey | None = None


class TargetReason(Incoming):
    """Why somebody holds back a target of theirs."""

    reason: Reason


class TargetCancellation(Incoming):
    """Which of a target's open jobs are cancelled: those that all of these let through."""

    job_type: Annotated[str, Field(pattern=TYPE_FORM)] | None = None
    submitted_before: RunAt | None = None
    reason: ReasonIfAny = ""
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
