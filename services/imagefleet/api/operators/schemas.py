"""What operators send: the patterns of names, and the bodies of their orders."""

from typing import Annotated, Final

from fastapi import Query
from pydantic import Field, StrictBool, StrictFloat, StrictInt

from imagefleet.api.producers.schemas import Incoming
from imagefleet.jobs.model import JobId
from imagefleet.store.fleet.keys import ApiKey

TENANT: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"
TYPE: Final = r"^[a-z][a-z0-9_]{0,62}$"
TARGET: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,255}$"
SENTENCE: Final = r"^[^\x00]{1,500}$"
MOST_WATCHED: Final = 1000

Reason = Annotated[str, Field(pattern=SENTENCE)]
Why = Annotated[
    str | None,
    Query(alias="reason", pattern=SENTENCE, description="Why; kept in the audit."),
]
"""Of an order without a body."""


def who(key: ApiKey) -> str:
    """The name that people know, and the id that is never given twice."""
    return f"{key.name} ({key.id})"


class Because(Incoming):
    """Why an operator does it."""

    reason: Reason


class NewValue(Incoming):
    """Another value of a live setting."""

    value: StrictBool | StrictInt | StrictFloat | Annotated[str, Field(max_length=200)]
    """No setting is a text; one is refused by a sentence that says what the setting is."""
    reason: Reason


class WatchedJobs(Incoming):
    """Jobs whose outcomes are counted."""

    job_ids: Annotated[list[JobId], Field(min_length=1, max_length=MOST_WATCHED)]
