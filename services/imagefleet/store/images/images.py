"""Images: accepted with a job, published by the statement that completes it, shown by what is.

How the effect of a job comes to be seen: a worker stores the variants of an attempt under keys that
no other attempt has, and tells them to settling. In the transaction that completes the job
PUBLISH_IMAGES lists them as a revision and points `images.revision` at it.

What it promises: an object is never overwritten, so whoever reads one gets what was published. A
job that ran twice, or whose worker lost its claim half way, leaves objects that nothing points at
and that the sweep takes away. The pointer moves forward only, by the place of the job in its
target, and never over a tombstone: what is older, or about an image that was deleted meanwhile,
completes as superseded. A replacement owes the edge one invalidation, in the same transaction,
whatever the number of variants; a first publication owes none, since its addresses are new.

So nothing outside Postgres has to happen in order or once: S3 may be written twice, the CDN is told
afterwards by others (`store/edge`), and no job waits for it. The two ways to do without a pointer
both fail: fixed keys let a late attempt write over a newer image, and publishing before the job is
completed shows what may still fail.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final, TypeAlias
from uuid import UUID

from imagefleet.errors import NotFound, RequestRejected
from imagefleet.jobs.images import NewSource, Publication
from imagefleet.jobs.model import JobId, Submission, Submitted, TenantId
from imagefleet.jobs.shapes.images import ImageView
from imagefleet.store.database import Connection
from imagefleet.store.jobs.submissions import (
    ACCEPTING,
    ANSWERING,
    document_of,
    find_living,
    insert_submission,
    submitted_of,
)

IMAGE_DELETED: Final = "This image was deleted."

_SOURCE: Final = (
    *("image_id", "tenant_id", "reference", "recipe", "recipe_hash"),
    *("key", "etag", "sha256", "bytes", "content_type", "width", "height"),
)

# Asked once its target is locked, by the job's submission: no tombstone can be written beside it.
ACCEPT_SOURCE: Final = """
WITH living AS MATERIALIZED (
    SELECT jobs.target_seq
      FROM jobs
     WHERE jobs.id = $13
       AND NOT EXISTS (SELECT FROM image_tombstones WHERE image_tombstones.image_id = $1)
),
known AS (
    INSERT INTO images (id, tenant_id, reference, recipe, recipe_hash, focal_x, focal_y)
    SELECT $1, $2, $3, $4, $5, $14, $15 FROM living
        -- A point of the picture before says nothing about this one.
        ON CONFLICT (id) DO UPDATE SET focal_x = excluded.focal_x, focal_y = excluded.focal_y
         WHERE (images.focal_x, images.focal_y)
               IS DISTINCT FROM (excluded.focal_x, excluded.focal_y)
)
INSERT INTO image_sources (image_id, source_seq, tenant_id, key, etag, sha256, bytes, content_type,
                           width, height)
