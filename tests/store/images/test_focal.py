"""The focal point of an image: brought by an upload, forgotten by a replacement, kept otherwise."""

from dataclasses import replace
from uuid import UUID

import asyncpg
import pytest

from imagefleet.jobs.bulk import SetWalk
from imagefleet.jobs.images import Caveat, Focal, image_target
from imagefleet.jobs.kinds import BUILT_IN, Draft, ProcessImage, ReprocessImages
from imagefleet.jobs.lifecycle import Completed, ResultReason
from imagefleet.jobs.model import JobId, Submission, TenantId, new_job_id
from imagefleet.jobs.shapes.images import FocalPoint
from imagefleet.store.database import Connection
from imagefleet.store.images.images import get_image, submit_image
from imagefleet.store.images.reprocessing import reprocess_image, submit_page
from imagefleet.store.jobs.submissions import submit_job
from tests.conftest import OpenConnection
from tests.store.images.deletions import an_upload
from tests.support.database import driver_of
from tests.support.factories import (
    TENANT,
    MadeJob,
    a_worker,
    claim_job,
    hold_job,
    settle_job,
)
from tests.support.image_rows import a_publication, a_set, a_variant, renewal_of
from tests.support.rows import job_row

HERE, THERE = Focal(0.25, 0.75), Focal(0, 1)


def asking(image_id: UUID, *, key: str | None = None, tenant_id: TenantId = TENANT) -> Draft:
    return Draft(
        job_id=new_job_id(),
        kind=BUILT_IN["process_image"],
        tenant_id=tenant_id,
        created_by="somebody",
        correlation_id="a-move",
        idempotency_key=key,
        target=image_target(image_id),
    )


async def an_image(
    api: Connection, focal: Focal | None = None, image_id: UUID | None = None
) -> UUID:
    """An accepted upload, of whose job nobody has begun; of an image, its replacement."""
    submission, source = an_upload(image_id or new_job_id())
    source = replace(source, focal=focal)
    submission = replace(submission, payload=ProcessImage.payload(source))
    await submit_image(api, submission, source, is_first=image_id is None)
    return source.image_id


async def wanted(connection: Connection, image_id: UUID) -> Focal | None:
    row = await connection.fetchrow("SELECT focal_x, focal_y FROM images WHERE id = $1", image_id)
    assert row is not None
    return Focal.of(row["focal_x"], row["focal_y"])


async def shown(connection: Connection, image_id: UUID) -> FocalPoint | None:
    return (await get_image(connection, image_id, TENANT)).focal_point


def at(focal: Focal) -> FocalPoint:
    return FocalPoint(x=focal.x, y=focal.y)


async def rendered(worker: Connection, image_id: UUID) -> ResultReason:
    """The next job of the image does what it was told."""
    job_id = await worker.fetchval(
        "SELECT id FROM jobs WHERE target = $1 AND state = 'queued' ORDER BY target_seq LIMIT 1",
        image_target(image_id),
    )
    job = await hold_job(worker, JobId(job_id))
    return await published(worker, image_id, job)


async def published(worker: Connection, image_id: UUID, job: MadeJob) -> ResultReason:
    row = await job_row(worker, job.job_id)
    payload, revision = row["payload"], row["target_seq"]
    thumb = a_variant(
        f"i/{image_id}/{revision}.{job.claim_no}/thumb.webp", warnings=(Caveat.NOT_ENLARGED,)
    )
    made = a_publication(
        job, image_id, revision, [thumb], source_seq=payload.get("source_seq") or revision
    )
    focal = payload.get("focal")
    done = Completed(publication=replace(made, focal=focal and Focal(*focal)))
    await settle_job(worker, job, done)
    reason: str = (await job_row(worker, job.job_id))["result_reason"]
    return ResultReason(reason)


# At upload.


@pytest.mark.parametrize("focal", [None, HERE, THERE])
async def test_an_upload_brings_its_point(
    api: Connection, worker: Connection, focal: Focal | None
) -> None:
    image_id = await an_image(api, focal)

    assert await wanted(api, image_id) == focal
    assert await shown(api, image_id) == (focal and at(focal))
    await rendered(worker, image_id)
    assert await shown(api, image_id) == (focal and at(focal))


@pytest.mark.parametrize("focal", [None, THERE])
async def test_a_replacement_forgets_the_point_of_the_picture_before(
    api: Connection, focal: Focal | None
) -> None:
    image_id = await an_image(api, HERE)

    await an_image(api, focal, image_id)

    assert await wanted(api, image_id) == focal


@pytest.mark.parametrize("table", ["images", "image_revisions"])
@pytest.mark.parametrize("values", ["0.5, NULL", "NULL, 0.5", "1.5, 0.5", "0.5, -0.1", "'NaN', 0"])
async def test_half_a_point_and_one_outside_of_the_picture_are_refused(
    api: Connection, worker: Connection, superuser: OpenConnection, table: str, values: str
) -> None:
    await rendered(worker, await an_image(api))

    with pytest.raises(asyncpg.CheckViolationError):
        await driver_of(superuser).execute(
            f"UPDATE {table} SET (focal_x, focal_y) = ({values})"  # noqa: S608 - names of ours
        )


async def test_what_is_rendered_again_keeps_the_point(api: Connection, worker: Connection) -> None:
    image_id, plain = await an_image(api, HERE), await an_image(api)

    submission, _ = await reprocess_image(
        api, asking(image_id), image_id, recipe="avif", versions={}
    )
    set_job = a_set()
    await worker_submits(worker, set_job)

    assert [*HERE] == submission.payload["focal"]
    rows = await worker.fetch(
        "SELECT target, payload->'focal' AS focal FROM jobs WHERE parent_job_id = $1",
        set_job.job_id,
    )
    assert {image_target(image_id): [*HERE], image_target(plain): None} == {
        row["target"]: row["focal"] for row in rows
    }


async def worker_submits(worker: Connection, set_job: Submission) -> None:
    await submit_job(worker, set_job)
    answer = await claim_job(worker, set_job.job_id, await a_worker(worker))
    assert answer.claim is not None
    renewal = renewal_of(answer.claim)
    everything = ReprocessImages(all_images=True)
    await submit_page(worker, answer.claim, renewal, everything, SetWalk())
