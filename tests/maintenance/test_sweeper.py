"""A sweep removes exactly what nobody can ever need."""

import asyncio
import json
from datetime import timedelta

import pytest

from imagefleet.aws.deletes import Deleted, Version
from imagefleet.aws.objects import Listing, Objects
from imagefleet.errors import Unavailable
from imagefleet.live import Live
from imagefleet.maintenance import walker as walker_module
from imagefleet.store.database import Connection, Pool
from imagefleet.store.fleet.live_settings import turn, turn_back
from imagefleet.store.images.uploads import USE_UPLOAD
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.maintenance.litter import (
    GRACE,
    LONG_AGO,
    SmallPages,
    a_bucket_of_all,
    a_sweeper,
    called,
    grow_old,
    lost_claim,
    newest_walk,
    stray_original,
    superseded,
    through,
)
from tests.maintenance.storage import Storage
from tests.support.database import Database, driver_of
from tests.support.eventually import eventually
from tests.support.fleet import inside
from tests.support.races import somebody_waits

JUST_NOW = timedelta(0)


class Refusing(Objects):
    """A bucket that deletes nothing."""

    async def delete(self, keys: object) -> Deleted:
        assert isinstance(keys, list)
        return Deleted(failures={Version(key): "AccessDenied" for key in keys})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [Objects, SmallPages])
async def test_exactly_the_litter_goes_and_nothing_else_does(
    storage: Storage, pool: Pool, seed: int, kind: type[Objects]
) -> None:
    stay, go = await a_bucket_of_all(storage, seed)
    assert stay | go == await storage.keys()
    sweeper = a_sweeper(
        pool,
        storage,
        outputs=called(storage.outputs, kind),
        originals=called(storage.originals, kind),
    )

    swept = await through(sweeper, storage)

    assert stay == await storage.keys()
    assert len(go) == sum(look.objects for look in swept)
    assert () == (await newest_walk(storage.superuser)).progress.missing
    before = await storage.keys()
    assert 0 == sum(look.objects + look.uploads for look in await through(sweeper, storage))
    assert before == await storage.keys()


async def test_what_is_fresh_is_not_touched(storage: Storage, pool: Pool) -> None:
    stay, go = await a_bucket_of_all(storage, 1)
    old_versions = {key for key in go if await is_published(storage, key)}

    await through(a_sweeper(pool, storage, older_than=walker_module.OLDER_THAN), storage)

    assert (stay | go) - old_versions == await storage.keys()


async def is_published(storage: Storage, key: str) -> bool:
    return bool(
        await storage.superuser.fetchval("SELECT EXISTS (SELECT FROM variants WHERE key = $1)", key)
    )


@pytest.mark.parametrize(
    ("told", "superseded_for", "has_edge", "goes"),
    [
        (None, LONG_AGO, True, False),
        (JUST_NOW, LONG_AGO, True, False),
        (GRACE, LONG_AGO, True, False),  # the redirects of browsers come on top
        (GRACE + timedelta(seconds=6), LONG_AGO, True, True),
        (LONG_AGO, JUST_NOW, False, False),
        (None, LONG_AGO, False, True),
    ],
)
async def test_a_superseded_version_goes_after_its_invalidation_and_its_grace(
    storage: Storage,
    pool: Pool,
    told: timedelta | None,
    superseded_for: timedelta,
    has_edge: bool,  # noqa: FBT001
    goes: bool,  # noqa: FBT001
) -> None:
    first, _ = await storage.published()
    second, _ = await storage.published(first.image_id)
    await storage.age_superseded(by=superseded_for)
    if told is not None:
        await storage.complete_debts(ago=told)

    swept = await a_sweeper(pool, storage, has_edge=has_edge).run_once()

    assert goes == first.keys.isdisjoint(await storage.keys())
    assert second.keys <= await storage.keys()
    assert (int(goes), 2 * goes, 200 * goes) == (swept.revisions, swept.objects, swept.bytes)
    (row,) = await storage.superuser.fetch(
        "SELECT swept_at, (SELECT count(*) FROM variants WHERE image_id = $1 AND revision = $2)"
        "  FROM image_revisions WHERE image_id = $1 AND revision = $2",
        first.image_id,
        first.revision,
    )
    assert (goes, 0 if goes else 4) == (row["swept_at"] is not None, row["count"])


