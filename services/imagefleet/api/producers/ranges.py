"""Which of a list: how many, and ids that begin alike or were made within a time.

An id of version 7 begins with the milliseconds of its making, so either is a stretch of the index
that lists have anyway. A list of both is read as far as its page, whatever there is.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Self
from uuid import UUID

from fastapi import Query, Request

from imagefleet.api.producers.schemas import RunAt
from imagefleet.errors import RequestRejected
from imagefleet.jobs.model import JobId

MOST_ON_A_PAGE: Final = 100
CURSOR: Final = "The `nextCursor` of the page before."
ID_PREFIX: Final = r"^([0-9a-fA-F]-?){8,32}$"
DIGITS: Final = 32
LAST: Final = 2**128 - 1

PageSize = Annotated[int, Query(ge=1, le=MOST_ON_A_PAGE)]
IdPrefix = Annotated[
    str | None,
    Query(
        alias="idPrefix", pattern=ID_PREFIX, description="How the id begins, in 8 digits or more."
    ),
]
CreatedAfter = Annotated[
    RunAt | None, Query(alias="createdAfter", description="As their ids tell it.")
]
CreatedBefore = Annotated[
    RunAt | None, Query(alias="createdBefore", description="As their ids tell it.")
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


_ALONE: Final = "Here idPrefix goes alone, or with limit."


def range_alone(request: Request, prefix: str) -> tuple[JobId, JobId]:
    """The same of a list that may be asked for nothing else beside."""
    if request.query_params.keys() - {"idPrefix", "limit"}:
        raise RequestRejected("invalid_filter", _ALONE)
    return range_of(prefix)


def range_of(prefix: str) -> tuple[JobId, JobId]:
    """Where ids lie that begin so: from the one, before the other."""
    digits = prefix.replace("-", "")
    first, last = (int(digits.ljust(DIGITS, digit), 16) for digit in "0f")
    return JobId(UUID(int=first)), JobId(UUID(int=min(last + 1, LAST)))


@dataclass(frozen=True, slots=True)
class IdRange:
    """From `first` on, and before `before`; None is without a bound."""

    first: JobId | None = None
    before: JobId | None = None

    @classmethod
    def asked(
        cls,
        prefix: str | None,
        after: datetime | None,
        cursor: JobId | None,
        until: datetime | None = None,
    ) -> Self:
        """What all of them leave."""
        begins: list[JobId] = []
        ends = [] if cursor is None else [cursor]
        if prefix is not None:
            first, before = range_of(prefix)
            begins.append(first)
            ends.append(before)
        if after is not None:
            begins.append(_first_after(after))
        if until is not None:
            ends.append(_first_after(until - timedelta(milliseconds=1)))
        return cls(max(begins, default=None), min(ends, default=None))


def _first_after(moment: datetime) -> JobId:
    """Where ids begin that were made in a later millisecond than this one."""
    milliseconds = max(0, (moment - _EPOCH) // timedelta(milliseconds=1) + 1)
    return JobId(UUID(int=milliseconds << 80))
