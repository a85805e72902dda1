"""The shapes on the wire: camelCase, nothing unknown coming in, nothing internal going out."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from imagefleet.api.http.errors import Problem
from imagefleet.api.http.observing import TOKEN
from imagefleet.jobs.model import JobState
from imagefleet.jobs.policies import MOST_ATTEMPTS

MAX_PAYLOAD_BYTES: Final = 65_536
MOST_IN_A_BATCH: Final = 100
PRINTABLE_ASCII: Final = r"^[\x21-\x7e]{1,255}$"
NO_CONTROLS: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,255}$"

# Further away it is a slip, and beyond a calendar's ends nobody could read the row again.
_EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(2100, 1, 1, tzinfo=UTC)
_FURTHEST_FROM_UTC: Final = timedelta(
    hours=15, minutes=59
)  # what Postgres reads; clocks keep to 14


def _in_this_century(moment: datetime) -> datetime:
    if not _EARLIEST <= moment < _LATEST:
        raise ValueError
    if abs(moment.utcoffset() or timedelta()) > _FURTHEST_FROM_UTC:
        raise ValueError
    return moment


class Incoming(BaseModel):
    """Something that anybody may have written."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, hide_input_in_errors=True
    )


class Outgoing(BaseModel):
    """Something that we answer; what has no value is left out."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, validate_by_name=True)


IdempotencyKey = Annotated[str, Field(pattern=PRINTABLE_ASCII)]
Reference = Annotated[str, Field(pattern=NO_CONTROLS)]
RecipeName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
RunAt = Annotated[AwareDatetime, AfterValidator(_in_this_century)]


class NewJob(Incoming):
    """A job to be accepted."""

    job_type: Annotated[str, Field(min_length=1, max_length=63)]
    payload: dict[str, object] = Field(default_factory=dict)
    idempotency_key: IdempotencyKey | None = None
    priority: Annotated[int, Field(ge=0, le=1000)] = 100
    run_at: RunAt | None = None
    dedup_key: Annotated[str, Field(pattern=NO_CONTROLS)] | None = None
    correlation_id: Annotated[str, Field(pattern=TOKEN)] | None = None
    parent_job_id: UUID | None = None
    max_attempts: Annotated[int, Field(ge=1, le=MOST_ATTEMPTS)] | None = None


class NewJobs(Incoming):
    """Jobs to be accepted, each by itself."""

    # Each is read on its own, so that one that is wrong costs no other its answer.
    jobs: Annotated[list[dict[str, object]], Field(min_length=1, max_length=MOST_IN_A_BATCH)]


class Cancellation(Incoming):
    """Why a job is cancelled; for the operators' eyes."""

    reason: Annotated[str, Field(pattern=r"^[^\x00]{0,500}$")] = ""
    idempotency_key: IdempotencyKey | None = None


class Reprocessing(Incoming):
    """How an image is rendered again; without a recipe, as it was."""

    recipe: RecipeName | None = None
    idempotency_key: IdempotencyKey | None = None


class NewUpload(Incoming):
    """A file that will be posted to S3 directly."""

    content_type: Annotated[str, Field(min_length=1, max_length=100)]
    max_bytes: Annotated[int, Field(ge=1, lt=2**63)] | None = None


class StoredUpload(Incoming):
    """A file that was posted to S3, to become an image."""

    upload_id: UUID
    recipe: RecipeName = "default"
    reference: Reference | None = None
    idempotency_key: IdempotencyKey | None = None


class Failure(Outgoing):
    """Why a job failed, or why it has to be tried again."""

    code: str
    message: str


class Progress(Outgoing):
    """How far a job is, in steps of its own kind."""

    done: int
    total: int | None = None


class JobLinks(Outgoing):
    """Where to go on from a job."""

    self: str
    events: str
    cancel: str
    image: str | None = None


class JobView(Outgoing):
    """A job, as its producer may see it."""

    job_id: UUID
    job_type: str
    status: JobState
    image_id: UUID | None = None
    progress: Progress | None = None
    failure: Failure | None = None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None = None
    next_attempt_at: datetime | None = None
    links: JobLinks


class JobPage(Outgoing):
    """Jobs, newest first."""

    jobs: list[JobView]
    next_cursor: UUID | None = None


class AcceptedJob(Outgoing):
    """The job that stands for the request; a repeat of it gets the same."""

    job_id: UUID
    job_type: str
    status: JobState
    links: JobLinks


class AcceptedImage(Outgoing):
    """The image, and the job that makes it."""

    job_id: UUID
    image_id: UUID
    status: JobState
    links: JobLinks


class BatchAnswer(Outgoing):
    """What came of one job of a batch."""

    status: int
    job: AcceptedJob | None = None
    problem: Problem | None = None


class BatchAnswers(Outgoing):
    """One answer for each job, in order."""

    answers: list[BatchAnswer]


class Source(Outgoing):
    """What was uploaded."""

    format: str
    width: int
    height: int
    bytes: int


class Placeholder(Outgoing):
    """What to show until the image is there."""

    thumbhash: str | None = None
    color: str | None = None


class VariantView(Outgoing):
    """One made image."""

    name: str
    format: str
    width: int
    height: int
    bytes: int
    url: str
    stable_url: str
    warnings: list[str]


class DeletedObjects(Outgoing):
    """What S3 answered."""

    deleted: int
    not_there: int | None = None
    errors: int
    keys: list[str]


class Deletion(Outgoing):
    """How far the deletion of an image is; the receipt, once it is dark."""

    requested_at: datetime
    requested_by: str
    objects_deleted_at: datetime | None = None
    objects: DeletedObjects | None = None
    invalidation_id: UUID | None = None
    dark_at: datetime | None = None
    seconds_to_dark: float | None = None
    emptied_again_at: datetime | None = None


class ImageView(Outgoing):
    """An image, as its producer may see it."""

    image_id: UUID
    status: str
    reference: str | None = None
    revision: int | None = None
    source: Source | None = None
    placeholder: Placeholder | None = None
    variants: list[VariantView]
    srcset: dict[str, str]
    deletion: Deletion | None = None


class ImagePage(Outgoing):
    """Images, newest first."""

    images: list[ImageView]
    next_cursor: UUID | None = None


class UploadView(Outgoing):
    """Leave to post one file to S3: a form whose last field is the file."""

    upload_id: UUID
    image_id: UUID
    url: str
    fields: dict[str, str]
    max_bytes: int
    expires_at: datetime
