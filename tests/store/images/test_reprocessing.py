"""Images rendered again: one by one, and a set page by page, each image exactly once."""

import asyncio
from uuid import UUID, uuid4

import pytest

from imagefleet.errors import ClaimLost, IdempotencyConflict, NotFound, RequestRejected
from imagefleet.jobs.bulk import LOW_PRIORITY, SetWalk
from imagefleet.jobs.images import image_target
from imagefleet.jobs.kinds import BUILT_IN, Draft, ReprocessImages, validate_payload
from imagefleet.jobs.lifecycle import Completed, Released
from imagefleet.jobs.model import CancelCode, Claim, JobId, Submitted, TenantId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection
from imagefleet.store.images.reprocessing import (
    PAGE,
    SubmittedPage,
    count_set,
    reprocess_image,
    submit_page,
)
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.settling import Settlement, settle_jobs
from tests.support.database import Database, driver_of
from tests.support.eventually import eventually
from tests.support.factories import (
    TENANT,
    MadeJob,
    a_submission,
    a_worker,
    claim_job,
    expire_lock,
    settle_job,
)
from tests.support.image_rows import a_set, an_image, asked_for, bury, renewal_of, some_images
from tests.support.rows import job_row, ring_row


async def claimed_by(worker: Connection, job_id: JobId) -> Claim:
    """The job in the hands of a worker of its own."""
    answer = await claim_job(worker, job_id, await a_worker(worker))
    assert answer.claim is not None, answer
    return answer.claim


RIVAL = TenantId("rival")


async def begun(worker: Connection, **payload: object) -> tuple[Claim, ReprocessImages, SetWalk]:
    """A claimed job of a set, before its first page."""
    submission = a_set(**payload)
    await submit_job(worker, submission)
    claim = await claimed_by(worker, submission.job_id)
    wanted = validate_payload(BUILT_IN["reprocess_images"], claim.payload)
    assert isinstance(wanted, ReprocessImages)
    return claim, wanted, SetWalk(total=await count_set(worker, claim.tenant_id, wanted))


async def walked(worker: Connection, **payload: object) -> tuple[JobId, list[SubmittedPage]]:
    """A whole walk."""
    claim, wanted, walk = await begun(worker, **payload)
    pages: list[SubmittedPage] = []
    while not pages or not pages[-1].over:
        pages.append(await submit_page(worker, claim, renewal_of(claim), wanted, walk))
        walk = pages[-1].walk
    return claim.job_id, pages


async def end_uploads(worker: Connection) -> None:
    """Nothing is open about any image."""
    for row in await worker.fetch("SELECT id FROM jobs WHERE state = 'queued'"):
        claim = await claimed_by(worker, row["id"])
        done = Settlement.of(claim, Completed(), RetryPolicy())
        worker_id = (await job_row(worker, claim.job_id))["locked_by"]
        await settle_jobs(worker, worker_id, [done])


async def test_a_set_is_walked_page_by_page_from_its_newest_image(
    api: Connection, worker: Connection
) -> None:
    images = await some_images(api, PAGE + 5)
    await end_uploads(worker)

    set_job, pages = await walked(worker)

    assert [PAGE, 5] == [len(page.rings) for page in pages]
    assert images == list(await asked_for(worker, set_job))
    row = await job_row(worker, set_job)
    assert (PAGE + 5, PAGE + 5) == (row["progress_done"], row["progress_total"])
    assert pages[-1].walk.cursor == row["progress_cursor"]
    assert row["last_progress_at"] is not None


async def test_a_page_that_ends_exactly_with_the_set_is_followed_by_an_empty_one(
    api: Connection, worker: Connection
) -> None:
    await some_images(api, PAGE)
    await end_uploads(worker)

    _, pages = await walked(worker)

    assert [(PAGE, False), (0, True)] == [(len(page.rings), page.over) for page in pages]


