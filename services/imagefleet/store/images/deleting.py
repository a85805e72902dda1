"""Deleted images: the tombstone with its job, what then goes, and the receipt of it.

From the tombstone's commit on nothing of the image is published, accepted or shown; everything
after that only removes what is there: open jobs, objects, and what the edge still shows. The
tombstone is written under the lock of the image's target row, like every submission about the image
and every settlement of its jobs: each of them sees it, or is seen by it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from imagefleet.errors import NotFound
from imagefleet.jobs.images import Emptied, image_target
from imagefleet.jobs.model import JobId, Lane, Ring, Submission, Submitted, TenantId
from imagefleet.jobs.shapes.edge import Deletion
from imagefleet.jobs.shapes.rates import DELETES_IMAGES, PROMISED_WITHIN
from imagefleet.store.database import Connection
from imagefleet.store.jobs.rings import RING_URGENTLY, ring_of
from imagefleet.store.jobs.submissions import (
    insert_submission,
    insert_submissions,
    submitted_of,
)

MOST_CANCELLED: Final = 100  # by the request; the job itself ends what is left

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

# What a deleted image makes void: its open jobs that are not to end already, and end nothing.
_VOID: Final = """
SELECT jobs.id
  FROM jobs
 WHERE jobs.tenant_id = $1 AND jobs.target = $2
   AND jobs.state IN ('queued', 'processing', 'failed_retryable')
   AND NOT jobs.preempts AND jobs.cancel_requested_at IS NULL
"""

LIST_VOID: Final = f"""
{_VOID}
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
        (row,) = await connection.fetch(FIND_DELETING_JOB, image_id)
        return Deleting(answer=submitted_of(row, created=False))


async def _delete(
    connection: Connection,
    submission: Submission,
    image_id: UUID,
    cancelling: Callable[[JobId], Submission],
) -> Deleting:
    tenant_id = submission.tenant_id
    if not await connection.fetchval(OWNS_IMAGE, image_id, tenant_id):
        raise NotFound("image")
    answer = await insert_submission(connection, submission)
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
       'image:' || tombstone.image_id AS target,
       coalesce(jobs.created_at, tombstone.requested_at) AS created_at, NULL AS next_at
  FROM image_tombstones AS tombstone
  LEFT JOIN jobs ON jobs.id = tombstone.job_id
 WHERE tombstone.image_id = $1
"""


# What the request cancelled is flagged by its own job; this is for what came past it.
FLAG_VOID: Final = f"""
WITH void AS MATERIALIZED (
    {_VOID}
     ORDER BY jobs.id
       FOR UPDATE
),
flagged AS (
    UPDATE jobs
       SET cancel_requested_at = now(), cancel_code = 'image_deleted', updated_at = now()
     WHERE jobs.id = ANY (ARRAY (SELECT void.id FROM void))
),
bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
     WHERE rings.job_id = ANY (ARRAY (SELECT void.id FROM void))
     ORDER BY rings.job_id
       FOR UPDATE
)
{RING_URGENTLY}
"""  # noqa: S608 - composed at import from the constants of rings.py


async def flag_void(
    connection: Connection, image_id: UUID, tenant_id: TenantId
) -> tuple[Ring, ...]:
    """Flag every open job of a deleted image but its deletions; the doorbells to ring now."""
    rows = await connection.fetch(FLAG_VOID, tenant_id, image_target(image_id))
    return tuple(ring_of(row) for row in rows)


LIST_NAMED_KEYS: Final = """
SELECT variants.key FROM variants WHERE variants.image_id = $1
 UNION ALL
