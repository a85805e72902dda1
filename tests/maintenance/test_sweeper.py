"""A sweep removes exactly what nobody can ever need, and tells what is missing."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from imagefleet.aws.deletes import Deleted, Version
from imagefleet.aws.objects import Listing, ObjectFacts, Objects
from imagefleet.errors import Unavailable
from imagefleet.jobs.images import original_key
from imagefleet.jobs.lifecycle import Released
from imagefleet.live import Live
from imagefleet.maintenance import walker as walker_module
from imagefleet.maintenance.sampler import Sampler
from imagefleet.maintenance.sweeper import Sweeper, Swept
from imagefleet.store.database import Connection, Pool
from imagefleet.store.fleet.live_settings import turn, turn_back
from imagefleet.store.images.sweeping import Walk, read_walk
from imagefleet.store.images.uploads import USE_UPLOAD
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.maintenance.storage import Storage, a_storage, litter_key
from tests.support.database import Database, driver_of
from tests.support.eventually import Resting, eventually
from tests.support.factories import CORRUPT, expire_lock, settle_job
from tests.support.fleet import Place, inside

EVERYTHING_IS_OLD = timedelta(seconds=-60)
INSTANT = timedelta(microseconds=1)
GRACE = timedelta(hours=1)
LONG_AGO = timedelta(hours=2)
JUST_NOW = timedelta(0)


class SmallPages(Objects):
    """A bucket that is listed three objects at a time."""

    async def page(self, prefix: str, *, after: str = "") -> Listing:
        whole = await super().page(prefix, after=after)
        few = whole.objects[:3]
        return Listing(few, is_last=whole.is_last and len(few) == len(whole.objects))


class Refusing(Objects):
    """A bucket that deletes nothing."""

    async def delete(self, keys: object) -> Deleted:
        assert isinstance(keys, list)
        return Deleted(failures={Version(key): "AccessDenied" for key in keys})


class Interrupted(Objects):
    """A bucket in which something happens after a listing."""

    then: Callable[[], Awaitable[object]] | None = None

    async def page(self, prefix: str, *, after: str = "") -> Listing:
        page = await super().page(prefix, after=after)
        if self.then is not None:
            then, self.then = self.then, None
            await then()
        return page


def called(objects: Objects, kind: type[Objects]) -> Objects:
    """The same bucket, of this kind."""
    return kind(objects.bucket, line=objects._line, client=objects._client)


@pytest.fixture
async def storage(
    place: Place, api: Connection, worker: Connection, superuser: Connection
) -> Storage:
    return await a_storage(place, api, worker, superuser)


def a_sweeper(
    pool: Pool,
    storage: Storage,
    *,
    has_edge: bool = True,
    deletes: bool = True,
    older_than: timedelta = EVERYTHING_IS_OLD,
    metrics: MaintenanceMetrics | None = None,
    outputs: Objects | None = None,
    originals: Objects | None = None,
    live: Live | None = None,
) -> Sweeper:
    """Whose periods are so short that every look has one of its own."""
    return Sweeper(
        pool,
        originals or storage.originals,
        outputs or storage.outputs,
        uuid4(),
        metrics or MaintenanceMetrics(()),
        has_edge=has_edge,
        rest=Resting(),
        grace=GRACE,
        deletes=deletes,
        older_than=older_than,
        period=INSTANT,
        walk_every=INSTANT,
        live=live,
    )


async def newest_walk(connection: Connection) -> Walk:
    walk = await read_walk(connection)
    assert walk is not None
    return walk


Kind = Callable[[Storage], Awaitable[tuple[set[str], set[str]]]]
"""Makes something of a kind; the keys that must stay, and those that must go."""


async def shown(storage: Storage) -> tuple[set[str], set[str]]:
    made, original = await storage.published()
    extra = await storage.put(litter_key(made))  # of its claim, though no variant names it
    return {original, extra, *made.keys}, {await storage.put(litter_key(made, claim_no=99))}


async def superseded(storage: Storage) -> tuple[set[str], set[str]]:
    """Of a while ago, once `grow_old` was called; until then in its grace."""
    first, original = await storage.published()
    second, newer = await storage.published(first.image_id)
    return {original, newer, *second.keys}, {*first.keys, await storage.put(litter_key(first))}


async def superseded_just_now(storage: Storage) -> tuple[set[str], set[str]]:
    stay, later = await superseded(storage)
    return stay | later, set()


async def lost_claim(storage: Storage) -> tuple[set[str], set[str]]:
    submission, original = await storage.upload()
    lost = await storage.claim(submission)
    await expire_lock(storage.superuser, submission.job_id)
    made = await storage.publish(await storage.claim(submission))
    return {original, *made.keys}, set(lost.keys)


async def resumed(storage: Storage) -> tuple[set[str], set[str]]:
    """What an earlier claim stored, and told by its progress, is published by the next one."""
    submission, original = await storage.upload()
    lost = await storage.claim(submission)
    await expire_lock(storage.superuser, submission.job_id)
    made = await storage.claim(submission)
    await storage.publish(replace(made, keys=lost.keys))
    return {original, *made.keys, *lost.keys}, set()


async def lost_claim_of_a_running_job(storage: Storage) -> tuple[set[str], set[str]]:
    submission, original = await storage.upload()
    lost = await storage.claim(submission)
    await expire_lock(storage.superuser, submission.job_id)
    return {original, *lost.keys, *(await storage.claim(submission)).keys}, set()


async def released(storage: Storage) -> tuple[set[str], set[str]]:
    submission, original = await storage.upload()
    made = await storage.claim(submission)
    await settle_job(storage.worker, made.job, Released(why="drain"))
    return {original, *made.keys}, set()


async def failed(storage: Storage) -> tuple[set[str], set[str]]:
    submission, original = await storage.upload()
    made = await storage.claim(submission)
    await settle_job(storage.worker, made.job, CORRUPT)
    return {original}, set(made.keys)


async def failed_and_pruned(storage: Storage) -> tuple[set[str], set[str]]:
    submission, original = await storage.upload()
    made = await storage.claim(submission)
    await settle_job(storage.worker, made.job, CORRUPT)
    await storage.prune(submission.job_id)
    return {original}, set(made.keys)


async def deleted(storage: Storage) -> tuple[set[str], set[str]]:
    """What it published is the deletion's; what was made beside that is litter."""
    made, original = await storage.published()
    submission, newer = await storage.upload(made.image_id)
    beside = await storage.claim(submission)
    await storage.bury(made.image_id)
    await storage.publish(beside)
    return {original, newer, *made.keys}, set(beside.keys)


