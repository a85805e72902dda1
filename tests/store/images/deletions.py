"""Images that are uploaded, rendered and deleted, as the tests about deletions make them."""

from dataclasses import replace
from uuid import UUID, uuid4

from imagefleet.jobs.images import Emptied, NewSource, Publication, image_target, original_key
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, Submission, Submitted
from imagefleet.store.database import Connection
from imagefleet.store.images.deleting import Deleting, delete_image
from imagefleet.store.images.images import submit_image
from tests.support.factories import (
    CORRUPT,
    TENANT,
    MadeJob,
    a_submission,
    hold_job,
    settle_job,
)
from tests.support.image_rows import a_publication, a_variant
from tests.support.rows import job_row


def an_upload(image_id: UUID, **more: object) -> tuple[Submission, NewSource]:
    submission = a_submission(type="process_image", target=image_target(image_id))
    source = NewSource(
        image_id=image_id,
        tenant_id=TENANT,
        key=original_key(image_id, uuid4()),
        bytes=100,
        content_type="image/jpeg",
    )
    return replace(submission, **more), source  # type: ignore[arg-type]


async def uploaded(api: Connection, image_id: UUID) -> Submitted:
    return await submit_image(api, *an_upload(image_id))


def a_deletion(image_id: UUID, **more: object) -> Submission:
    submission = a_submission(
        type="delete_image",
        target=image_target(image_id),
        preempts=True,
        dedup_key=str(image_id),
        payload={"image_id": str(image_id)},
    )
    return replace(submission, **more)  # type: ignore[arg-type]


def a_cancel(job_id: JobId) -> Submission:
    payload = {"job_id": str(job_id), "code": "image_deleted"}
    return a_submission(type="cancel_job", payload=payload, dedup_key=str(job_id))


async def deleted(api: Connection, image_id: UUID, **more: object) -> Deleting:
    return await delete_image(api, a_deletion(image_id, **more), image_id, cancelling=a_cancel)


async def publication(worker: Connection, image_id: UUID, job: MadeJob) -> Publication:
    revision = (await job_row(worker, job.job_id))["target_seq"]
    thumb = a_variant(f"i/{image_id}/{revision}.{job.claim_no}/thumb.webp")
    return a_publication(job, image_id, revision, [thumb])


async def failing(worker: Connection, job_id: JobId) -> JobId:
    await settle_job(worker, await hold_job(worker, job_id), CORRUPT)
    return job_id


def a_receipt(image_id: UUID) -> Completed:
    emptied = Emptied(
        image_id=image_id, tenant_id=TENANT, deleted=2, not_there=1, errors=0, keys=("a", "b")
    )
    return Completed(emptied=emptied)
