"""The terms on which a job is taken: the same of every job, by whichever route it is submitted."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from imagefleet.api.http.requests import TOKEN
from imagefleet.jobs.kinds import RecipeName
from imagefleet.jobs.policies import MOST_ATTEMPTS

PRINTABLE_ASCII: Final = r"^[\x21-\x7e]{1,255}$"
NO_CONTROLS: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,255}$"
_SHARE: Final = r"(0(\.[0-9]{1,9})?|1(\.0{1,9})?)"
FOCAL: Final = rf"^{_SHARE},{_SHARE}$"

# Further away it is a slip, and beyond a calendar's ends nobody could read the row again.
_EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(2100, 1, 1, tzinfo=UTC)
_FURTHEST_FROM_UTC: Final = timedelta(
    hours=15, minutes=59
)  # what Postgres reads; clocks keep to 14
_BEYOND: Final = "must be from 2000 to 2099, and less than 16 hours from UTC"


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
