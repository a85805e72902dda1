"""The walk through S3: what must be there by the rows, how far it is, what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from pydantic import ValidationError

from imagefleet.jobs.images import Bucket, SweepProgress
from imagefleet.jobs.shapes.edge import SweepRunView
from imagefleet.store.database import Connection


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
       ARRAY (SELECT variants.key
                FROM variants
               WHERE variants.image_id = page.id AND variants.revision = page.revision
                 AND page.is_kept) AS keys
  FROM page
 ORDER BY page.id
"""  # noqa: S608 - composed at import from the constant above

LIST_ORIGINALS: Final = f"""
{_PAGE}
SELECT page.id AS image_id, page.tenant_id,
       ARRAY (SELECT sources.key
                FROM image_sources AS sources
               WHERE sources.image_id = page.id AND page.is_kept
               ORDER BY sources.source_seq DESC
               LIMIT 1) AS keys
  FROM page
 ORDER BY page.id
"""  # noqa: S608 - composed at import from the constant above


async def list_named(
    connection: Connection, bucket: Bucket, first: UUID, last: UUID | None, *, images: int
) -> tuple[list[Named], UUID | None]:
    """What must be in this bucket, from one image to another; and the last image, if too many.

    Of outputs those that are shown, of originals the newest of each image.
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
SELECT periods.period_start, periods.started_at, periods.finished_at, periods.report
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
    report: Mapping[str, object] = row["report"] or {}
    try:
        progress = SweepProgress.model_validate(report)
    except ValidationError:
        progress = SweepProgress()
    return Walk(
        start=row["period_start"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        progress=progress,
    )


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
    rows = await connection.fetch(LIST_SWEEP_RUNS, limit)
    return [SweepRunView.of(row) for row in rows]


COUNT_SUPERSEDED: Final = """
SELECT count(*)
  FROM (SELECT FROM image_revisions AS old
         WHERE old.superseded_at IS NOT NULL AND old.swept_at IS NULL
         LIMIT $1) AS waiting
"""


async def count_superseded(connection: Connection, *, most: int) -> int:
    """How many revisions are neither shown nor swept; `most` or more are one."""
    waiting: int = await connection.fetchval(COUNT_SUPERSEDED, most)
    return waiting
