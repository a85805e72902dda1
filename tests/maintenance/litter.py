"""Everything that may lie in a bucket, and a sweeper that takes away what nobody can need."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar
from uuid import uuid4

from imagefleet.aws.objects import Listing, Objects
from imagefleet.jobs.images import original_key, preview_key, revision_prefix
from imagefleet.jobs.lifecycle import Released
from imagefleet.live import Live
from imagefleet.maintenance.sweeper import Sweeper, Swept
from imagefleet.store.database import Connection, Pool
from imagefleet.store.images.sweeping import Walk, read_walk
from imagefleet.store.images.uploads import USE_UPLOAD
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.maintenance.storage import Rendering, Storage
from tests.support.eventually import Resting
from tests.support.factories import CORRUPT, expire_lock, settle_job

EVERYTHING_IS_OLD = timedelta(seconds=-60)
INSTANT = timedelta(microseconds=1)
GRACE = timedelta(hours=1)
LONG_AGO = timedelta(hours=2)


Bucket = TypeVar("Bucket", bound=Objects)
Kind = Callable[[Storage], Awaitable[tuple[set[str], set[str]]]]
"""Makes something of a kind; the keys that must stay, and those that must go."""


def litter_key(made: Rendering, *, claim_no: int | None = None) -> str:
    """Where another file of this claim would lie, or one of another claim of its job."""
    number = made.job.claim_no if claim_no is None else claim_no
    return f"{revision_prefix(made.image_id, made.revision, number)}litter.webp"


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


async def preview(storage: Storage) -> tuple[set[str], set[str]]:
    made, original = await storage.published()
    return {original, *made.keys}, {await storage.put(preview_key(made.image_id, made.revision))}


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
    preview,
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


class SmallPages(Objects):
    """A bucket that is listed three objects at a time."""

    async def page(self, prefix: str, *, after: str = "") -> Listing:
        whole = await super().page(prefix, after=after)
        few = whole.objects[:3]
        return Listing(few, is_last=whole.is_last and len(few) == len(whole.objects))


def called(objects: Objects, kind: type[Bucket]) -> Bucket:
    """The same bucket, of this kind."""
    return kind(objects.bucket, line=objects._line, client=objects._client)


def a_sweeper(
    pool: Pool,
    storage: Storage,
    *,
    has_edge: bool = True,
    deletes: bool = True,
    originals_kept_days: int = 0,
    older_than: timedelta = EVERYTHING_IS_OLD,
    period: timedelta = INSTANT,
    metrics: MaintenanceMetrics | None = None,
    outputs: Objects | None = None,
    originals: Objects | None = None,
    live: Live | None = None,
) -> Sweeper:
    """Whose periods are so short, if none is named, that every look has one of its own."""
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
        originals_kept_days=originals_kept_days,
        older_than=older_than,
        period=period,
        walk_every=INSTANT,
        live=live,
    )


async def through(sweeper: Sweeper, storage: Storage) -> list[Swept]:
    """Sweep until a walk is through."""
    swept = [await sweeper.run_once()]
    while (await newest_walk(storage.superuser)).finished_at is None:
        swept.append(await sweeper.run_once())
    return swept


async def newest_walk(connection: Connection) -> Walk:
    walk = await read_walk(connection)
    assert walk is not None
    return walk
