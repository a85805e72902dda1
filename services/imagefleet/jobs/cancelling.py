"""Cancelling what a tenant has open: how far the walk is, and what it leaves alone.

The walk goes from the newest open job to the oldest, a page at a time, and its cursor is written in
the transaction that flags the page. What is submitted after the walk began is not in it, so it
ends; so that nothing goes on submitting behind its back, the jobs that submit others come first.
A submit that began before the walk and was committed behind its back is looked for at the end, once
more among the newest.

What no pause holds back is not cancelled either: deletions, cancellations, and the walk itself.
"""

from datetime import datetime, timedelta
from typing import Any, Final, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from imagefleet.jobs.kinds import CancelJobs
from imagefleet.jobs.model import JsonObject

# Of a transaction that submits, and of how far the clocks of processes are apart.
SUBMITTED_WITHIN: Final = timedelta(minutes=1)
SUBMITS_OTHERS: Final = "reprocess_images"


class Walk(BaseModel):
    """How far a walk is; as JSON it is the cursor of its job."""

    model_config = ConfigDict(frozen=True)

    until: datetime
    """What was submitted later is left alone."""
    parents: bool
    """Still at the jobs that submit others; all jobs follow."""
    again: bool = False
    """All were looked at; once more at those that were submitted shortly before `until`."""
    before: UUID | None = None
    """The last job that was looked at; those with smaller ids are still to come."""
    seen: int = 0
    total: int | None = None
    """How many jobs the walk began with; None where they are too many to count."""
    flagged: int = 0

    @property
    def oldest(self) -> UUID | None:
        """Where the second look ends; None: at the last job that there is."""
        return _born(self.until - SUBMITTED_WITHIN) if self.again else None

    def once_more(self) -> Self:
        """The same, at the beginning of its second look."""
        first = _born(self.until + SUBMITTED_WITHIN)
        return self.model_copy(update={"again": True, "before": first})

    @classmethod
    def of(cls, cursor: JsonObject | None) -> Self | None:
        """Where an earlier attempt left off; None if there was none."""
        return None if cursor is None else cls.model_validate(cursor)

    @property
    def cursor(self) -> dict[str, Any]:
        """To be stored with the job."""
        return self.model_dump(mode="json")


def _born(at: datetime) -> UUID:
    """The smallest id of a job that was born then; ids have the clock of whoever submitted."""
    return UUID(int=int(at.timestamp() * 1000) << 80)


def type_walked(wanted: CancelJobs, walk: Walk) -> str | None:
    """Of which type the jobs are that are looked at; None is every type."""
    return SUBMITS_OTHERS if walk.parents else wanted.job_type