async def test_a_follow_up_whose_image_is_being_rendered_waits_for_that_without_a_message(
    api: Connection, worker: Connection
) -> None:
    images = await some_images(api, 2)

    set_job, (page,) = await walked(worker)

    assert (2, ()) == (page.walk.submitted, page.rings)
    parked = "SELECT count(*) FROM rings WHERE next_at = 'infinity'"
    assert images == list(await asked_for(worker, set_job))
    assert 2 == await worker.fetchval(parked)


async def test_a_follow_up_renders_what_is_there_on_behalf_of_who_asked(
    api: Connection, worker: Connection
) -> None:
    image_id = await an_image(api, recipe="avif")
    await an_image(api, image_id=image_id, recipe="avif")

    set_job, _ = await walked(worker)

    (job,) = await worker.fetch("SELECT * FROM jobs WHERE parent_job_id = $1", set_job)
    newest = await worker.fetchrow(
        "SELECT * FROM image_sources WHERE image_id = $1 ORDER BY source_seq DESC LIMIT 1", image_id
    )
    assert newest is not None
    assert {
        "image_id": str(image_id),
        "source_key": newest["key"],
        "source_bytes": 7,
        "source_sha256": "0" * 64,
        "source_etag": '"etag"',
        "source_width": 64,
        "source_height": 48,
        "content_type": "image/jpeg",
        "recipe": "avif",
        "slow": "of_a_set",
        "source_seq": 2,
    } == job["payload"]
    assert ("process_image", "general", LOW_PRIORITY, 7, ["s3"]) == tuple(
        job[name] for name in ("type", "lane", "priority", "max_attempts", "services")
    )
    assert (image_target(image_id), 3) == (job["target"], job["target_seq"])
    assert ("the-set", "somebody") == (job["correlation_id"], job["created_by"])
    assert await ring_row(worker, JobId(job["id"])) is not None


async def test_a_set_may_change_the_recipe(api: Connection, worker: Connection) -> None:
    await an_image(api)

    set_job, _ = await walked(worker, all_images=True, recipe="avif")

    assert "avif" == await worker.fetchval(
        "SELECT payload->>'recipe' FROM jobs WHERE parent_job_id = $1", set_job
    )


async def test_sets_are_named_by_ids_reference_or_recipe(
    api: Connection, worker: Connection
) -> None:
    plain, avif = await an_image(api), await an_image(api, recipe="avif")
    named = await an_image(api, reference="r")
    unknown = uuid4()

    sets: list[dict[str, object]] = [
        {"image_ids": [str(one) for one in (plain, plain, avif, unknown)]},
        {"reference": "r"},
        {"recipe_was": "avif"},
    ]
    walks = [await walked(worker, **payload) for payload in sets]

    asked = [set(await asked_for(worker, set_job)) for set_job, _ in walks]
    assert [{plain, avif}, {named}, {avif}] == asked
    tallies = [
        (last.walk.seen, last.walk.total, last.walk.submitted, last.walk.skipped)
        for _, (*_, last) in walks
    ]
    assert [(3, 3, 2, 1), (1, 1, 1, 0), (3, 3, 1, 0)] == tallies


async def test_ids_are_walked_in_pages_too(api: Connection, worker: Connection) -> None:
    images = await some_images(api, PAGE + 1)

    set_job, pages = await walked(worker, image_ids=[str(image) for image in images])

    assert 2 == len(pages)
    assert images == list(await asked_for(worker, set_job))


async def test_deleted_images_are_skipped_and_counted(api: Connection, worker: Connection) -> None:
    kept, deleted = await an_image(api), await an_image(api)
    await bury(api, deleted)

    set_job, pages = await walked(worker)

    assert [kept] == list(await asked_for(worker, set_job))
    assert (1, 1) == (pages[-1].walk.submitted, pages[-1].walk.skipped)


@pytest.mark.parametrize("how", ["all_images", "image_ids", "reference"])
async def test_images_of_another_tenant_are_never_touched(
    api: Connection, worker: Connection, how: str
) -> None:
    theirs = await an_image(api, tenant_id=RIVAL, reference="r")
    mine = await an_image(api, reference="r")
    named = {"all_images": True, "image_ids": [str(theirs), str(mine)], "reference": "r"}

    set_job, _ = await walked(worker, **{how: named[how]})

    assert [mine] == list(await asked_for(worker, set_job))
    assert 2 == await worker.fetchval("SELECT next_seq FROM targets WHERE tenant_id = $1", RIVAL)


