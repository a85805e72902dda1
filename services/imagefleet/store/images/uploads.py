"""Presigned uploads: the row is the gate through which one stored object becomes one job."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from imagefleet.errors import NotFound, RequestRejected
from imagefleet.jobs.images import NewSource
from imagefleet.jobs.limits import LIMITS
from imagefleet.jobs.model import JobId, Submission, Submitted, TenantId
from imagefleet.store.database import Connection
from imagefleet.store.images.images import AnswerStands, submit_image
from imagefleet.store.jobs.admissions import is_standing
from imagefleet.store.jobs.submissions import find_living


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Leave to store one object under one key."""

    id: UUID
    tenant_id: TenantId
    image_id: UUID
    key: str
    content_type: str
    max_bytes: int
    expires_at: datetime
    job_id: JobId | None


# Counts no further than the limit. Two at once do not see each other: so many more may come to be
# as one tenant has statements under way.
CREATE_UPLOAD: Final = """
WITH unused AS MATERIALIZED (
    SELECT forms.max_bytes FROM uploads AS forms
     WHERE forms.tenant_id = $2 AND forms.job_id IS NULL
     LIMIT $9
),
taken AS MATERIALIZED (
    SELECT count(*) AS forms, coalesce(sum(unused.max_bytes), 0) AS bytes FROM unused
),
created AS (
    INSERT INTO uploads (id, tenant_id, image_id, key, content_type, max_bytes, created_by,
                         expires_at)
    SELECT $1::uuid, $2, $3::uuid, $4, $5, $6::bigint, $7, now() + $8::interval
      FROM taken
     WHERE taken.forms < $9 AND taken.bytes + $6::bigint <= $10::bigint
    RETURNING expires_at
)
SELECT taken.forms, created.expires_at
  FROM taken
  LEFT JOIN created ON true
"""


class TooManyForms(RequestRejected):
    """The tenant has as many unused forms as it may have, or they allow as much as they may."""

    def __init__(self, limit: str) -> None:
        super().__init__("too_many_forms", "There are too many unused upload forms.")
        self.limit = limit


async def create_upload(
    connection: Connection,
    *,
    upload_id: UUID,
    tenant_id: TenantId,
    image_id: UUID,
    key: str,
    content_type: str,
    max_bytes: int,
    created_by: str,
    valid_for: timedelta,
    most_forms: int = LIMITS["forms"].default,
    most_bytes: int = LIMITS["form_bytes"].default,
) -> datetime:
    """Give leave to upload, until then; TooManyForms where so much was left unused."""
    (row,) = await connection.fetch(
        CREATE_UPLOAD,
        upload_id,
        tenant_id,
        image_id,
        key,
        content_type,
        max_bytes,
        created_by,
        valid_for,
        most_forms,
        most_bytes,
    )
    expires_at: datetime | None = row["expires_at"]
    if expires_at is None:
        raise TooManyForms("forms" if row["forms"] >= most_forms else "form_bytes")
    return expires_at


GET_UPLOAD: Final = """
SELECT uploads.id, uploads.tenant_id, uploads.image_id, uploads.key, uploads.content_type,
       uploads.max_bytes, uploads.expires_at, uploads.job_id
  FROM uploads
 WHERE uploads.id = $1 AND uploads.tenant_id = $2
"""


async def get_upload(connection: Connection, upload_id: UUID, tenant_id: TenantId) -> Upload:
    """One upload; another tenant's is not found."""
    row = await connection.fetchrow(GET_UPLOAD, upload_id, tenant_id)
    if row is None:
        raise NotFound("upload")
    return Upload(**dict(row))


USE_UPLOAD: Final = """
UPDATE uploads SET job_id = $2, used_at = now()
 WHERE id = $1 AND (job_id IS NULL OR job_id = $2)
RETURNING id
"""


async def submit_upload(
    connection: Connection, submission: Submission, source: NewSource, upload_id: UUID
) -> Submitted:
    """Accept a posted original with its job; RequestRejected when another job has the upload.

    A repeat of the request gets its first answer, as with any other image. What another job stands
    for by the dedup key is answered with that, and the upload stays unused.
    """
    try:
        async with connection.transaction():
            # First of all, so that two requests about one upload go one after the other.
            if await connection.fetchval(USE_UPLOAD, upload_id, submission.job_id) is None:
                await _refuse_others(connection, submission)
            answer = await submit_image(connection, submission, source)
            if not answer.created:  # by another upload's job, and this one is still to be had
                raise AnswerStands(answer)  # noqa: TRY301 - which rolls back
            return answer
    except AnswerStands:
        return await find_living(connection, submission)


async def find_of_upload(connection: Connection, asking: Submission) -> Submitted:
    """The answer about an upload that has its job: this request's own, or RequestRejected."""
    await _refuse_others(connection, asking)
    return await find_living(connection, asking)


UPLOAD_USED: Final = "This upload has become an image already, by another request."


async def _refuse_others(connection: Connection, asking: Submission) -> None:
    if not await is_standing(connection, asking):
        raise RequestRejected("upload_used", UPLOAD_USED)
