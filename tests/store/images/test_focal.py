"""The focal point of an image: whose it is from when on, and what an edit of it finds to keep."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID, uuid4

import asyncpg
import pytest

from imagefleet.errors import IdempotencyConflict, NotFound, RequestRejected
from imagefleet.jobs.bulk import SetWalk
from imagefleet.jobs.images import Caveat, Focal, image_target
from imagefleet.jobs.kinds import BUILT_IN, Draft, ProcessImage, ReprocessImages
from imagefleet.jobs.lifecycle import Completed, ResultReason
from imagefleet.jobs.model import JobId, Submission, Submitted, TenantId, new_job_id
from imagefleet.jobs.replays import ReplayOrder, ReplayOutcome
from imagefleet.jobs.shapes.images import FocalPoint, ImageView
from imagefleet.store.database import Connection
from imagefleet.store.images.images import get_image, submit_image
from imagefleet.store.images.recipes import find_shown
from imagefleet.store.images.reprocessing import move_focal, reprocess_image, submit_page
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.letters.replays import replay_letters, replay_redriven
from tests.conftest import OpenConnection
from tests.store.images.deletions import an_upload, deleted
from tests.support.database import Database, driver_of
from tests.support.factories import (
    CORRUPT,
    TENANT,
    MadeJob,
    a_worker,
    claim_job,
    hold_job,
    settle_job,
)
from tests.support.image_rows import a_publication, a_set, a_variant, bury, renewal_of
from tests.support.races import all_at_once, no_deadlocks
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


async def moved(
    api: Connection, image_id: UUID, focal: Focal | None, *, key: str | None = None
) -> Submitted:
    fingerprint = f"move to {focal}"
    answer = await move_focal(
        api, asking(image_id, key=key), image_id, focal, fingerprint=fingerprint
    )
    assert isinstance(answer, tuple), answer
    return answer[1]


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


# Moved.


async def test_a_point_is_the_images_at_once_and_shown_once_it_is_cut_around_it(
    api: Connection, worker: Connection
) -> None:
    image_id = await an_image(api)
    await rendered(worker, image_id)

    job = await moved(api, image_id, HERE)

    assert (await wanted(api, image_id), await shown(api, image_id)) == (HERE, None)
    row = await job_row(worker, job.job_id)
    assert {"focal": [*HERE], "crops_only": True, "source_seq": 1, "recipe": "default"} == {
        name: row["payload"][name] for name in ("focal", "crops_only", "source_seq", "recipe")
    }
    await rendered(worker, image_id)
    assert await shown(api, image_id) == at(HERE)


async def test_a_job_that_failed_has_moved_nothing_that_is_shown_and_may_be_asked_for_again(
    api: Connection, worker: Connection
) -> None:
    image_id = await an_image(api, THERE)
    await rendered(worker, image_id)
    job = await moved(api, image_id, HERE)
    await settle_job(worker, await hold_job(worker, job.job_id), CORRUPT)
    assert await shown(api, image_id) == at(THERE)

    again = await moved(api, image_id, HERE)

    assert again.created
    await rendered(worker, image_id)
    assert await shown(api, image_id) == at(HERE)


@pytest.mark.parametrize("focal", [None, HERE])
async def test_what_would_change_nothing_is_no_job(
    api: Connection, worker: Connection, focal: Focal | None
) -> None:
    image_id = await an_image(api, focal)
    await rendered(worker, image_id)

    answer = await move_focal(api, asking(image_id), image_id, focal)

    assert isinstance(answer, ImageView)
    assert answer.focal_point == (focal and at(focal))
    assert await api.fetchval("SELECT count(*) FROM jobs") == 1


async def test_a_point_may_be_taken_away(api: Connection, worker: Connection) -> None:
    image_id = await an_image(api, HERE)
    await rendered(worker, image_id)

    job = await moved(api, image_id, None)

    assert "focal" not in (await job_row(worker, job.job_id))["payload"]
    await rendered(worker, image_id)
    assert (await wanted(api, image_id), await shown(api, image_id)) == (None, None)


async def test_a_repeat_gets_the_same_answer_and_moves_nothing_back(
    api: Connection, worker: Connection
) -> None:
    image_id = await an_image(api)
    await rendered(worker, image_id)
    first = await moved(api, image_id, HERE, key="a")
    await moved(api, image_id, THERE, key="b")

    repeat = await moved(api, image_id, HERE, key="a")
    with pytest.raises(IdempotencyConflict):
        await moved(api, image_id, THERE, key="a")

    assert (first.job_id, False) == (repeat.job_id, repeat.created)
    assert await wanted(api, image_id) == THERE


async def test_a_repeat_of_what_is_done_gets_the_job_that_did_it(
    api: Connection, worker: Connection
) -> None:
    image_id = await an_image(api)
    await rendered(worker, image_id)
    first = await moved(api, image_id, HERE, key="a")
    await rendered(worker, image_id)

    assert (await moved(api, image_id, HERE, key="a")).job_id == first.job_id


async def test_a_point_moved_before_the_first_rendering_ended_counts_for_what_is_rendered_next(
    api: Connection, worker: Connection
) -> None:
    image_id = await an_image(api)
    await moved(api, image_id, HERE)

    before = await shown(api, image_id)
    await rendered(worker, image_id)
    between = await shown(api, image_id)
    await rendered(worker, image_id)

    assert (before, between) == (at(HERE), None)
    assert await shown(api, image_id) == at(HERE)


async def test_what_is_rendered_again_keeps_the_point(api: Connection, worker: Connection) -> None:
    image_id, plain = await an_image(api), await an_image(api)
    await moved(api, image_id, HERE)

    submission, _ = await reprocess_image(
        api, asking(image_id), image_id, recipe="avif", versions={}
    )
    set_job = a_set()
    await worker_submits(worker, set_job)

    assert ([*HERE], "crops_only" in submission.payload) == (submission.payload["focal"], False)
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


async def test_the_image_of_another_and_a_deleted_one_are_left_alone(api: Connection) -> None:
    image_id, gone = await an_image(api), await an_image(api)
    repeated = await moved(api, gone, HERE, key="before")
    await bury(api, gone)

    for draft, asked in (
        (asking(image_id, tenant_id=TenantId("rival")), image_id),
        (asking(uuid4()), uuid4()),
    ):
        with pytest.raises(NotFound):
            await move_focal(api, draft, asked, HERE)
    with pytest.raises(RequestRejected, match="image_deleted"):
        await moved(api, gone, THERE)

    assert (await moved(api, gone, HERE, key="before")).job_id == repeated.job_id
    assert (await wanted(api, image_id), await wanted(api, gone)) == (None, HERE)


# Beside others.

Act = Callable[[Connection, UUID], Awaitable[object]]


def moving(focal: Focal) -> Act:
    async def move(api: Connection, image_id: UUID) -> object:
        try:
            return await moved(api, image_id, focal)
        except RequestRejected as error:
            return error.code

    return move


async def replaced(api: Connection, image_id: UUID) -> object:
    return await an_image(api, None, image_id)


async def at_once(database: Database, image_id: UUID, acts: Sequence[Act]) -> list[object]:
    """Each on a connection of its own."""

    async def one(act: Act) -> object:
        async with database.connect("api") as connection:
            return await act(connection, image_id)

    return await all_at_once([partial(one, act) for act in acts])


@pytest.mark.parametrize(
    "acts",
    [
        [moving(Focal(n / 10, 1 - n / 10)) for n in range(8)],
        [moving(HERE), replaced, moving(THERE), replaced, moving(Focal(0.5, 0.5))],
    ],
    ids=["moves", "moves and replacements"],
)
async def test_whatever_is_asked_for_at_once_the_newest_picture_ends_with_the_last_point(
    database: Database, acts: list[Act]
) -> None:
    async with (
        no_deadlocks(database),
        database.connect("api") as api,
        database.connect("worker") as worker,
    ):
        image_id = await an_image(api)
        await at_once(database, image_id, acts)
        for _ in range(1 + len(acts)):
            await rendered(worker, image_id)

        last = await wanted(api, image_id)
        assert await shown(api, image_id) == (last and at(last))
        newest = await api.fetchval("SELECT max(source_seq) FROM image_sources")
        assert await api.fetchval("SELECT source_seq FROM images") == newest


async def test_a_move_beside_a_deletion_publishes_nothing_over_the_tombstone(
    database: Database,
) -> None:
    async with (
        no_deadlocks(database),
        database.connect("api") as api,
        database.connect("worker") as worker,
    ):
        image_id = await an_image(api)
        await rendered(worker, image_id)
        running = await hold_job(worker, (await moved(api, image_id, HERE)).job_id)

        await at_once(database, image_id, [moving(THERE), deleted, moving(HERE)])

        assert await published(worker, image_id, running) is ResultReason.SUPERSEDED
        assert await api.fetchval("SELECT revision FROM images") == 1
        assert (await get_image(api, image_id, TENANT)).variants == []


# A replay of what failed.


async def failed(worker: Connection, job_id: JobId) -> JobId:
    await settle_job(worker, await hold_job(worker, job_id), CORRUPT)
    return job_id


async def replayed(operator: Connection, job_id: JobId) -> None:
    (answer,) = await replay_letters(operator, [job_id], ReplayOrder(by="ada"), BUILT_IN)
    assert answer.outcome is ReplayOutcome.REPLAYED


async def redriven(worker: Connection, job_id: JobId) -> None:
    assert await replay_redriven(worker, job_id, BUILT_IN) is not None


@pytest.mark.parametrize("later", [THERE, None])
@pytest.mark.parametrize("by", [replayed, redriven])
async def test_the_replay_of_a_move_that_failed_leaves_a_later_one_alone(
    later: Focal | None,
    by: Callable[[Connection, JobId], Awaitable[None]],
    api: Connection,
    operator: Connection,
    worker: Connection,
) -> None:
    image_id = await an_image(api, Focal(0.5, 0.5))
    await rendered(worker, image_id)
    job_id = await failed(worker, (await moved(api, image_id, HERE)).job_id)
    await moved(api, image_id, later)
    await rendered(worker, image_id)

    await by(operator if by is replayed else worker, job_id)
    assert await rendered(worker, image_id) is not ResultReason.SUPERSEDED

    assert await shown(api, image_id) == (later and at(later))
    assert await wanted(api, image_id) == later


async def test_the_replay_of_the_last_move_moves(
    api: Connection, operator: Connection, worker: Connection
) -> None:
    image_id = await an_image(api)
    await rendered(worker, image_id)
    job_id = await failed(worker, (await moved(api, image_id, HERE)).job_id)

    await replayed(operator, job_id)
    await rendered(worker, image_id)

    assert await shown(api, image_id) == at(HERE)


async def test_the_replay_of_an_older_source_keeps_the_point_of_that(
    api: Connection, operator: Connection, worker: Connection
) -> None:
    image_id = await an_image(api, HERE)
    (first,) = await api.fetch("SELECT id FROM jobs")
    job_id = await failed(worker, JobId(first["id"]))
    await an_image(api, THERE, image_id)

    await replayed(operator, job_id)

    points = await api.fetch("SELECT payload->'focal' AS focal FROM jobs ORDER BY target_seq")
    assert [row["focal"] for row in points] == [[*HERE], [*THERE], [*HERE]]


# What is found to keep.


async def test_what_is_shown_is_found_as_it_was_made(api: Connection, worker: Connection) -> None:
    image_id = await an_image(api)
    await rendered(worker, image_id)

    found = await find_shown(worker, image_id, TENANT, source_seq=1, encoder="tests")

    (row,) = await worker.fetch("SELECT * FROM variants")
    assert found is not None
    (variant,) = found.variants
    assert (variant.key, variant.facts.sha256) == (row["key"], row["sha256"])
    assert variant.facts.warnings == (Caveat.NOT_ENLARGED,)
    assert (found.source.width, found.placeholder.color) == (64, "#aabbcc")


@pytest.mark.parametrize(
    "differs", [{"source_seq": 2}, {"encoder": "another"}, {"tenant_id": TenantId("rival")}]
)
async def test_nothing_is_found_of_another_original_recipe_or_tenant(
    api: Connection, worker: Connection, differs: dict[str, object]
) -> None:
    image_id = await an_image(api)
    before = await find_shown(worker, image_id, TENANT, source_seq=1, encoder="tests")
    await rendered(worker, image_id)
    asked: dict[str, object] = {"tenant_id": TENANT, "source_seq": 1, "encoder": "tests"} | differs

    assert before is None
    assert await find_shown(worker, image_id, **asked) is None  # type: ignore[arg-type] # of each kind