async def test_a_later_attempt_goes_on_behind_the_last_page(
    api: Connection, worker: Connection
) -> None:
    images = await some_images(api, PAGE + 3)
    claim, wanted, walk = await begun(worker)
    await submit_page(worker, claim, renewal_of(claim), wanted, walk)
    await settle_job(worker, await held(worker, claim), Released(why="drain"))

    again = await claimed_by(worker, claim.job_id)
    resumed = SetWalk.of(again.cursor)
    assert resumed is not None
    page = await submit_page(worker, again, renewal_of(again), wanted, resumed)

    assert (images[PAGE - 1], PAGE) == (resumed.before, resumed.submitted)
    assert (True, PAGE + 3) == (page.over, page.walk.submitted)
    assert images == list(await asked_for(worker, claim.job_id))


async def held(worker: Connection, claim: Claim) -> MadeJob:
    row = await job_row(worker, claim.job_id)
    return MadeJob(job_id=claim.job_id, claim_no=claim.claim_no, worker_id=row["locked_by"])


async def test_without_the_claim_nothing_of_a_page_is_submitted(
    api: Connection, worker: Connection, superuser: Connection
) -> None:
    await some_images(api, 3)
    claim, wanted, walk = await begun(worker)
    await expire_lock(superuser, claim.job_id)
    taken_over = await claimed_by(worker, claim.job_id)

    with pytest.raises(ClaimLost):
        await submit_page(worker, claim, renewal_of(claim), wanted, walk)

    assert [] == list(await asked_for(worker, claim.job_id))
    assert taken_over.claim_no == claim.claim_no + 1
    assert (await job_row(worker, claim.job_id))["progress_cursor"] is None


async def test_a_page_is_written_whole_or_not_at_all(
    api: Connection, worker: Connection, superuser: Connection
) -> None:
    await some_images(api, 3)
    claim, wanted, walk = await begun(worker)
    await superuser.execute(
        "CREATE FUNCTION fall() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'in the middle'; END $$;"
        "CREATE TRIGGER fall BEFORE UPDATE OF progress_cursor ON jobs"
        " FOR EACH ROW EXECUTE FUNCTION fall()"
    )
    with pytest.raises(Exception, match="in the middle"):
        await submit_page(worker, claim, renewal_of(claim), wanted, walk)
    await superuser.execute("DROP TRIGGER fall ON jobs")

    assert [] == list(await asked_for(worker, claim.job_id))
    assert await worker.fetchval("SELECT bool_and(next_seq = 2) FROM targets")


async def test_two_claims_of_one_set_ask_for_each_image_once(
    api: Connection, worker: Connection, superuser: Connection, database: Database
) -> None:
    """The one that lost its claim still runs, and is in the middle of the same page."""
    images = await some_images(api, 5)
    claim, wanted, walk = await begun(worker)
    await expire_lock(superuser, claim.job_id)
    newer = await claimed_by(worker, claim.job_id)

    async def step(mine: Claim) -> SubmittedPage:
        async with database.connect("worker") as connection:
            return await submit_page(connection, mine, renewal_of(mine), wanted, walk)

    results = await asyncio.gather(*map(step, (claim, newer)), return_exceptions=True)

    assert [ClaimLost, SubmittedPage] == [type(result) for result in results]
    assert images == list(await asked_for(worker, claim.job_id))


async def test_an_image_is_asked_for_once_though_the_cursor_were_lost(
    api: Connection, worker: Connection
) -> None:
    images = await some_images(api, 3)
    claim, wanted, walk = await begun(worker)

    await submit_page(worker, claim, renewal_of(claim), wanted, walk)
    again = await submit_page(worker, claim, renewal_of(claim), wanted, walk)

    assert images == list(await asked_for(worker, claim.job_id))
    assert () == again.rings


