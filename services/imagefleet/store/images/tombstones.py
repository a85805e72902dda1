"""Deleted images: the tombstone with its job, and the receipt; `emptying` is what comes between.

From the tombstone's commit on nothing of the image is published, accepted or shown; everything
after that only removes what is there. The tombstone is written under the lock of the image's target
row, like every submission about the image and every settlement of its jobs: each of them sees it,
or is seen by it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from imagefleet.errors import NotFound, RequestRejected
from imagefleet.jobs.images import image_target
from imagefleet.jobs.model import JobId, JobState, Lane, Submission, Submitted, TenantId
from imagefleet.jobs.shapes.images import Deletion
from imagefleet.store.database import Connection
from imagefleet.store.jobs.submissions import insert_submissions

MOST_CANCELLED: Final = 100  # by the request; the job itself ends what is left

IS_DELETED: Final = """
SELECT EXISTS (SELECT FROM image_tombstones WHERE image_tombstones.image_id = $1)
"""


async def refuse_deleted(connection: Connection, image_id: UUID) -> None:
    """RequestRejected if the image was deleted.

    For the transaction that submits a job about it, after the submission, which locked its target:
    then no tombstone can be written beside it.
    """
    if await connection.fetchval(IS_DELETED, image_id):
        sentence = "This image was deleted."
        raise RequestRejected("image_deleted", sentence)


FIND_DELETED: Final = """
SELECT image_tombstones.image_id
  FROM image_tombstones
 WHERE image_tombstones.image_id = ANY ($1::uuid[])
"""


async def find_deleted(connection: Connection, image_ids: Sequence[UUID]) -> frozenset[UUID]:
    """Those of these images that were deleted; for whoever holds the locks of their targets."""
    rows = await connection.fetch(FIND_DELETED, list(image_ids))
    return frozenset(row["image_id"] for row in rows)


OWNS_IMAGE: Final = """
SELECT EXISTS (SELECT FROM images WHERE images.id = $1 AND images.tenant_id = $2)
"""

# Of a deletion that failed and has no receipt, another job takes the place.
WRITE_TOMBSTONE: Final = """
INSERT INTO image_tombstones AS tombstone (image_id, tenant_id, job_id, requested_by)
VALUES ($1, $2, $3, $4)
    ON CONFLICT (image_id) DO UPDATE SET job_id = excluded.job_id
     WHERE tombstone.objects_deleted_at IS NULL
       AND NOT EXISTS (SELECT FROM jobs
                        WHERE jobs.id = tombstone.job_id AND jobs.state <> 'failed')
RETURNING image_id
"""

LIST_VOID: Final = """
SELECT jobs.id
  FROM jobs
 WHERE jobs.tenant_id = $1 AND jobs.target = $2
   AND jobs.state IN ('queued', 'processing', 'failed_retryable')
   AND NOT jobs.preempts AND jobs.cancel_requested_at IS NULL
 ORDER BY jobs.target_seq
 LIMIT $3
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleting:
    """The job that deletes the image, and whatever was submitted with it, to be rung."""

    answer: Submitted
    submitted: Sequence[tuple[Submission, Submitted]] = ()


class _TombstoneStands(Exception):
    """There is a tombstone: on its way out of a transaction that must leave no trace."""


async def delete_image(
    connection: Connection,
    submission: Submission,
    image_id: UUID,
    *,
    cancelling: Callable[[JobId], Submission],
) -> Deleting:
    """Write the tombstone, the job that deletes the image, and one that cancels each open one.

    A repeat changes nothing and answers with the first job. Another tenant's image is not found.
    """
    try:
        async with connection.transaction():
            return await _delete(connection, submission, image_id, cancelling)
    except _TombstoneStands:
        return Deleting(answer=await _standing(connection, image_id))


async def _delete(
    connection: Connection,
    submission: Submission,
    image_id: UUID,
    cancelling: Callable[[JobId], Submission],
) -> Deleting:
    tenant_id = submission.tenant_id
    if not await connection.fetchval(OWNS_IMAGE, image_id, tenant_id):
        raise NotFound("image")
    (answer,) = await insert_submissions(connection, [submission])
    if isinstance(answer, RequestRejected):
        raise answer
    if not answer.created:
        return Deleting(answer=answer)
    by = submission.created_by
    if await connection.fetchval(WRITE_TOMBSTONE, image_id, tenant_id, answer.job_id, by) is None:
        raise _TombstoneStands
    void = await connection.fetch(LIST_VOID, tenant_id, image_target(image_id), MOST_CANCELLED)
    cancels = [cancelling(JobId(row["id"])) for row in void]
    answers = await insert_submissions(connection, cancels)
    ordered = [
        (cancel, each)
        for cancel, each in zip(cancels, answers, strict=True)
        if isinstance(each, Submitted)
    ]
    return Deleting(answer=answer, submitted=[(submission, answer), *ordered])


# A job that is past retention was finished long before.
FIND_DELETING_JOB: Final = """
SELECT tombstone.job_id, coalesce(jobs.type, 'delete_image') AS type,
       coalesce(jobs.state, 'completed') AS state, coalesce(jobs.lane, 'fast') AS lane,
       coalesce(jobs.created_at, tombstone.requested_at) AS created_at
  FROM image_tombstones AS tombstone
  LEFT JOIN jobs ON jobs.id = tombstone.job_id
 WHERE tombstone.image_id = $1
"""


async def _standing(connection: Connection, image_id: UUID) -> Submitted:
    (row,) = await connection.fetch(FIND_DELETING_JOB, image_id)
    return Submitted(
        job_id=JobId(row["job_id"]),
        type=row["type"],
        state=JobState(row["state"]),
        lane=Lane(row["lane"]),
        created=False,
        target=image_target(image_id),
        created_at=row["created_at"],
        next_at=None,
    )


GET_DELETION: Final = """
SELECT tombstone.requested_at, tombstone.requested_by, tombstone.objects_deleted_at,
       tombstone.objects, tombstone.invalidation_id, tombstone.dark_at, tombstone.emptied_again_at
  FROM image_tombstones AS tombstone
 WHERE tombstone.image_id = $1 AND tombstone.tenant_id = $2
"""


async def get_deletion(
    connection: Connection, image_id: UUID, tenant_id: TenantId
) -> Deletion | None:
    """The deletion of an image, if that was asked for."""
    row = await connection.fetchrow(GET_DELETION, image_id, tenant_id)
    return None if row is None else Deletion.of(row)
