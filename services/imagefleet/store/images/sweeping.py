"""Both buckets against the rows: what must be there, what may go, how far the walk through S3 is.

An object goes when Postgres says so after it was listed. What is said stays true: a job that has
ended never publishes, an upload that was forgotten never becomes an image, and no key comes twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from pydantic import ValidationError

from imagefleet.jobs.images import Bucket, OutputKey
from imagefleet.jobs.shapes.sweeping import SweepProgress, SweepRunView
from imagefleet.store.database import Connection

# The row before the object: whoever still has it could make an image of what is being deleted.
FORGET_UPLOADS: Final = """
WITH forgotten AS (
    DELETE FROM uploads
     WHERE uploads.id = ANY (ARRAY (
               SELECT unused.id
                 FROM uploads AS unused
                WHERE unused.job_id IS NULL AND unused.expires_at < now() - $1::interval
                ORDER BY unused.expires_at
                LIMIT $2))
       -- Of the row itself, once more: meanwhile somebody may have gone through.
       AND uploads.job_id IS NULL
    RETURNING uploads.id
)
SELECT count(*) FROM forgotten
"""


async def forget_uploads(connection: Connection, *, expired_for: timedelta, limit: int) -> int:
    """Close the gate of uploads that expired that long ago and became nothing; how many."""
    return int(await connection.fetchval(FORGET_UPLOADS, expired_for, limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What is to be done about listed objects that are old enough; the others stay."""

    litter: frozenset[str]
    unknown: frozenset[str]
    """Of images that this database has never heard of: perhaps it is not the one they belong to."""


# Each condition is asked of each object in turn, as in PRUNE_JOBS. An open job keeps all that its
# claims ever stored, as its progress may name it; one that is past retention had ended.
JUDGE_OUTPUTS: Final = """
SELECT found.key, target.target IS NULL AS is_unknown
  FROM unnest($1::text[], $2::timestamptz[], $3::uuid[], $4::bigint[], $5::bigint[])
    AS found (key, modified_at, image_id, revision, claim_no)
  LEFT JOIN LATERAL (
      SELECT images.tenant_id FROM images WHERE images.id = found.image_id LIMIT 1
  ) AS image ON true
  LEFT JOIN LATERAL (
      SELECT targets.tenant_id, targets.target
        FROM targets
       WHERE targets.tenant_id = image.tenant_id AND targets.target = 'image:' || found.image_id
         AND targets.next_seq > found.revision
       LIMIT 1
  ) AS target ON true
 WHERE found.modified_at < now() - $6::interval
   AND (SELECT count(*) FROM variants WHERE variants.key = found.key) = 0
   AND (SELECT count(*)
          FROM image_revisions AS revisions
         WHERE revisions.image_id = found.image_id AND revisions.revision = found.revision
           AND revisions.claim_no = found.claim_no AND revisions.swept_at IS NULL) = 0
   AND (SELECT count(*)
          FROM jobs
         WHERE jobs.tenant_id = target.tenant_id AND jobs.target = target.target
           AND jobs.target_seq = found.revision
           AND jobs.state IN ('queued', 'processing', 'failed_retryable')) = 0
"""


async def judge_outputs(
    connection: Connection,
    listed: Sequence[tuple[str, datetime, OutputKey]],
    *,
    older_than: timedelta,
) -> Judged:
    """Which of these objects nothing names and no job can publish any more."""
    rows = await connection.fetch(
        JUDGE_OUTPUTS,
        [key for key, _, _ in listed],
        [modified_at for _, modified_at, _ in listed],
        [place.image_id for _, _, place in listed],
        [place.revision for _, _, place in listed],
        [place.claim_no for _, _, place in listed],
        older_than,
    )
    return Judged(
        litter=frozenset(row["key"] for row in rows if not row["is_unknown"]),
        unknown=frozenset(row["key"] for row in rows if row["is_unknown"]),
    )


# Jobs are no evidence about originals: what is accepted has a row of its own.
JUDGE_ORIGINALS: Final = """
SELECT found.key
  FROM unnest($1::text[], $2::timestamptz[]) AS found (key, modified_at)
 WHERE found.modified_at < now() - $3::interval
   AND (SELECT count(*) FROM image_sources
         WHERE image_sources.key = found.key AND image_sources.gone_at IS NULL) = 0
   AND (SELECT count(*) FROM uploads WHERE uploads.key = found.key) = 0
"""


