"""Originals past the time that they are kept: which may go, and that nothing is made of them."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from imagefleet.errors import NotFound, RequestRejected
from imagefleet.jobs.images import image_target
from imagefleet.jobs.kinds import BUILT_IN, Draft
from imagefleet.jobs.lifecycle import Completed, Retry
from imagefleet.jobs.model import Submission
from imagefleet.jobs.replays import ReplayOrder, ReplayOutcome
from imagefleet.store.database import Connection
from imagefleet.store.images.originals import find_gone, find_original, forget_originals
from imagefleet.store.images.reprocessing import reprocess_image
from imagefleet.store.letters.letters import acknowledge_dead_letters, get_dead_letter
from imagefleet.store.letters.replays import replay_letters
from tests.store.images.test_reprocessing import walked
from tests.support.database import Database
from tests.support.factories import CORRUPT, TENANT, hold_job, settle_job
from tests.support.image_rows import a_publication, an_image, asked_for, bury
from tests.support.races import somebody_waits

A_MONTH = timedelta(days=30)


async def job_of(connection: Connection, image_id: UUID) -> UUID:
    """Its newest."""
    job: UUID = await connection.fetchval(
        "SELECT id FROM jobs WHERE target = $1 ORDER BY target_seq DESC LIMIT 1",
        image_target(image_id),
    )
    return job


async def shown(
    api: Connection, worker: Connection, superuser: Connection, image_id: UUID | None = None
) -> UUID:
    """An image whose newest original came and was made a picture of 31 days ago."""
    image_id = await an_image(api, image_id=image_id)
    job = await hold_job(worker, await job_of(api, image_id))  # type: ignore[arg-type] # a job's
    revision = await worker.fetchval("SELECT target_seq FROM jobs WHERE id = $1", job.job_id)
    publication = a_publication(job, image_id, revision, [])
    await settle_job(worker, job, Completed(publication=publication))
    await grown_old(superuser)
    return image_id


async def grown_old(superuser: Connection, by: timedelta = timedelta(days=31)) -> None:
    await superuser.execute("UPDATE image_sources SET created_at = created_at - $1::interval", by)


async def keys_of(connection: Connection, *image_ids: UUID) -> list[str]:
    """The newest first."""
    rows = await connection.fetch(
        "SELECT key FROM image_sources WHERE image_id = ANY ($1::uuid[]) ORDER BY source_seq DESC",
        list(image_ids),
    )
    return [row["key"] for row in rows]


async def forget(maintenance: Connection, *image_ids: UUID) -> frozenset[str]:
    keys = await keys_of(maintenance, *image_ids)
    return await forget_originals(maintenance, keys, kept_for=A_MONTH)


def again(image_id: UUID, **told: object) -> Draft:
    return Draft(
        kind=BUILT_IN["process_image"],
        tenant_id=TENANT,
        created_by="tests",
        correlation_id="tests",
        target=image_target(image_id),
        **told,  # type: ignore[arg-type] # of a draft
    )


async def reprocessed(api: Connection, image_id: UUID, **told: object) -> Submission:
    submission, _ = await reprocess_image(
        api, again(image_id, **told), image_id, recipe=None, versions={}
    )
    return submission


async def test_what_is_past_its_time_goes_once_and_what_is_not_stays(
    api: Connection, worker: Connection, superuser: Connection, maintenance: Connection
) -> None:
    old = await shown(api, worker, superuser)
    young = await shown(api, worker, superuser)
    await superuser.execute(
        "UPDATE image_sources SET created_at = now() - interval '29 days' WHERE image_id = $1",
        young,
    )

    gone = await forget(maintenance, old, young)

    assert gone == frozenset(await keys_of(api, old))
    assert gone == await find_gone(api, await keys_of(api, old, young))
    assert frozenset() == await forget(maintenance, old, young)


async def test_of_a_replaced_image_the_older_original_goes_first(
    api: Connection, worker: Connection, superuser: Connection, maintenance: Connection
) -> None:
    image_id = await shown(api, worker, superuser)
    await shown(api, worker, superuser, image_id)
    await grown_old(superuser, by=timedelta(days=-5))  # the newer came 26 days ago
    newer, older = await keys_of(api, image_id)

    assert {older} == await forget(maintenance, image_id)
    assert newer == (await find_original(api, image_id, TENANT)).key
    await reprocessed(api, image_id)


async def queued(api: Connection, worker: Connection, image_id: UUID) -> None:
    await reprocessed(api, image_id)


async def processing(api: Connection, worker: Connection, image_id: UUID) -> None:
    await hold_job(worker, (await reprocessed(api, image_id)).job_id)


async def in_backoff(api: Connection, worker: Connection, image_id: UUID) -> None:
    job = await hold_job(worker, (await reprocessed(api, image_id)).job_id)
    await settle_job(worker, job, Retry(code="timeout", message="It took too long."))


async def failed_unseen(api: Connection, worker: Connection, image_id: UUID) -> None:
    job = await hold_job(worker, (await reprocessed(api, image_id)).job_id)
    await settle_job(worker, job, CORRUPT)


async def being_deleted(api: Connection, worker: Connection, image_id: UUID) -> None:
    await bury(api, image_id)


@pytest.mark.parametrize("needs", [queued, processing, in_backoff, failed_unseen, being_deleted])
async def test_what_somebody_may_still_need_stays_whatever_its_age(
    api: Connection,
    worker: Connection,
    superuser: Connection,
    maintenance: Connection,
    needs: Callable[[Connection, Connection, UUID], Awaitable[None]],
) -> None:
    image_id = await shown(api, worker, superuser)
    await needs(api, worker, image_id)

    assert frozenset() == await forget(maintenance, image_id)


async def test_a_failure_that_somebody_has_seen_keeps_nothing(
    api: Connection,
    worker: Connection,
    superuser: Connection,
    maintenance: Connection,
    operator: Connection,
) -> None:
    image_id = await shown(api, worker, superuser)
    await failed_unseen(api, worker, image_id)
    letter = await get_dead_letter(operator, await job_of(api, image_id))
    await acknowledge_dead_letters(operator, [letter.id], by="ada", note="seen")

    assert 1 == len(await forget(maintenance, image_id))

    (refused,) = await replay_letters(
        operator, [letter.id], ReplayOrder(by="ada", force=True), BUILT_IN
    )
    assert (refused.outcome, refused.replayed_as) == (ReplayOutcome.ORIGINAL_GONE, None)


async def test_what_is_submitted_just_now_finds_its_original_or_hears_that_it_is_gone(
    api: Connection,
    worker: Connection,
    superuser: Connection,
    maintenance: Connection,
    database: Database,
) -> None:
    image_id = await shown(api, worker, superuser)
    async with api.transaction():
        await reprocessed(api, image_id)
        assert frozenset() == await forget(maintenance, image_id)  # it does not wait
    assert frozenset() == await forget(maintenance, image_id)

    other = await shown(api, worker, superuser)

    async def told_so() -> None:
        with pytest.raises(RequestRejected, match="original_gone"):
            await reprocessed(late, other)

    async with (
        database.connect("api") as late,
        asyncio.TaskGroup() as group,
        maintenance.transaction(),
    ):
        assert 1 == len(await forget(maintenance, other))
        group.create_task(told_so())
        await somebody_waits(superuser)


async def test_a_set_skips_and_counts_images_without_their_original(
    api: Connection, worker: Connection, superuser: Connection, maintenance: Connection
) -> None:
    lost = await shown(api, worker, superuser)
    await forget(maintenance, lost)
    kept = await an_image(api)

    set_job, pages = await walked(worker)

    assert [kept] == list(await asked_for(worker, set_job))
    assert (1, 1) == (pages[-1].walk.submitted, pages[-1].walk.skipped)


async def test_of_an_image_without_its_original_only_a_repeat_is_answered(
    api: Connection, worker: Connection, superuser: Connection, maintenance: Connection
) -> None:
    image_id = await shown(api, worker, superuser)
    asked = await reprocessed(api, image_id, idempotency_key="once")
    await settle_job(worker, await hold_job(worker, asked.job_id), Completed())
    await forget(maintenance, image_id)

    await reprocessed(api, image_id, idempotency_key="once")

    with pytest.raises(RequestRejected, match="original_gone"):
        await reprocessed(api, image_id, idempotency_key="twice")
    with pytest.raises(NotFound):
        await find_original(api, image_id, TENANT)


async def test_what_nobody_knows_is_not_forgotten(maintenance: Connection) -> None:
    assert frozenset() == await forget_originals(
        maintenance, [f"o/{uuid4()}/{uuid4()}"], kept_for=A_MONTH
    )