async def test_versions_of_an_image_that_is_being_deleted_are_left_to_the_deletion(
    storage: Storage, pool: Pool
) -> None:
    first, _ = await storage.published()
    await storage.published(first.image_id)
    await grow_old(storage)
    await storage.bury(first.image_id)
    sweeper = a_sweeper(pool, storage)

    assert 0 == (await sweeper.run_once()).revisions
    await storage.superuser.execute("UPDATE image_tombstones SET objects_deleted_at = now()")
    assert 1 == (await sweeper.run_once()).revisions


async def test_one_whose_invalidation_does_not_get_on_holds_up_no_other(
    storage: Storage, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagefleet.maintenance.sweeper.REVISIONS", 1)
    monkeypatch.setattr("imagefleet.maintenance.sweeper.LONGEST_ON_VERSIONS", timedelta(0))
    stuck, _ = await storage.published()
    await storage.published(stuck.image_id)
    await storage.age_superseded(by=LONG_AGO)
    other, _ = await storage.published()
    await storage.published(other.image_id)
    await storage.age_superseded(by=LONG_AGO)
    await storage.complete_debts(ago=LONG_AGO)
    await storage.superuser.execute(
        "UPDATE invalidations SET batch_id = NULL WHERE image_id = $1", stuck.image_id
    )
    sweeper = a_sweeper(pool, storage)

    revisions = [(await sweeper.run_once()).revisions for _ in range(4)]

    assert [0, 1, 0, 0] == revisions
    assert stuck.keys <= await storage.keys()
    assert other.keys.isdisjoint(await storage.keys())


async def test_what_s3_refuses_to_delete_is_found_again(storage: Storage, pool: Pool) -> None:
    stay, go = await superseded(storage)
    await grow_old(storage)
    refusing = a_sweeper(pool, storage, outputs=called(storage.outputs, Refusing))

    first = await refusing.run_once()
    assert (0, 0) == (first.revisions, first.objects)
    assert stay | go == await storage.keys()
    await a_sweeper(pool, storage).run_once()

    assert stay == await storage.keys()


async def test_an_upload_that_somebody_uses_just_now_is_kept(
    storage: Storage, pool: Pool, database: Database
) -> None:
    upload_id, key = await storage.form(expired_for=LONG_AGO)
    submission, original = await storage.upload()
    async with database.connect("api") as api:
        begun = driver_of(api).transaction()
        await begun.start()
        assert await api.fetchval(USE_UPLOAD, upload_id, submission.job_id)
        async with asyncio.TaskGroup() as group:
            sweeping = group.create_task(a_sweeper(pool, storage).run_once())
            await eventually(lambda: somebody_waits(storage.superuser))
            await begun.commit()

    assert 0 == sweeping.result().uploads
    assert {key, original} == await storage.keys()


async def test_an_upload_that_was_forgotten_becomes_no_image(storage: Storage, pool: Pool) -> None:
    upload_id, _ = await storage.form(expired_for=LONG_AGO)
    submission, _ = await storage.upload()

    swept = await a_sweeper(pool, storage).run_once()

    assert 1 == swept.uploads
    assert not await storage.api.fetchval(USE_UPLOAD, upload_id, submission.job_id)


async def test_of_two_sweepers_one_has_the_period(storage: Storage, pool: Pool) -> None:
    await superseded(storage)
    await grow_old(storage)
    sweepers = [a_sweeper(pool, storage, period=timedelta(days=100_000)) for _ in range(2)]

    answers = await asyncio.gather(*(sweeper.run_once() for sweeper in sweepers))

    assert [False, True] == sorted(answer.taken for answer in answers)


async def test_several_sweepers_at_once_do_no_harm(storage: Storage, pool: Pool) -> None:
    stay, go = await a_bucket_of_all(storage, 2)
    assert go
    sweepers = [
        a_sweeper(pool, storage, outputs=called(storage.outputs, SmallPages)) for _ in range(3)
    ]

    for _ in range(2):
        await asyncio.gather(*(sweeper.run_once() for sweeper in sweepers))
    await through(sweepers[0], storage)

    assert stay == await storage.keys()


async def test_only_looking_counts_and_deletes_nothing(storage: Storage, pool: Pool) -> None:
    stay, go = await a_bucket_of_all(storage, 0)

    (swept,) = await through(a_sweeper(pool, storage, deletes=False), storage)

    assert stay | go == await storage.keys()
    assert (0, 0, 0) == (swept.revisions, swept.uploads, swept.objects)
    progress = (await newest_walk(storage.superuser)).progress
    assert 0 < progress.litter
    assert 10 * progress.litter == progress.litter_bytes


async def test_while_s3_is_away_a_step_fails_and_the_next_one_goes_on(
    storage: Storage, pool: Pool
) -> None:
    stay, go = await superseded(storage)
    await grow_old(storage)

    class Away(Objects):
        async def page(self, prefix: str, *, after: str = "") -> Listing:
            raise Unavailable("s3_unavailable", "Later.", f"{prefix}{after}")

    with pytest.raises(Unavailable):
        await a_sweeper(pool, storage, originals=called(storage.originals, Away)).run_once()
    await a_sweeper(pool, storage).run_once()

    assert go.isdisjoint(await storage.keys())
    assert stay == await storage.keys()


async def test_what_was_deleted_is_counted_by_kind(storage: Storage, pool: Pool) -> None:
    await superseded(storage)
    await grow_old(storage)
    await stray_original(storage)
    metrics = MaintenanceMetrics(())

    await a_sweeper(pool, storage, metrics=metrics).run_once()

    told = metrics.exposition().decode()
    for kind, objects, size in (("superseded", 2, 200), ("litter", 1, 10), ("original", 1, 10)):
        assert f'swept_objects_total{{kind="{kind}"}} {objects}.0' in told
        assert f'swept_bytes_total{{kind="{kind}"}} {size}.0' in told


async def test_the_maintenance_process_sweeps_and_walks(storage: Storage) -> None:
    first, original = await storage.published()
    second, newer = await storage.published(first.image_id)
    environment = {"SWEEP_GRACE_SECONDS": "0"}

    async with inside(storage.place, "maintenance", environment=environment) as maintenance:
        line = await maintenance.tells("object.swept")
        walked = await maintenance.tells("sweep.walked")
        _, vitals = await maintenance.ask("/healthz")

    assert (1, 2) == (line["revisions"], line["objects"])
    assert (4, 0) == (walked["listed"], walked["missing"])
    assert "sweeper" in json.loads(vitals)["checks"]
    assert {original, newer, *second.keys} == await storage.keys()


async def turned(live: Live, pool: Pool, operator: Connection, name: str, value: object) -> None:
    await turn(operator, name, value, by="me", reason="why")
    await live.look(pool)


async def test_what_an_operator_turns_off_is_only_counted_until_it_is_on_again(
    storage: Storage, pool: Pool, operator: Connection
) -> None:
    live = Live()
    sweeper = a_sweeper(pool, storage, live=live)
    _, litter = await lost_claim(storage)
    await grow_old(storage)

    await turned(live, pool, operator, "retention.sweep_deletes", value=False)
    await through(sweeper, storage)
    assert litter <= await storage.keys()

    await turn_back(operator, "retention.sweep_deletes")
    await live.look(pool)
    await through(sweeper, storage)
    assert litter.isdisjoint(await storage.keys())


async def test_a_longer_grace_keeps_what_was_superseded_until_it_is_shorter_again(
    storage: Storage, pool: Pool, operator: Connection
) -> None:
    live = Live()
    sweeper = a_sweeper(pool, storage, live=live)
    _, old = await superseded(storage)
    await grow_old(storage)

    await turned(live, pool, operator, "retention.superseded_seconds", 864_000)
    await through(sweeper, storage)
    assert old <= await storage.keys()

    await turn_back(operator, "retention.superseded_seconds")
    await live.look(pool)
    await through(sweeper, storage)
    assert old.isdisjoint(await storage.keys())
