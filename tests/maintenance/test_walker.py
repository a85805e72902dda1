"""A walk over all objects: what is litter, what is missing, and how far it got."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from imagefleet.aws.objects import Listing, ObjectFacts, Objects
from imagefleet.maintenance import walker as walker_module
from imagefleet.maintenance.sampler import Sampler
from imagefleet.store.database import Pool
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.maintenance.litter import (
    INSTANT,
    SmallPages,
    a_sweeper,
    called,
    newest_walk,
    shown,
    stray_original,
    through,
)
from tests.maintenance.storage import Storage


class Interrupted(Objects):
    """A bucket in which something happens after a listing."""

    then: Callable[[], Awaitable[object]] | None = None

    async def page(self, prefix: str, *, after: str = "") -> Listing:
        page = await super().page(prefix, after=after)
        if self.then is not None:
            then, self.then = self.then, None
            await then()
        return page


async def test_what_is_published_between_listing_and_deletion_is_kept(
    storage: Storage, pool: Pool
) -> None:
    submission, original = await storage.upload()
    made = await storage.claim(submission)
    interrupted = called(storage.outputs, Interrupted)
    interrupted.then = lambda: storage.publish(made)

    await a_sweeper(pool, storage, outputs=interrupted).run_once()

    assert {original, *made.keys} == await storage.keys()


async def test_what_is_published_after_the_listing_is_not_missing(
    storage: Storage, pool: Pool
) -> None:
    interrupted = called(storage.outputs, Interrupted)
    interrupted.then = storage.published

    await a_sweeper(pool, storage, outputs=interrupted).run_once()

    assert () == (await newest_walk(storage.superuser)).progress.missing


async def test_a_walk_goes_on_where_a_killed_process_left_it(storage: Storage, pool: Pool) -> None:
    for _ in range(4):
        await shown(storage)
    asked: list[str] = []

    class Watched(SmallPages):
        async def page(self, prefix: str, *, after: str = "") -> Listing:
            asked.append(after)
            if len(asked) == 3:
                raise asyncio.CancelledError
            return await super().page(prefix, after=after)

    outputs = called(storage.outputs, Watched)
    with pytest.raises(asyncio.CancelledError):
        await a_sweeper(pool, storage, outputs=outputs).run_once()
    stopped_at = (await newest_walk(storage.superuser)).progress.after
    await a_sweeper(pool, storage, outputs=outputs).run_once()

    assert [stopped_at] * 2 == asked[2:4]
    assert "" != stopped_at
    walk = await newest_walk(storage.superuser)
    assert walk.finished_at is not None
    assert 4 == walk.progress.swept
    assert 4 * 5 == walk.progress.listed


async def test_a_step_is_bounded_and_the_next_one_goes_on(
    storage: Storage, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        await shown(storage)
    monkeypatch.setattr("imagefleet.maintenance.sweeper.LONGEST", timedelta(0))
    sweeper = a_sweeper(pool, storage, outputs=called(storage.outputs, SmallPages))

    swept = await through(sweeper, storage)

    assert 4 == sum(look.objects for look in swept)
    assert [3] * 5 == [look.listed for look in swept][:5]


async def test_originals_are_held_back_where_the_database_seems_to_be_the_wrong_one(
    storage: Storage, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walker_module, "SUSPICIOUS", 5)
    await storage.upload()
    for _ in range(5):
        await stray_original(storage)
    before = await storage.keys()

    await a_sweeper(pool, storage).run_once()
    assert before == await storage.keys()
    assert 5 == (await newest_walk(storage.superuser)).progress.held_back

    for _ in range(4):
        await storage.upload()
    await a_sweeper(pool, storage).run_once()
    assert 5 == len(before - await storage.keys())


async def test_a_missing_variant_is_told_and_never_repaired(storage: Storage, pool: Pool) -> None:
    made, _ = await storage.published()
    whole, _ = await storage.published()
    gone = min(made.keys)
    await storage.outputs.delete([gone])
    metrics = MaintenanceMetrics(())

    await a_sweeper(pool, storage, metrics=metrics).run_once()

    (missing,) = (await newest_walk(storage.superuser)).progress.missing
    assert ("outputs", gone, made.image_id, True) == (
        missing.bucket,
        missing.key,
        missing.image_id,
        missing.reprocess,
    )
    assert made.keys - {gone} | whole.keys <= await storage.keys()
    await Sampler(pool, {}, uuid4(), metrics, interval=INSTANT).run_once()
    assert "missing_objects 1.0" in metrics.exposition().decode()
    await storage.put(gone)
    await a_sweeper(pool, storage).run_once()
    assert () == (await newest_walk(storage.superuser)).progress.missing


async def test_a_missing_original_cannot_be_rendered_again(storage: Storage, pool: Pool) -> None:
    made, original = await storage.published()
    await storage.originals.delete([original])
    await storage.outputs.delete(sorted(made.keys))

    await a_sweeper(pool, storage).run_once()

    missing = (await newest_walk(storage.superuser)).progress.missing
    assert {original, *made.keys} == {entry.key for entry in missing}
    assert {False} == {entry.reprocess for entry in missing}


async def test_what_was_replaced_and_swept_while_s3_was_asked_is_not_missing(
    storage: Storage, pool: Pool
) -> None:
    made, _ = await storage.published()
    await storage.outputs.delete(sorted(made.keys))

    class Late(Objects):
        async def head(self, key: str) -> ObjectFacts:
            if key in made.keys and not replaced:
                replaced.append(await storage.published(made.image_id))
            return await super().head(key)

    replaced: list[object] = []
    await a_sweeper(pool, storage, outputs=called(storage.outputs, Late)).run_once()

    assert replaced
    assert () == (await newest_walk(storage.superuser)).progress.missing


async def test_only_what_is_shown_or_needed_can_be_missing(storage: Storage, pool: Pool) -> None:
    first, older = await storage.published()
    await storage.published(first.image_id)
    buried, original = await storage.published()
    await storage.bury(buried.image_id)
    await storage.outputs.delete([*first.keys, *buried.keys])
    await storage.originals.delete([older, original])

    await a_sweeper(pool, storage).run_once()

    assert () == (await newest_walk(storage.superuser)).progress.missing


async def test_a_bucket_that_lost_everything_is_told_of_in_parts(
    storage: Storage, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walker_module, "IMAGES", 2)
    monkeypatch.setattr(walker_module, "MOST_QUESTIONS", 1)
    monkeypatch.setattr("imagefleet.jobs.shapes.sweeping.MOST_MISSING", 4)
    for _ in range(5):
        made, _ = await storage.published()
        await storage.outputs.delete(sorted(made.keys))
        await storage.published()

    await through(a_sweeper(pool, storage), storage)

    progress = (await newest_walk(storage.superuser)).progress
    assert (4, 10) == (len(progress.missing), progress.all_missing)
    assert len(await storage.keys()) == progress.listed
