"""Originals in S3 that are past the time they are kept: they go with a walk, and only they do."""

from datetime import timedelta

import pytest

from imagefleet.aws.deletes import Deleted, Version
from imagefleet.aws.objects import Objects
from imagefleet.live import Live
from imagefleet.store.database import Connection, Pool
from imagefleet.store.fleet.live_settings import turn
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.maintenance.litter import SmallPages, a_sweeper, called, newest_walk, through
from tests.maintenance.storage import Storage

A_MONTH = 30  # days


async def grown_old(storage: Storage, *keys: str, days: int = A_MONTH + 1) -> None:
    await storage.superuser.execute(
        "UPDATE image_sources SET created_at = created_at - $2::interval"
        " WHERE key = ANY ($1::text[])",
        list(keys),
        timedelta(days=days),
    )


class Refusing(Objects):
    """A bucket that deletes nothing."""

    async def delete(self, keys: object) -> Deleted:
        assert isinstance(keys, list)
        return Deleted(failures={Version(key): "AccessDenied" for key in keys})


@pytest.mark.parametrize("kind", [Objects, SmallPages])
async def test_originals_go_after_their_time_and_what_was_made_of_them_stays(
    storage: Storage, pool: Pool, kind: type[Objects]
) -> None:
    made = [await storage.published() for _ in range(4)]
    submission, waiting = await storage.upload()
    old = [original for _, original in made[:3]]
    await grown_old(storage, *old, waiting)
    before, metrics = await storage.keys(), MaintenanceMetrics(())
    sweeper = a_sweeper(
        pool,
        storage,
        originals=called(storage.originals, kind),
        originals_kept_days=A_MONTH,
        metrics=metrics,
    )

    swept = await through(sweeper, storage)

    assert before - await storage.keys() == set(old)  # one has an open job, one is young
    assert 3 == sum(look.objects for look in swept)
    assert 'swept_objects_total{kind="expired"} 3.0' in metrics.exposition().decode()
    walk = (await newest_walk(storage.superuser)).progress
    assert (walk.swept, walk.litter, walk.missing) == (3, 0, ())
    await through(sweeper, storage)
    assert () == (await newest_walk(storage.superuser)).progress.missing  # it is known
    await storage.publish(await storage.claim(submission))
    await through(sweeper, storage)
    assert waiting not in await storage.keys()


async def test_unless_a_setting_says_so_originals_are_kept_for_as_long_as_their_image(
    storage: Storage, pool: Pool, operator: Connection
) -> None:
    _, original = await storage.published()
    await grown_old(storage, original, days=3000)
    live = Live()
    sweeper = a_sweeper(pool, storage, live=live)

    await sweeper.run_once()
    assert original in await storage.keys()
    await turn(operator, "retention.originals_days", A_MONTH, by="me", reason="why")
    await live.look(pool)
    await sweeper.run_once()
    assert original not in await storage.keys()


async def test_where_nothing_is_to_be_deleted_no_original_goes(
    storage: Storage, pool: Pool
) -> None:
    _, original = await storage.published()
    await grown_old(storage, original)

    await a_sweeper(pool, storage, originals_kept_days=A_MONTH, deletes=False).run_once()

    assert original in await storage.keys()
    assert 0 == await storage.superuser.fetchval("SELECT count(gone_at) FROM image_sources")


async def test_what_s3_refuses_to_delete_goes_with_a_later_walk(
    storage: Storage, pool: Pool
) -> None:
    _, original = await storage.published()
    await grown_old(storage, original)
    refusing = called(storage.originals, Refusing)

    await a_sweeper(pool, storage, originals=refusing, originals_kept_days=A_MONTH).run_once()
    assert original in await storage.keys()
    assert 1 == await storage.superuser.fetchval("SELECT count(gone_at) FROM image_sources")

    await a_sweeper(pool, storage).run_once()  # whatever the setting is by then
    assert original not in await storage.keys()