SELECT image_sources.key FROM image_sources WHERE image_sources.image_id = $1
"""


async def list_named_keys(connection: Connection, image_id: UUID) -> frozenset[str]:
    """Every key that Postgres names of an image: what was published, and the originals."""
    return frozenset(row["key"] for row in await connection.fetch(LIST_NAMED_KEYS, image_id))


# The debt before the tombstone, as the flusher locks them. A second receipt is of what was deleted
# already: the first one stands.
RECORD_EMPTIED: Final = """
WITH new AS MATERIALIZED (
    SELECT new.image_id, new.tenant_id, new.objects
      FROM jsonb_to_recordset($1::jsonb) AS new (image_id uuid, tenant_id text, objects jsonb)
      JOIN image_tombstones AS tombstone ON tombstone.image_id = new.image_id
     WHERE tombstone.tenant_id = new.tenant_id AND tombstone.objects_deleted_at IS NULL
),
owed AS (
    INSERT INTO invalidations AS debt (image_id, tenant_id, reason)
    SELECT new.image_id, new.tenant_id, 'deleted'
      FROM new
     ORDER BY new.image_id
        ON CONFLICT (image_id) WHERE batch_id IS NULL
        DO UPDATE SET debts = debt.debts + 1, reason = excluded.reason,
                      last_owed_at = clock_timestamp()
    RETURNING debt.id, debt.image_id
)
UPDATE image_tombstones
   SET objects_deleted_at = now(), objects = new.objects, invalidation_id = owed.id
  FROM new
  JOIN owed ON owed.image_id = new.image_id
 WHERE image_tombstones.image_id = new.image_id
"""


async def record_emptied(connection: Connection, emptied: Sequence[Emptied]) -> None:
    """Write the receipts, and owe the edge one invalidation each.

    Only inside the transaction that completes those jobs.
    """
    await connection.execute(RECORD_EMPTIED, [_document(image) for image in emptied])


def _document(image: Emptied) -> dict[str, object]:
    objects = {
        "deleted": image.deleted,
        "not_there": image.not_there,
        "errors": image.errors,
        "keys": list(image.keys),
    }
    return {"image_id": image.image_id, "tenant_id": image.tenant_id, "objects": objects}


# Whoever writes down that images are `dark` tells whether that was in time, in the same statement.
TELL_DARK: Final = f"""
told AS (
    INSERT INTO rollup_entries (type, lane, promised, late)
    SELECT '{DELETES_IMAGES}', '{Lane.FAST}', count(*),
           count(*) FILTER (
               WHERE dark.took > interval '{PROMISED_WITHIN[DELETES_IMAGES].seconds} s')
      FROM dark
    HAVING count(*) > 0
)
"""  # noqa: S608 - composed at import of the names of a type and a lane

# Where there is no edge, nobody shows what the bucket does not have.
DARKEN_WITHOUT_EDGE: Final = f"""
WITH dark AS (
    UPDATE image_tombstones
       SET dark_at = objects_deleted_at
     WHERE objects_deleted_at IS NOT NULL AND dark_at IS NULL
    RETURNING dark_at - requested_at AS took
),
{TELL_DARK}
SELECT dark.took FROM dark
"""  # noqa: S608 - composed at import from the constant above


async def darken_without_edge(connection: Connection) -> list[timedelta]:
    """Call dark what has no objects any more; how long each of them took."""
    return [row["took"] for row in await connection.fetch(DARKEN_WITHOUT_EDGE)]


LIST_TO_EMPTY_AGAIN: Final = """
SELECT image_tombstones.image_id
  FROM image_tombstones
 WHERE objects_deleted_at IS NOT NULL AND emptied_again_at IS NULL
   AND objects_deleted_at < now() - $1::interval
 ORDER BY objects_deleted_at
 LIMIT $2
"""


async def list_to_empty_again(
    connection: Connection, *, after: timedelta, limit: int
) -> list[UUID]:
    """Images whose objects were deleted that long ago, and not looked for since."""
    return [row["image_id"] for row in await connection.fetch(LIST_TO_EMPTY_AGAIN, after, limit)]


RECORD_EMPTIED_AGAIN: Final = """
WITH done AS (
    UPDATE image_tombstones
       SET emptied_again_at = now()
     WHERE image_id = $1 AND emptied_again_at IS NULL
    RETURNING image_id, tenant_id
)
INSERT INTO invalidations AS debt (image_id, tenant_id, reason)
SELECT done.image_id, done.tenant_id, 'deleted' FROM done WHERE $2
    ON CONFLICT (image_id) WHERE batch_id IS NULL
    DO UPDATE SET debts = debt.debts + 1, last_owed_at = clock_timestamp()
"""


async def record_emptied_again(connection: Connection, image_id: UUID, *, owes: bool) -> None:
    """Not to be looked for again; it `owes` an invalidation where something was found."""
    await connection.execute(RECORD_EMPTIED_AGAIN, image_id, owes)


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
