"""How much images, their sweep and their edge may read."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final
from uuid import uuid4

from imagefleet.jobs.bulk import SetWalk
from imagefleet.jobs.images import Bucket, ImageStatus, OutputKey, image_target
from imagefleet.jobs.kinds import ReprocessImages
from imagefleet.jobs.model import Lane, TenantId, new_job_id
from imagefleet.maintenance.pruner import Prune
from imagefleet.store.database import Connection
from imagefleet.store.edge.invalidations import (
    Accepted,
    BatchLimits,
    accept_batch,
    begin_send,
    commit_batch,
    complete_batch,
    list_accepted,
    list_unsent,
    look_at_owed,
)
from imagefleet.store.edge.reports import (
    list_batches,
    read_month,
    sample_invalidations,
)
from imagefleet.store.fleet.elections import find_flusher
from imagefleet.store.images.deleting import (
    LIST_VOID,
    MOST_CANCELLED,
    darken_without_edge,
    flag_void,
    get_deletion,
    list_to_empty_again,
)
from imagefleet.store.images.images import find_current, submit_image
from imagefleet.store.images.listing import (
    MOST_LOOKED_AT,
    ImageFilter,
    find_images_named,
    get_whole_image,
    list_images,
    oversee_images,
)
from imagefleet.store.images.originals import (
    find_original,
    find_shown_original,
    find_source,
    forget_originals,
)
from imagefleet.store.images.pruning import (
    Superseded,
    list_superseded,
    prune_batches,
    prune_images,
    prune_revisions,
    prune_uploads,
    record_swept,
)
from imagefleet.store.images.recipes import FIND_RECIPE, find_shown, names_one_version
from imagefleet.store.images.reprocessing import submit_page
from imagefleet.store.images.sweeping import (
    count_superseded,
    forget_uploads,
    judge_originals,
    judge_outputs,
    list_named,
    list_sweep_runs,
    read_walk,
)
from imagefleet.store.images.uploads import create_upload
from imagefleet.store.jobs.admissions import find_key_or_refusal
from tests.store.images.deletions import an_upload
from tests.store.plans.history import (
    DEEP,
    GONE,
    HOLDS,
    HOT,
    HOT_OPEN,
    IMAGES,
    LONG_AGO,
    PAGE,
    TOLD,
    id_of,
)
from tests.store.plans.jobs import a_claim
from tests.store.plans.work import Case
from tests.support.factories import (
    TENANT,
)


def prunes(prune: Prune, pruned: int) -> Callable[[Connection], Awaitable[object]]:
    async def prune_it(connection: Connection) -> None:
        assert pruned == (await prune(connection, limit=PAGE)).pruned

    return prune_it


EVERY_IMAGE: Final = ImageFilter()


def images(
    chosen: ImageFilter = EVERY_IMAGE, *, before: int | None = None, tenant: TenantId = TENANT
) -> Callable[[Connection], Awaitable[object]]:
    last = None if before is None else id_of(before)
    return lambda connection: list_images(connection, tenant, chosen, after=last, limit=PAGE - 1)


def overseen(
    chosen: ImageFilter = EVERY_IMAGE, *, before: int | None = None
) -> Callable[[Connection], Awaitable[object]]:
    last = None if before is None else id_of(before)
    return lambda connection: oversee_images(connection, None, chosen, before=last, limit=PAGE - 1)


def page_of_a_set(
    wanted: ReprocessImages, *, before: int
) -> Callable[[Connection], Awaitable[object]]:
    async def submit_it(connection: Connection) -> None:
        walk = SetWalk(before=id_of(before))
        page = await submit_page(connection, a_claim("reprocess_images"), HOLDS[0], wanted, walk)
        assert page.walk.seen == page.walk.submitted == 25

    return submit_it


async def stable_address(connection: Connection) -> None:
    address = (id_of(IMAGES + 7), "v2", "webp")
    assert await find_current(connection, [address], within=10) == {address: "i/7/5"}


async def one_more_form(connection: Connection) -> None:
    upload_id = uuid4()
    await create_upload(
        connection, upload_id=upload_id, tenant_id=TENANT, image_id=upload_id, key=str(upload_id),
        content_type="image/jpeg", max_bytes=1, created_by="load", valid_for=timedelta(minutes=15),
    )  # fmt: skip


async def flush(connection: Connection) -> None:
    """A look of the flusher, and a batch from what is unsent to its end."""
    debts = [owed.debt for owed in await look_at_owed(connection, limit=3000)]
    batch = await commit_batch(connection, debts, lambda image_id: f"#{image_id}", within=ROOMY)
    assert batch is not None
    assert PAGE == len(batch.items)
    assert [batch.id] == [unsent.id for unsent in await list_unsent(connection, limit=10)]
    await begin_send(connection, batch.id)
    await accept_batch(connection, batch.id, "I")
    assert Accepted(batch.id, "I") in await list_accepted(connection, limit=10)
    await complete_batch(connection, Accepted(batch.id, "I"))


async def edge_status(connection: Connection) -> None:
    assert 10 == len(await list_batches(connection, unfinished=PAGE, complete=7))
    await read_month(connection)
    await find_flusher(connection)


async def prune_edge(connection: Connection) -> None:
    assert PAGE == (await prune_batches(connection, limit=PAGE)).pruned


SHOWN_IMAGES: Final = [id_of(IMAGES + n) for n in range(1, 1001)]


async def judge_a_page_of_outputs(connection: Connection) -> None:
    found = [
        (f"i/{image_id}/7.1/x", LONG_AGO, OutputKey(image_id=image_id, revision=7, claim_no=1))
        for image_id in SHOWN_IMAGES
    ]
    judged = await judge_outputs(connection, found, older_than=timedelta(hours=1))
    assert (1000, 0) == (len(judged.litter), len(judged.unknown))


async def judge_a_page_of_originals(connection: Connection) -> None:
    found = [(f"o/{image_id}", LONG_AGO) for image_id in SHOWN_IMAGES]
    found += [(f"o/stray-{image_id}", LONG_AGO) for image_id in SHOWN_IMAGES[:10]]
    stray = await judge_originals(connection, found[-1000:], older_than=timedelta(hours=1))
    assert 10 == len([key for key in stray if "stray" in key])


def what_must_be_there(
    bucket: Bucket, first: int, found: int
) -> Callable[[Connection], Awaitable[object]]:
    async def list_it(connection: Connection) -> None:
        named, last = await list_named(connection, bucket, id_of(first), None, images=PAGE)
        assert (found, id_of(first + PAGE - 1)) == (len(named), last)

    return list_it


def superseded(*, has_edge: bool, after: int) -> Callable[[Connection], Awaitable[object]]:
    async def list_it(connection: Connection) -> None:
        moment = await connection.fetchval(
            "SELECT superseded_at FROM image_revisions WHERE image_id = $1", id_of(after)
        )
        place = Superseded(
            image_id=id_of(after), revision=1, superseded_at=moment, ripe=False, keys=(), bytes=0
        )
        page = await list_superseded(
            connection, kept_for=timedelta(hours=1), has_edge=has_edge, after=place, limit=PAGE
        )
        assert PAGE == len(page)
        await record_swept(connection, page[:10])

    return list_it


async def forget_unused_uploads(connection: Connection) -> None:
    assert PAGE == await forget_uploads(connection, expired_for=timedelta(days=1), limit=PAGE)


async def sweep_report(connection: Connection) -> None:
    await read_walk(connection)
    assert 100 == await count_superseded(connection, most=100)
    await list_sweep_runs(connection, limit=10)


async def flag_what_is_void(connection: Connection) -> None:
    assert HOT_OPEN == len(await flag_void(connection, id_of(HOT), TENANT))


def list_void(n: int, void: int) -> Callable[[Connection], Awaitable[object]]:
    """As the request does, beside the tombstone."""

    async def list_it(connection: Connection) -> None:
        target = image_target(id_of(n))
        assert void == len(await connection.fetch(LIST_VOID, TENANT, target, MOST_CANCELLED))

    return list_it


async def darken(connection: Connection) -> None:
    assert 20 == len(await darken_without_edge(connection))


async def list_what_to_empty(connection: Connection) -> None:
    due = await list_to_empty_again(connection, after=timedelta(days=1), limit=PAGE)
    assert [id_of(GONE + n) for n in range(1, PAGE + 1)] == due


async def an_original(connection: Connection) -> None:
    assert (await find_original(connection, id_of(HOT), TENANT)).key == f"o/{id_of(HOT)}"


async def original_of_what_is_shown(connection: Connection) -> None:
    found = await find_shown_original(connection, id_of(HOT), TENANT)
    assert found.key == f"o/{id_of(HOT)}"


async def forget_a_page_of_originals(connection: Connection) -> None:
    keys = [f"o/{image_id}" for image_id in SHOWN_IMAGES[:25]]
    assert set(keys) == await forget_originals(connection, keys, kept_for=timedelta(0))


VERSION: Final = hashlib.md5(b"7", usedforsecurity=False).hexdigest()  # of recipe-7


async def a_version(connection: Connection) -> None:
    found = await connection.fetch(FIND_RECIPE, VERSION)
    assert [{}] == [row["content"] for row in found]


async def one_version(connection: Connection) -> None:
    assert await names_one_version(connection, "recipe-7", VERSION[:8])


async def what_is_shown(connection: Connection) -> None:
    tenant = TenantId("shown")
    assert None is await find_shown(
        connection, SHOWN_IMAGES[0], tenant, source_seq=1, encoder="load"
    )


ROOMY: Final = BatchLimits(paths=3000, wildcards=15)


async def accept_a_first_upload(connection: Connection) -> None:
    answer = await submit_image(connection, *an_upload(new_job_id()), is_first=True)
    assert answer.created


async def accept_a_first_upload_with_a_key(connection: Connection) -> None:
    submission, source = an_upload(new_job_id(), idempotency_key="key")
    submission = replace(submission, dedup_key="front page")
    lanes = (Lane.FAST, Lane.GENERAL)
    assert (False, {}) == await find_key_or_refusal(connection, submission, lanes)
    assert (await submit_image(connection, submission, source, is_first=True)).created


CASES: Final[Mapping[str, Case]] = MappingProxyType(
    {
        "accept a first upload": Case(accept_a_first_upload, "api", 30, 260),
        "accept one with a key": Case(accept_a_first_upload_with_a_key, "api", 30, 280),
        "page of a set": Case(
            page_of_a_set(ReprocessImages(all_images=True), before=20_000), "worker", 260, 2000
        ),
        "page of a set with one reference": Case(
            page_of_a_set(ReprocessImages(reference="old"), before=8_000), "worker", 260, 2000
        ),
        "prune uploads": Case(prunes(prune_uploads, 0), "maintenance", 4 * PAGE, 800),
        "prune revisions": Case(prunes(prune_revisions, PAGE), "maintenance", 4 * PAGE, 800),
        "prune images": Case(prunes(prune_images, PAGE), "maintenance", 20 * PAGE, 4000),
        # Of each image the newest job is read as well, and its original.
        "images": Case(images(), "api", 4 * PAGE, 1000),
        "images, deep": Case(images(before=20_000), "api", 4 * PAGE, 1000),
        # As far as a page looks at candidates, whatever there is; of each the newest job.
        "failed images, of which there are none": Case(
            images(ImageFilter(status=ImageStatus.FAILED)), "api", 4 * MOST_LOOKED_AT, 9000
        ),
        "pending images": Case(
            images(ImageFilter(status=ImageStatus.PENDING)), "api", 8 * MOST_LOOKED_AT, 9000
        ),
        "deleted images": Case(
            images(ImageFilter(status=ImageStatus.DELETED)),
            "api",
            4 * MOST_LOOKED_AT,
            4 * MOST_LOOKED_AT,
        ),
        "deleted images of a tenant that has none": Case(
            images(ImageFilter(status=ImageStatus.DELETED), tenant=TenantId("shown")), "api", 0, 20
        ),
        "ready images, of which there are none": Case(
            images(ImageFilter(status=ImageStatus.READY)),
            "api",
            4 * MOST_LOOKED_AT,
            10 * MOST_LOOKED_AT,
        ),
        "images of all tenants": Case(overseen(), "operator", 5 * PAGE, 1200),
        "images of all tenants by a reference": Case(
            overseen(ImageFilter(reference="rare")), "operator", 200, 400
        ),
        "ready images of all tenants, of which there are none": Case(
            overseen(ImageFilter(status=ImageStatus.READY), before=30_000),
            "operator",
            5 * MOST_LOOKED_AT,
            12 * MOST_LOOKED_AT,
        ),
        "a whole image": Case(lambda c: get_whole_image(c, id_of(1)), "operator", 20, 60),
        "ready images, of which there are many": Case(
            images(ImageFilter(status=ImageStatus.READY), tenant=TenantId("shown")),
            "api",
            4 * MOST_LOOKED_AT,
            2000,
        ),
        "images since nobody sent any": Case(
            images(ImageFilter(created_after=datetime(2099, 1, 1, tzinfo=UTC))), "api", 0, 20
        ),
        "images before there were any": Case(
            images(ImageFilter(created_before=LONG_AGO)), "api", 0, 20
        ),
        "failed images with a reference": Case(
            images(ImageFilter(status=ImageStatus.FAILED, reference="rare")), "api", 20, 60
        ),
        "a stable address": Case(stable_address, "api", 4, 20),
        "another form": Case(one_more_form, "api", TOLD // 100 + 10, 300),
        "what an edit may keep": Case(what_is_shown, "worker", 10, 30),
        "a version of a recipe": Case(a_version, "worker", 2, 10),
        "the only version of a prefix": Case(one_version, "api", 2, 10),
        "a receipt": Case(lambda c: get_deletion(c, id_of(GONE + 1), TENANT), "operator", 2, 10),
        "an original, for operators": Case(
            lambda c: find_source(c, id_of(HOT), 1), "operator", 5, 30
        ),
        "a newest original": Case(an_original, "api", 3, 20),
        "the original of what is shown": Case(original_of_what_is_shown, "api", 5, 30),
        "forget a page of originals": Case(forget_a_page_of_originals, "maintenance", 200, 800),
        "open jobs of a deleted image with a long history": Case(
            list_void(HOT, HOT_OPEN), "api", 2 * HOT_OPEN, 60
        ),
        "open jobs of a deleted image with many": Case(
            list_void(DEEP, MOST_CANCELLED), "api", 2 * MOST_CANCELLED, 300
        ),
        "end the jobs of a deleted image with a long history": Case(
            flag_what_is_void, "worker", 10 * HOT_OPEN, 1000
        ),
        "call dark without an edge": Case(darken, "maintenance", 40, 400),
        "what to empty again": Case(list_what_to_empty, "maintenance", PAGE, 100),
        "next batch for the edge": Case(flush, "maintenance", 12 * PAGE, 1000),
        "how the edge stands, for operators": Case(edge_status, "operator", 200, 200),
        "forget what the edge was told": Case(prune_edge, "maintenance", 2000, 4000),
        "judge a thousand outputs": Case(judge_a_page_of_outputs, "maintenance", 2500, 14_000),
        "judge a thousand originals": Case(judge_a_page_of_originals, "maintenance", 2100, 8000),
        "outputs that must be there": Case(
            what_must_be_there("outputs", IMAGES + 5, 8 * PAGE), "maintenance", 20 * PAGE, 1000
        ),
        "originals that must be there": Case(
            what_must_be_there("originals", 20_000, PAGE), "maintenance", 3 * PAGE, 600
        ),
        "what was superseded, with an edge": Case(
            superseded(has_edge=True, after=30_000), "maintenance", 3 * PAGE, 1000
        ),
        "what was superseded, without an edge": Case(
            superseded(has_edge=False, after=30_000), "maintenance", 3 * PAGE, 1000
        ),
        "forget unused uploads": Case(forget_unused_uploads, "maintenance", 4 * PAGE, 600),
        "what is swept, for operators": Case(sweep_report, "operator", 200, 200),
        "how the edge stands": Case(sample_invalidations, "maintenance", 3 * PAGE, 100),
        "images whose ids begin alike": Case(
            lambda c: find_images_named(c, TENANT, id_of(5000), id_of(20_000), limit=PAGE),
            "api",
            4 * PAGE,
            1000,
        ),
        "images by a rare reference": Case(images(ImageFilter(reference="rare")), "api", 10, 60),
        "images by an old reference, deep": Case(
            images(ImageFilter(reference="old"), before=5000), "api", 4 * PAGE, 1000
        ),
    }
)