async def valid_upload(storage: Storage) -> tuple[set[str], set[str]]:
    return {(await storage.form(expired_for=-timedelta(minutes=15)))[1]}, set()


async def used_upload(storage: Storage) -> tuple[set[str], set[str]]:
    upload_id, key = await storage.form(expired_for=LONG_AGO)
    submission, original = await storage.upload()
    assert await storage.api.fetchval(USE_UPLOAD, upload_id, submission.job_id)
    return {key, original}, set()


async def unused_upload(storage: Storage) -> tuple[set[str], set[str]]:
    return set(), {(await storage.form(expired_for=LONG_AGO))[1]}


async def stray_original(storage: Storage) -> tuple[set[str], set[str]]:
    return set(), {await storage.put(original_key(uuid4(), uuid4()))}


async def of_somebody_else(storage: Storage) -> tuple[set[str], set[str]]:
    made, original = await storage.published()
    keys = [
        "readme.txt",
        f"x/{uuid4()}/1.1/thumb.jpg",
        f"i/{uuid4()}/1.1/thumb.jpg",  # of an image of another database
        f"i/{made.image_id}/77.1/thumb.jpg",  # of a job that was never submitted
        f"i/{made.image_id}/current/thumb.jpg",
        f"i/{made.image_id}/1.99/folder/thumb.jpg",
        f"i/{str(made.image_id).upper()}/1.99/thumb.jpg",
        f"i/z{uuid4().hex}",
        f"i/-{uuid4().hex}",
        f"o/{uuid4()}",
        f"o/{uuid4()}/notes.txt",
    ]
    return {original, *made.keys, *[await storage.put(key) for key in keys]}, set()


KINDS: tuple[Kind, ...] = (
    shown,
    superseded_just_now,
    lost_claim,
    resumed,
    lost_claim_of_a_running_job,
    released,
    failed,
    failed_and_pruned,
    deleted,
    valid_upload,
    used_upload,
    unused_upload,
    stray_original,
    of_somebody_else,
)


async def grow_old(storage: Storage) -> None:
    """Whatever was superseded, and told to the edge, is long past."""
    await storage.complete_debts(ago=LONG_AGO)
    await storage.age_superseded(by=LONG_AGO)


