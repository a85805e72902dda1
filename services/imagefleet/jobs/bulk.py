"""Jobs about many: cancelling what is open, rendering a set of images again, replaying letters.

Each walks a page at a time, from the newest to the oldest but for letters, and the cursor of the
walk is written in the transaction that flags the page, or submits the page's jobs. So whatever ends
an attempt, the next one goes on behind the last page that counts, and nothing is asked for twice.

A cancelling walk leaves alone what is submitted after it began; jobs that submit others come first,
and what was committed behind its back is looked for at the end. Nor does it have what no pause
holds back: deletions, cancellations, itself. One through every tenant goes from tenant to tenant,
by name, past those that have nothing open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from imagefleet.jobs.images import ImageSource, image_target
from imagefleet.jobs.kinds import BUILT_IN, CancelJobs, Draft, ProcessImage, ReprocessImages
from imagefleet.jobs.model import Claim, JsonObject, Submission

SUBMITTED_WITHIN: Final = timedelta(minutes=1)  # and so far may clocks of processes be apart
SUBMITS_OTHERS: Final = "reprocess_images"


class _BulkWalk(BaseModel):
    """How far a walk is; as JSON it is the cursor of its job."""

    model_config = ConfigDict(frozen=True)

    before: UUID | None = None
    """The last one that was looked at; those with smaller ids are still to come."""
    seen: int = 0
    total: int | None = None  # None where they are too many to count

    @classmethod
    def of(cls, cursor: JsonObject | None) -> Self | None:
        """Where an earlier attempt left off; None if there was none."""
        return None if cursor is None else cls.model_validate(cursor)

    def behind(self, page: Sequence[UUID], seen: int, **counts: int | None) -> Self:
        """The same behind this page: what has been seen by now, and what became of it."""
        before = page[-1] if page else self.before
        # An upload may have been given its id long before it became an image.
        total = None if self.total is None else max(self.total, seen)
        return self.model_copy(update={"before": before, "seen": seen, "total": total, **counts})

    @property
    def cursor(self) -> dict[str, Any]:
        """To be stored with the job."""
        return self.model_dump(mode="json")


class CancelWalk(_BulkWalk):
    """Through a tenant's open jobs, or through those of one tenant after the other."""

    tenant: str | None = None  # of every tenant: whose jobs it is at
    until: datetime  # what was submitted later is left alone
    parents: bool  # still at the jobs that submit others; all jobs follow
    again: bool = False  # all were looked at; once more at those submitted shortly before
    flagged: int = 0
    place: int | None = None  # of one target: jobs before it are still to come

    @property
    def oldest(self) -> UUID | None:
        """Where the second look ends; None: at the last job that there is."""
        return _born(self.until - SUBMITTED_WITHIN) if self.again else None

    def once_more(self) -> Self:
        """The same, at the beginning of its second look."""
        first = _born(self.until + SUBMITTED_WITHIN)
        return self.model_copy(update={"again": True, "before": first})


def _born(at: datetime) -> UUID:
    """The smallest id of a job that was born then; ids have the clock of whoever submitted."""
    return UUID(int=int(at.timestamp() * 1000) << 80)


def type_walked(wanted: CancelJobs, walk: CancelWalk) -> str | None:
    """Of which type the jobs are that are looked at; None is every type."""
    return SUBMITS_OTHERS if walk.parents else wanted.job_type


class ReplayWalk(_BulkWalk):
    """Through open dead letters, the oldest first; `before` is the last that was looked at."""

    died_at: datetime | None = None  # of that one
    outcomes: dict[str, int] = {}


OF_A_SET: Final = "of_a_set"  # why its jobs are in the lane general
LOW_PRIORITY: Final = 200  # what producers upload meanwhile has 100, and is rung first

_RENDERING: Final = BUILT_IN["process_image"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(ImageSource):
    """An image and its newest original, as they stand while its target is locked.

    Its recipe is that of what is shown, or of the upload as long as nothing is.
    """

    deleted: bool
    gone: bool
    """That original is not kept any more."""
    source_seq: int
    """The revision that brought it."""

    def payload(self, recipe: str | None, versions: Mapping[str, str] | None) -> dict[str, Any]:
        """What a job is told that renders it; None is the recipe that the image has.

        In the version in force; in the image's own, where its recipe is not in force any more.
        Without versions none is pinned.
        """
        name, pinned = recipe or self.recipe, None
        if versions is not None:
            pinned = versions.get(name, self.recipe_hash if name == self.recipe else None)
        source = replace(self, recipe=name, recipe_hash=pinned)
        return ProcessImage.payload(source, source_seq=self.source_seq)


class SetWalk(_BulkWalk):
    """Through a set of images."""

    submitted: int = 0
    skipped: int = 0


def is_wanted(image: Candidate, wanted: ReprocessImages) -> bool:
    """Whether the set has this image."""
    if wanted.recipe_was is None:
        return True
    name, _, version = wanted.recipe_was.partition("@")
    return image.recipe == name and (image.recipe_hash or "").startswith(version)


def follow_up(
    claim: Claim, image: Candidate, wanted: ReprocessImages, *, created_by: str
) -> Submission:
    """The job that renders one image of a set. Its key makes a second one impossible."""
    payload = image.payload(wanted.recipe, wanted.recipe_hashes)
    return Draft(
        kind=_RENDERING,
        tenant_id=claim.tenant_id,
        created_by=created_by,
        correlation_id=claim.correlation_id,
        idempotency_key=f"{claim.job_id}/{image.image_id}",
        target=image_target(image.image_id),
        parent_job_id=claim.job_id,
        priority=LOW_PRIORITY,
        max_attempts=claim.max_attempts,
        traceparent=claim.traceparent,
        tracestate=claim.tracestate,
    ).whole({**payload, "slow": OF_A_SET})
