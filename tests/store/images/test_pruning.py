"""What images leave behind is forgotten, and what a living image is made of never is."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from imagefleet.errors import NotFound
from imagefleet.jobs.images import image_target
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.images.deleting import get_deletion
from imagefleet.store.images.images import get_image, submit_image
from imagefleet.store.images.pruning import prune_images, prune_revisions, prune_uploads
from imagefleet.store.images.uploads import create_upload, get_upload, submit_upload
from imagefleet.store.jobs.pruning import prune_jobs
from tests.store.images.deletions import an_upload
from tests.support.factories import (
    CORRUPT,
    TENANT,
    age_finished_jobs,
    hold_job,
    settle_job,
)

A_MONTH_AGO = timedelta(days=31)
ROWS_OF_AN_IMAGE = {
    "images": "id",
    "image_sources": "image_id",
    "image_revisions": "image_id",
    "variants": "image_id",
    "image_tombstones": "image_id",
    "invalidations": "image_id",
}


async def ended(worker: Connection, job_id: JobId, *, fails: bool = False) -> None:
    await settle_job(worker, await hold_job(worker, job_id), CORRUPT if fails else Completed())


async def an_image(api: Connection, worker: Connection, superuser: Connection) -> UUID:
    """Rendered once and replaced once; its first revision is superseded, its jobs are over."""
    image_id = new_job_id()
    for seq in (1, 2):
        submission, source = an_upload(image_id)
        await submit_image(api, submission, source)
        await ended(worker, submission.job_id)
        await superuser.execute(
            "INSERT INTO image_revisions (image_id, revision, tenant_id, source_seq, claim_no,"
            " job_id, recipe, format, width, height, bytes, sha256, encoder, superseded_at)"
            " VALUES ($1, $2::bigint, $3, $2::bigint, 1, $4, 'default', 'jpeg', 1, 1, 1, '',"
            " 'tests', CASE WHEN $2::bigint = 1 THEN now() END)",
            *(image_id, seq, TENANT, submission.job_id),
        )
        await superuser.execute(
            "INSERT INTO variants (image_id, revision, name, format, key, content_type, width,"
            " height, bytes, sha256) VALUES ($1, $2, 'thumb', 'webp', $3, 'image/webp', 1, 1, 1,"
            " '')",
            *(image_id, seq, f"i/{image_id}/{seq}"),
        )
    return image_id


async def buried(superuser: Connection, image_id: UUID, **more: timedelta | None) -> None:
    """Deleted, dark and emptied again, so long ago; None: not yet."""
    ages = {"dark": A_MONTH_AGO, "emptied_again": A_MONTH_AGO} | more
    await superuser.execute(
        "INSERT INTO image_tombstones (image_id, tenant_id, job_id, requested_by, requested_at,"
        " objects_deleted_at, dark_at, emptied_again_at)"
        " VALUES ($1, $2, gen_random_uuid(), 'tests', now() - interval '60 days',"
        " now() - interval '60 days', now() - $3::interval, now() - $4::interval)",
        *(image_id, TENANT, ages["dark"], ages["emptied_again"]),
    )
    await superuser.execute(
        "INSERT INTO invalidations (image_id, tenant_id, reason, last_owed_at)"
        " VALUES ($1, $2, 'deleted', now() - interval '60 days')",
        *(image_id, TENANT),
    )


async def without_jobs(maintenance: Connection, superuser: Connection) -> None:
    await age_finished_jobs(superuser)
    await prune_jobs(maintenance, limit=100)


async def rows_of(superuser: Connection, image_id: UUID) -> dict[str, int]:
    found = {
        table: await superuser.fetchval(
            f"SELECT count(*) FROM {table} WHERE {column} = $1",  # noqa: S608 - words of this file
            image_id,
        )
        for table, column in ROWS_OF_AN_IMAGE.items()
    }
    target = "SELECT count(*) FROM targets WHERE target = $1"
    return found | {"targets": await superuser.fetchval(target, image_target(image_id))}


async def test_a_deleted_image_is_forgotten_with_all_that_is_said_of_it(
    api: Connection,
    maintenance: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    gone, living = [await an_image(api, worker, superuser) for _ in range(2)]
    await without_jobs(maintenance, superuser)
    before = await rows_of(superuser, living)
    await buried(superuser, gone)

    page = await prune_images(maintenance, limit=10)

    assert (1, 1) == (page.seen, page.pruned)
    assert {0} == set((await rows_of(superuser, gone)).values())
    assert before == await rows_of(superuser, living)
    assert 3 == await superuser.fetchval("SELECT next_seq FROM targets"), "the living one's"
    with pytest.raises(NotFound):
        await get_image(api, gone, TENANT)


@pytest.mark.parametrize(
    "ages",
    [
        {"dark": timedelta(days=29)},
        {"dark": None},
        {"emptied_again": None},
    ],
    ids=str,
)
async def test_the_receipt_of_a_deletion_is_readable_for_as_long_as_retention(
    ages: dict[str, timedelta | None],
    api: Connection,
    maintenance: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    image_id = await an_image(api, worker, superuser)
    await without_jobs(maintenance, superuser)
    await buried(superuser, image_id, **ages)

    assert 0 == (await prune_images(maintenance, limit=10)).pruned

    assert await get_deletion(api, image_id, TENANT) is not None


async def test_a_deleted_image_is_kept_while_a_failure_of_it_may_be_replayed(
    api: Connection,
    maintenance: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    image_id = await an_image(api, worker, superuser)
    submission, source = an_upload(image_id)
    await submit_image(api, submission, source)
    await ended(worker, submission.job_id, fails=True)
    await without_jobs(maintenance, superuser)
    await buried(superuser, image_id)

    kept = await prune_images(maintenance, limit=10)
    await superuser.execute(
        "UPDATE dead_letters SET acknowledged_at = now(), acknowledged_by = 'x'"
    )
    await prune_jobs(maintenance, limit=10)
    again = await prune_images(maintenance, limit=10)

    assert [(1, 0), (1, 1)] == [(page.seen, page.pruned) for page in (kept, again)]


async def test_a_deleted_image_that_somebody_asks_about_just_now_is_kept(
    api: Connection,
    maintenance: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    image_id = await an_image(api, worker, superuser)
    await without_jobs(maintenance, superuser)
    await buried(superuser, image_id)

    async with superuser.transaction():
        await superuser.execute("SELECT FROM targets FOR UPDATE")
        busy = await prune_images(maintenance, limit=10)

    assert (0, 1) == (busy.pruned, (await prune_images(maintenance, limit=10)).pruned)


async def test_a_revision_is_forgotten_long_after_it_was_swept(
    api: Connection,
    maintenance: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    """What is shown, and what was superseded but not swept yet, stays."""
    ages = (timedelta(days=29), A_MONTH_AGO, None)
    images = [await an_image(api, worker, superuser) for _ in ages]
    for image_id, age in zip(images, ages, strict=True):
        await superuser.execute(
            "UPDATE image_revisions SET swept_at = now() - $2::interval"
            " WHERE image_id = $1 AND revision = 1",
            *(image_id, age),
        )

    page = await prune_revisions(maintenance, limit=10)

    left = [(await rows_of(superuser, image_id))["image_revisions"] for image_id in images]
    assert (1, [2, 1, 2]) == (page.pruned, left)


async def test_a_used_upload_is_forgotten_after_its_job(
    api: Connection,
    maintenance: Connection,
    worker: Connection,
    superuser: Connection,
) -> None:
    """Until then a repeat of the request gets its answer; one that nobody used is the sweeper's."""
    used, unused = uuid4(), uuid4()
    submission, source = an_upload(new_job_id())
    for upload_id in (used, unused):
        await create_upload(
            api,
            upload_id=upload_id,
            tenant_id=TENANT,
            image_id=source.image_id,
            key=f"o/{upload_id}",
            content_type="image/jpeg",
            max_bytes=100,
            created_by="tests",
            valid_for=timedelta(minutes=15),
        )
    await submit_upload(api, submission, replace(source, key=f"o/{used}"), used)
    await ended(worker, submission.job_id)
    young = await prune_uploads(maintenance, limit=10)
    await superuser.execute("UPDATE uploads SET used_at = used_at - $1::interval", A_MONTH_AGO)
    kept = await prune_uploads(maintenance, limit=10)
    await without_jobs(maintenance, superuser)

    gone = await prune_uploads(maintenance, limit=10)

    assert [(0, 0), (1, 0), (1, 1)] == [(one.seen, one.pruned) for one in (young, kept, gone)]
    assert unused == (await get_upload(api, unused, TENANT)).id
    with pytest.raises(NotFound):
        await get_upload(api, used, TENANT)