async def a_bucket_of_all(storage: Storage, seed: int) -> tuple[set[str], set[str]]:
    """A bucket with everything in it, of each kind one to three."""
    dice = random.Random(seed)
    stay, go = await superseded(storage)
    await grow_old(storage)
    kinds = [kind for kind in KINDS for _ in range(dice.randint(1, 3))]
    dice.shuffle(kinds)
    for kind in kinds:
        more_stay, more_go = await kind(storage)
        stay |= more_stay
        go |= more_go
    return stay, go


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
    assert len(go) == sum(one.objects for one in swept)
    assert () == (await newest_walk(storage.superuser)).progress.missing
    before = await storage.keys()
    assert 0 == sum(one.objects + one.uploads for one in await through(sweeper, storage))
    assert before == await storage.keys()


async def through(sweeper: Sweeper, storage: Storage) -> list[Swept]:
    """Sweep until a walk is through."""
    swept = [await sweeper.run_once()]
    while (await newest_walk(storage.superuser)).finished_at is None:
        swept.append(await sweeper.run_once())
    return swept


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
    assert (goes, 0 if goes else 2) == (row["swept_at"] is not None, row["count"])


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


async def test_what_is_published_between_listing_and_deletion_is_kept(
    storage: Storage, pool: Pool
) -> None:
    submission, original = await storage.upload()
    made = await storage.claim(submission)
    interrupted = called(storage.outputs, Interrupted)
    assert isinstance(interrupted, Interrupted)
    interrupted.then = lambda: storage.publish(made)

    await a_sweeper(pool, storage, outputs=interrupted).run_once()

    assert {original, *made.keys} == await storage.keys()


async def test_what_is_published_after_the_listing_is_not_missing(
    storage: Storage, pool: Pool
) -> None:
    interrupted = called(storage.outputs, Interrupted)
    assert isinstance(interrupted, Interrupted)
    interrupted.then = storage.published

    await a_sweeper(pool, storage, outputs=interrupted).run_once()

    assert () == (await newest_walk(storage.superuser)).progress.missing


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


async def somebody_waits(connection: Connection) -> bool:
    waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid')"
    return bool(await connection.fetchval(waits))


async def test_an_upload_that_was_forgotten_becomes_no_image(storage: Storage, pool: Pool) -> None:
    upload_id, _ = await storage.form(expired_for=LONG_AGO)
    submission, _ = await storage.upload()

    swept = await a_sweeper(pool, storage).run_once()

    assert 1 == swept.uploads
    assert not await storage.api.fetchval(USE_UPLOAD, upload_id, submission.job_id)


async def test_of_two_sweepers_one_has_the_period(storage: Storage, pool: Pool) -> None:
    await superseded(storage)
    await grow_old(storage)
    sweepers = [
        Sweeper(
            pool,
            storage.originals,
            storage.outputs,
            uuid4(),
            MaintenanceMetrics(()),
            has_edge=True,
            rest=Resting(),
            period=timedelta(days=100_000),
        )
        for _ in range(2)
    ]

    answers = await asyncio.gather(*(one.run_once() for one in sweepers))

    assert [False, True] == sorted(one.taken for one in answers)


async def test_several_sweepers_at_once_do_no_harm(storage: Storage, pool: Pool) -> None:
    stay, go = await a_bucket_of_all(storage, 2)
    assert go
    sweepers = [
        a_sweeper(pool, storage, outputs=called(storage.outputs, SmallPages)) for _ in range(3)
    ]

    for _ in range(2):
        await asyncio.gather(*(one.run_once() for one in sweepers))
    await through(sweepers[0], storage)

    assert stay == await storage.keys()


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

    assert 4 == sum(one.objects for one in swept)
    assert [3] * 5 == [one.listed for one in swept][:5]


async def test_only_looking_counts_and_deletes_nothing(storage: Storage, pool: Pool) -> None:
    stay, go = await a_bucket_of_all(storage, 0)

    (swept,) = await through(a_sweeper(pool, storage, deletes=False), storage)

    assert stay | go == await storage.keys()
    assert (0, 0, 0) == (swept.revisions, swept.uploads, swept.objects)
    progress = (await newest_walk(storage.superuser)).progress
    assert 0 < progress.litter
    assert 10 * progress.litter == progress.litter_bytes


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
    assert {original, *made.keys} == {one.key for one in missing}
    assert {False} == {one.reprocess for one in missing}


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
    monkeypatch.setattr("imagefleet.jobs.shapes.edge.MOST_MISSING", 4)
    for _ in range(5):
        made, _ = await storage.published()
        await storage.outputs.delete(sorted(made.keys))
        await storage.published()

    await through(a_sweeper(pool, storage), storage)

    progress = (await newest_walk(storage.superuser)).progress
    assert (4, 10) == (len(progress.missing), progress.all_missing)
    assert len(await storage.keys()) == progress.listed


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