SELECT $1, living.target_seq, $2, $6, $7, $8, $9, $10, $11, $12 FROM living
RETURNING image_id
"""


# The image was named by its own request: nobody waits for its target, and it has no tombstone.
INSERT_IMAGE: Final = f"""{ACCEPTING},
named AS (
    INSERT INTO targets (tenant_id, target, next_seq)
    SELECT accepted.tenant_id, accepted.target, accepted.target_seq + 1 FROM accepted
),
known AS (
    INSERT INTO images (id, tenant_id, reference, recipe, recipe_hash, focal_x, focal_y)
    SELECT $3, $4, $5, $6, $7, $15, $16 FROM accepted
),
stored AS (
    INSERT INTO image_sources (image_id, source_seq, tenant_id, key, etag, sha256, bytes,
                               content_type, width, height)
    SELECT $3, accepted.target_seq, $4, $8, $9, $10, $11, $12, $13, $14 FROM accepted
)
{ANSWERING}"""  # noqa: S608 - composed at import from that of any job


class AnswerStands(Exception):
    """An answer, on its way out of a transaction that must leave no trace."""

    def __init__(self, answer: Submitted) -> None:
        self.answer = answer


async def submit_image(
    connection: Connection, submission: Submission, source: NewSource, *, is_first: bool = False
) -> Submitted:
    """Accept a stored original with the job that renders it, in one transaction.

    For the first upload, which named its image itself, and for a replacement alike. A repeat of the
    request leaves no trace, and what another job stands for by the dedup key none but its own key:
    the answer names that job, and its image by its target. What would be new about an image that
    was deleted is RequestRejected.
    """
    values = [getattr(source, name) for name in _SOURCE]
    point = source.focal or (None, None)
    if is_first:
        waits = True
        rows = await connection.fetch(
            INSERT_IMAGE, [document_of(submission, 1)], waits, *values, *point
        )
        if rows:  # else its key stands for another
            return submitted_of(rows[0], created=True)
    try:
        async with connection.transaction():
            answer = await insert_submission(connection, submission)
            if not answer.created:
                raise AnswerStands(answer)  # noqa: TRY301 - which rolls back
            if await connection.fetchval(ACCEPT_SOURCE, *values, answer.job_id, *point) is None:
                raise RequestRejected("image_deleted", IMAGE_DELETED)
            return answer
    except AnswerStands as standing:
        if submission.dedup_key is None or connection.is_in_transaction():
            return standing.answer
        return await find_living(connection, submission)


PUBLISH_IMAGES: Final = """
WITH new AS MATERIALIZED (
    SELECT *
      FROM jsonb_to_recordset($1::jsonb) AS new (
          job_id uuid, claim_no bigint, image_id uuid, tenant_id text, source_seq bigint,
          revision bigint, recipe text, recipe_hash text, format text, width integer,
          height integer, bytes bigint, sha256 text, thumbhash text, color text, encoder text,
          focal float8[], variants jsonb)
),
current AS MATERIALIZED (
    SELECT images.id, images.source_seq, images.revision
      FROM images
      JOIN new ON new.image_id = images.id AND new.tenant_id = images.tenant_id
     ORDER BY images.id
       FOR UPDATE OF images
),
flipped AS (
    -- Forward only, and never over a tombstone: what is older than what is shown stays unseen.
    UPDATE images
       SET source_seq = new.source_seq, revision = new.revision, claim_no = new.claim_no,
           job_id = new.job_id, recipe = new.recipe, recipe_hash = new.recipe_hash,
           published_at = now(), updated_at = now()
      FROM new
      JOIN current ON current.id = new.image_id
     WHERE images.id = new.image_id
       AND NOT EXISTS (SELECT FROM image_tombstones
                        WHERE image_tombstones.image_id = new.image_id)
       AND (current.revision IS NULL
            OR (current.source_seq, current.revision) < (new.source_seq, new.revision))
    RETURNING new.job_id, images.id AS image_id, images.tenant_id, current.revision AS old_revision
),
written AS (
    INSERT INTO image_revisions (image_id, revision, tenant_id, source_seq, claim_no, job_id,
                                 recipe, recipe_hash, format, width, height, bytes, sha256,
                                 thumbhash, color, encoder, focal_x, focal_y)
    SELECT new.image_id, new.revision, new.tenant_id, new.source_seq, new.claim_no, new.job_id,
           new.recipe, new.recipe_hash, new.format, new.width, new.height, new.bytes, new.sha256,
           new.thumbhash, new.color, new.encoder, new.focal[1], new.focal[2]
      FROM new
      JOIN flipped ON flipped.job_id = new.job_id
),
listed AS (
    INSERT INTO variants (image_id, revision, name, format, key, content_type, width, height, bytes,
                          sha256, warnings)
    SELECT new.image_id, new.revision, variant.*
      FROM new
      JOIN flipped ON flipped.job_id = new.job_id
      CROSS JOIN LATERAL jsonb_to_recordset(new.variants) AS variant (
          name text, format text, key text, content_type text, width integer, height integer,
          bytes bigint, sha256 text, warnings text[])
),
owed AS (
    -- A replacement owes the edge one invalidation, whatever the number of variants.
    INSERT INTO invalidations AS debt (image_id, tenant_id, reason)
    SELECT flipped.image_id, flipped.tenant_id, 'replaced'
      FROM flipped
     WHERE flipped.old_revision IS NOT NULL
     ORDER BY flipped.image_id
        ON CONFLICT (image_id) WHERE batch_id IS NULL
        DO UPDATE SET debts = debt.debts + 1, last_owed_at = clock_timestamp()
    RETURNING debt.id, debt.image_id
),
superseded AS (
    UPDATE image_revisions
       SET superseded_at = now(), invalidation_id = owed.id
      FROM flipped
      JOIN owed ON owed.image_id = flipped.image_id
     WHERE image_revisions.image_id = flipped.image_id
       AND image_revisions.revision = flipped.old_revision
)
SELECT flipped.job_id FROM flipped
"""


async def publish_images(
    connection: Connection, publications: Sequence[Publication]
) -> frozenset[JobId]:
    """Flip the pointers that move forward; the jobs whose publication is now the current one.

    Only inside the transaction that completes those jobs.
    """
    if not publications:
        return frozenset()
    rows = await connection.fetch(PUBLISH_IMAGES, list(map(_record, publications)))
    return frozenset(JobId(row["job_id"]) for row in rows)


def _record(publication: Publication) -> dict[str, object]:
    """As the statement's columns are; it takes none of the rest."""
    variants = [asdict(variant.facts) | {"key": variant.key} for variant in publication.variants]
    flat = asdict(publication) | asdict(publication.source) | asdict(publication.placeholder)
    focal = None if publication.focal is None else [*publication.focal]
    return flat | {"variants": variants, "focal": focal}


# Of what is shown its revision tells: workers of the release before leave the image's own alone.
RECIPE_HASH: Final = """CASE WHEN images.revision IS NULL THEN images.recipe_hash
            ELSE shown.recipe_hash END AS recipe_hash"""