async def test_nothing_of_a_page_is_submitted_once_its_set_is_cancelled(
    api: Connection, worker: Connection
) -> None:
    await an_image(api)
    claim, wanted, walk = await begun(worker)
    await cancel_job(worker, claim.job_id, code=CancelCode.CANCELLED, detail=None)

    page = await submit_page(worker, claim, renewal_of(claim), wanted, walk)

    assert SubmittedPage(walk=walk, over=False, cancelled=True, rings=()) == page
    assert [] == list(await asked_for(worker, claim.job_id))


async def test_a_set_too_large_to_count_has_no_total(
    api: Connection, worker: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagefleet.store.images.reprocessing.MOST_COUNTED", 1)
    await some_images(api, 2, reference="r")

    _, _, by_reference = await begun(worker, reference="r")
    _, _, everything = await begun(worker)

    assert [None, None] == [by_reference.total, everything.total]


# One image.


def once_more(image_id: UUID, idempotency_key: str | None = None) -> Draft:
    return Draft(
        kind=BUILT_IN["process_image"],
        tenant_id=TENANT,
        created_by="tests",
        correlation_id="tests",
        idempotency_key=idempotency_key,
        target=image_target(image_id),
    )


async def test_an_image_is_rendered_again_from_its_newest_original(
    api: Connection, worker: Connection
) -> None:
    image_id = await an_image(api)
    await an_image(api, image_id=image_id)

    _, submitted = await reprocess_image(
        api, once_more(image_id), image_id, recipe="avif", versions={}
    )

    row = await job_row(worker, submitted.job_id)
    assert (2, "avif") == (row["payload"]["source_seq"], row["payload"]["recipe"])
    assert 3 == row["target_seq"]


async def test_what_is_unknown_or_anothers_is_not_found(api: Connection) -> None:
    theirs = await an_image(api, tenant_id=RIVAL)

    for image_id in (theirs, uuid4()):
        with pytest.raises(NotFound):
            await reprocess_image(api, once_more(image_id), image_id, recipe=None, versions={})


async def test_of_a_deleted_image_only_a_repeat_is_answered(api: Connection) -> None:
    image_id = await an_image(api)

    async def asked(fingerprint: str) -> Submitted:
        draft = once_more(image_id, "k")
        _, found = await reprocess_image(
            api, draft, image_id, recipe=None, versions={}, fingerprint=fingerprint
        )
        return found

    first = await asked("f")
    await bury(api, image_id)

    repeat = await asked("f")
    with pytest.raises(IdempotencyConflict):
        await asked("g")
    with pytest.raises(RequestRejected, match="image_deleted"):
        await reprocess_image(api, once_more(image_id), image_id, recipe=None, versions={})

    assert (first.job_id, False) == (repeat.job_id, repeat.created)


async def test_nothing_is_submitted_behind_a_deletion_that_is_under_way(
    api: Connection, worker: Connection, database: Database
) -> None:
    """A deletion writes its job, which locks the target, and its tombstone in one transaction."""
    image_id = await an_image(api)
    claim, wanted, walk = await begun(worker)
    deleting = driver_of(api).transaction()
    await deleting.start()
    target = image_target(image_id)
    await submit_job(api, a_submission(type="delete_image", target=target, preempts=True))
    await bury(api, image_id)

    async def set_page() -> SubmittedPage:
        return await submit_page(worker, claim, renewal_of(claim), wanted, walk)

    async def single() -> None:
        async with database.connect("api") as connection:
            await reprocess_image(
                connection, once_more(image_id), image_id, recipe=None, versions={}
            )

    waiting = asyncio.gather(set_page(), single(), return_exceptions=True)
    await blocked(database, 2)
    await deleting.commit()
    page, refused = await waiting

    assert isinstance(page, SubmittedPage)
    assert (0, 1) == (page.walk.submitted, page.walk.skipped)
    assert isinstance(refused, RequestRejected)


async def blocked(database: Database, backends: int) -> None:
    """Wait until so many backends of this database wait for a lock."""
    async with database.connect("superuser") as watcher:

        async def are_blocked() -> bool:
            waiting: int = await watcher.fetchval(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return waiting >= backends

        await eventually(are_blocked)