async def judge_originals(
    connection: Connection, listed: Sequence[tuple[str, datetime]], *, older_than: timedelta
) -> frozenset[str]:
    """Which of these objects are no accepted original that is kept, and become none either."""
    keys, modified = [key for key, _ in listed], [modified_at for _, modified_at in listed]
    rows = await connection.fetch(JUDGE_ORIGINALS, keys, modified, older_than)
    return frozenset(row["key"] for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """An object that an image needs."""

    image_id: UUID
    tenant_id: str
    key: str


_PAGE: Final = """
WITH page AS MATERIALIZED (
    SELECT images.id, images.tenant_id, images.revision,
           (SELECT count(*) FROM image_tombstones AS tombstones
             WHERE tombstones.image_id = images.id) = 0 AS is_kept
      FROM images
     WHERE images.id >= $1::uuid
       AND images.id <= coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
     ORDER BY images.id
     LIMIT $3
)
"""


LIST_SHOWN: Final = f"""
{_PAGE}
SELECT page.id AS image_id, page.tenant_id,
       ARRAY (SELECT DISTINCT variants.key
                FROM variants
               WHERE variants.image_id = page.id AND variants.revision = page.revision
                 AND page.is_kept) AS keys
  FROM page
 ORDER BY page.id
"""  # noqa: S608 - composed at import from the constant above


LIST_ORIGINALS: Final = f"""
{_PAGE}
SELECT page.id AS image_id, page.tenant_id,
       ARRAY (SELECT newest.key
                FROM (SELECT sources.key, sources.gone_at
                        FROM image_sources AS sources
                       WHERE sources.image_id = page.id AND page.is_kept
                       ORDER BY sources.source_seq DESC
                       LIMIT 1) AS newest
               WHERE newest.gone_at IS NULL) AS keys
  FROM page
 ORDER BY page.id
"""  # noqa: S608 - composed at import from the constant above


async def list_named(
    connection: Connection, bucket: Bucket, first: UUID, last: UUID | None, *, images: int
) -> tuple[list[Named], UUID | None]:
    """What must be in this bucket, from one image to another; and the last image, if too many.

    Of outputs those that are shown, of originals the newest of each image, if it is kept.
    """
    statement = LIST_SHOWN if bucket == "outputs" else LIST_ORIGINALS
    rows = await connection.fetch(statement, first, last, images)
    named = [
        Named(image_id=row["image_id"], tenant_id=row["tenant_id"], key=key)
        for row in rows
        for key in row["keys"]
    ]
    return named, rows[-1]["image_id"] if len(rows) == images else None


WALK: Final = "sweep_walk"
"""The periodic step whose periods are walks: each goes on until it is through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """One way through both buckets."""

    start: datetime
    started_at: datetime
    finished_at: datetime | None
    progress: SweepProgress


READ_WALK: Final = """
SELECT periods.period_start AS start, periods.started_at, periods.finished_at, periods.report
  FROM periods
 WHERE periods.name = 'sweep_walk'
 ORDER BY periods.period_start DESC
 LIMIT 1
"""


async def read_walk(connection: Connection) -> Walk | None:
    """The newest walk; what another version wrote about one that we cannot read is forgotten."""
    row = await connection.fetchrow(READ_WALK)
    if row is None:
        return None
    columns = dict(row)
    try:
        progress = SweepProgress.model_validate(columns.pop("report") or {})
    except ValidationError:
        progress = SweepProgress()
    return Walk(**columns, progress=progress)


SAVE_WALK: Final = """
UPDATE periods
   SET report = $2, finished_at = coalesce(finished_at, CASE WHEN $3 THEN now() END)
 WHERE name = 'sweep_walk' AND period_start = $1
"""


async def save_walk(
    connection: Connection, start: datetime, progress: SweepProgress, *, is_through: bool
) -> None:
    """Write down how far a walk is."""
    await connection.execute(SAVE_WALK, start, progress.model_dump(mode="json"), is_through)


COUNT_SUPERSEDED: Final = """
SELECT count(*)
  FROM (SELECT FROM image_revisions AS old
         WHERE old.superseded_at IS NOT NULL AND old.swept_at IS NULL
         LIMIT $1) AS waiting
"""


async def count_superseded(connection: Connection, *, most: int) -> int:
    """How many revisions are neither shown nor swept; `most` or more are one."""
    return int(await connection.fetchval(COUNT_SUPERSEDED, most))


# Of most minutes there is nothing to tell.
LIST_SWEEP_RUNS: Final = """
SELECT periods.period_start, periods.started_at, periods.finished_at, periods.report
  FROM periods
 WHERE periods.name = 'sweep'
   AND (periods.finished_at IS NULL OR (periods.report ->> 'did')::boolean)
 ORDER BY periods.period_start DESC
 LIMIT $1
"""


async def list_sweep_runs(connection: Connection, *, limit: int) -> list[SweepRunView]:
    """The last periods in which something was looked at or swept, the newest first."""
    return [SweepRunView.of(row) for row in await connection.fetch(LIST_SWEEP_RUNS, limit)]