# A status is the state of things, not a column: what is shown, or else what its newest job came to.
STATUS: Final = """CASE WHEN tombstone.image_id IS NOT NULL THEN 'deleted'
            WHEN images.revision IS NOT NULL THEN 'ready'
            WHEN newest.state = 'failed' THEN 'failed'
            ELSE 'pending' END"""

# Each is asked: a join could become a hash of every tombstone there is.
FATE: Final = """
  LEFT JOIN LATERAL (
      SELECT tombstones.image_id
        FROM image_tombstones AS tombstones
       WHERE tombstones.image_id = images.id
       LIMIT 1
  ) AS tombstone ON true
  LEFT JOIN LATERAL (
      SELECT jobs.id AS job_id, jobs.state, jobs.failure_code, jobs.failure_message
        FROM jobs
       WHERE jobs.tenant_id = images.tenant_id AND jobs.target = 'image:' || images.id
       ORDER BY jobs.id DESC NULLS LAST
       LIMIT 1
  ) AS newest ON true
"""

IMAGE: Final = f"""
SELECT images.id AS image_id, images.tenant_id, images.reference, images.recipe,
       images.created_at, images.updated_at, {RECIPE_HASH}, {STATUS} AS status, newest.job_id,
       CASE WHEN newest.state = 'failed' THEN jsonb_build_object(
           'code', newest.failure_code, 'message', coalesce(newest.failure_message, ''))
           END AS failure,
       shown.revision, shown.thumbhash, shown.color,
       CASE WHEN shown.revision IS NULL THEN images.focal_x ELSE shown.focal_x END AS focal_x,
       CASE WHEN shown.revision IS NULL THEN images.focal_y ELSE shown.focal_y END AS focal_y,
       CASE WHEN shown.revision IS NOT NULL THEN jsonb_build_object(
           'format', shown.format, 'width', shown.width, 'height', shown.height,
           'bytes', shown.bytes) END AS source,
       CASE WHEN tombstone.image_id IS NULL AND original.created_at IS NOT NULL
            THEN jsonb_build_object(
           'accepted_at', original.created_at,
           'gone', nullif(original.gone_at IS NOT NULL, false)) END AS original,
       coalesce(made.variants, '[]'::jsonb) AS variants
  FROM images
  {FATE}
  LEFT JOIN image_revisions AS shown
         ON shown.image_id = images.id AND shown.revision = images.revision
        AND tombstone.image_id IS NULL
  LEFT JOIN LATERAL (
      SELECT sources.created_at, sources.gone_at
        FROM image_sources AS sources
       WHERE sources.image_id = images.id
         AND sources.source_seq = coalesce(images.source_seq, sources.source_seq)
       ORDER BY sources.source_seq DESC
       LIMIT 1
  ) AS original ON true
  LEFT JOIN LATERAL (
      SELECT jsonb_agg(to_jsonb(variants) ORDER BY variants.width, variants.format, variants.name)
                 AS variants
        FROM variants
       WHERE variants.image_id = shown.image_id AND variants.revision = shown.revision
  ) AS made ON true
"""  # noqa: S608 - composed at import

GET_IMAGE: Final = f"{IMAGE} WHERE images.id = $1 AND images.tenant_id = $2"


async def get_image(connection: Connection, image_id: UUID, tenant_id: TenantId) -> ImageView:
    """One image; another tenant's is not found."""
    row = await connection.fetchrow(GET_IMAGE, image_id, tenant_id)
    if row is None:
        raise NotFound("image")
    return ImageView.of(row)


# Where stable addresses lead; each is asked, as a join could become a hash of every image there is.
FIND_CURRENT: Final = """
SELECT wanted.image_id, wanted.name, wanted.format,
       (SELECT variants.key
          FROM images
          JOIN variants ON variants.image_id = images.id AND variants.revision = images.revision
         WHERE images.id = wanted.image_id
           AND variants.name = wanted.name AND variants.format = wanted.format
           AND (SELECT count(*) FROM image_tombstones AS tombstones
                 WHERE tombstones.image_id = images.id) = 0) AS key
  FROM unnest($1::uuid[], $2::text[], $3::text[]) AS wanted (image_id, name, format)
"""

Address: TypeAlias = tuple[UUID, str, str]
"""An image, the name of a variant and its format."""


async def find_current(
    connection: Connection, wanted: Sequence[Address], *, within: float
) -> dict[Address, str]:
    """The keys of current revisions; none of what is not yet, no more, or never was."""
    rows = await connection.fetch(
        FIND_CURRENT,
        [image_id for image_id, _, _ in wanted],
        [name for _, name, _ in wanted],
        [image_format for _, _, image_format in wanted],
        within=within,
    )
    return {
        (row["image_id"], row["name"], row["format"]): row["key"]
        for row in rows
        if row["key"] is not None
    }
