"""Whatever races a deletion, the image ends dark."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from uuid import UUID

import pytest

from imagefleet.errors import RequestRejected
from imagefleet.jobs.images import image_target
from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.lifecycle import Completed, Released
from imagefleet.jobs.model import (
    JobId,
    new_job_id,
)
from imagefleet.store.database import Connection
from imagefleet.store.images.deleting import (
    Deleting,
    flag_void,
)
from imagefleet.store.images.images import find_current
from imagefleet.store.letters.replays import (
    replay_redriven,
)
from tests.store.images.deletions import a_receipt, deleted, failing, publication, uploaded
from tests.support.database import Database
from tests.support.factories import (
    TENANT,
    MadeJob,
    a_worker,
    claim_job,
    hold_job,
    settle_job,
)
from tests.support.races import all_at_once, no_deadlocks
from tests.support.rows import job_row

ROUNDS = 60


# Races, on connections of their own.

Race = Callable[[Connection, Connection, UUID], Awaitable[object]]


async def a_put(api: Connection, _worker: Connection, image_id: UUID) -> object:
    try:
        return (await uploaded(api, image_id)).job_id
    except RequestRejected as error:
        return error.code


async def a_settlement(_api: Connection, worker: Connection, image_id: UUID) -> object:
    job_id = await worker.fetchval(
        "SELECT running_job FROM targets WHERE target = $1", image_target(image_id)
    )
    row = await job_row(worker, job_id)
    job = MadeJob(job_id=job_id, claim_no=row["claim_no"], worker_id=row["locked_by"])
    return await settle_job(
        worker, job, Completed(publication=await publication(worker, image_id, job))
    )


async def another_deletion(api: Connection, _worker: Connection, image_id: UUID) -> object:
    return await deleted(api, image_id)


async def a_claim(_api: Connection, worker: Connection, image_id: UUID) -> object:
    rows = await worker.fetch(
        "SELECT id FROM jobs WHERE target = $1 AND state = 'queued'", image_target(image_id)
    )
    me = await a_worker(worker)
    return [await claim_job(worker, JobId(row["id"]), me) for row in rows]


async def a_replay(_api: Connection, worker: Connection, image_id: UUID) -> object:
    failed = await worker.fetchval(
        "SELECT id FROM jobs WHERE target = $1 AND state = 'failed'", image_target(image_id)
    )
    return await replay_redriven(worker, JobId(failed), BUILT_IN)


@pytest.mark.parametrize(
    "races",
    [
        [a_put, a_put],
        [a_settlement],
        [another_deletion, another_deletion],
        [a_claim, a_put],
        [a_replay, a_replay],
    ],
)
async def test_whatever_races_a_deletion_the_image_ends_dark(
    database: Database, races: list[Race]
) -> None:
    """The order is any; what is true afterwards is not."""
    async with (
        no_deadlocks(database),
        database.connect("superuser") as superuser,
        database.connect("api") as deleter,
        database.connect("worker") as worker,
        AsyncExitStack() as stack,
    ):
        others = [
            (
                await stack.enter_async_context(database.connect("api")),
                await stack.enter_async_context(database.connect("worker")),
            )
            for _ in races
        ]
        for round_ in range(ROUNDS):
            image_id = new_job_id()
            submitted = await uploaded(deleter, image_id)
            if a_settlement in races:
                await hold_job(worker, submitted.job_id)
            if a_replay in races:
                await failing(worker, submitted.job_id)
            pause = (round_ % 6) * 0.0004

            async def later(pause: float = pause, image_id: UUID = image_id) -> Deleting:
                await asyncio.sleep(pause)  # so that each comes first now and then
                return await deleted(deleter, image_id)

            actions: list[Callable[[], Awaitable[object]]] = [later]
            for race, (api, other) in zip(races, others, strict=True):
                actions.append(partial(race, api, other, image_id))
            await all_at_once(actions)
            await expect_dark(superuser, worker, deleter, image_id)


async def expect_dark(
    superuser: Connection, worker: Connection, api: Connection, image_id: UUID
) -> None:
    """One tombstone; every job ends; no pointer ever moves again, no address leads anywhere."""
    pointer = "SELECT revision FROM images WHERE id = $1"
    shown = await superuser.fetchval(pointer, image_id)
    (stone,) = await superuser.fetch(
        "SELECT job_id FROM image_tombstones WHERE image_id = $1", image_id
    )
    open_jobs = """
    SELECT id, type, state, claim_no, locked_by FROM jobs
     WHERE target = $1 AND state IN ('queued', 'processing') ORDER BY state = 'queued', preempts
    """
    for row in await superuser.fetch(open_jobs, image_target(image_id)):
        if row["type"] == "delete_image":
            continue
        worker_id = row["locked_by"] or await a_worker(worker)
        if row["state"] == "queued":
            continue
        job = MadeJob(job_id=row["id"], claim_no=row["claim_no"], worker_id=worker_id)
        outcome = Completed(publication=await publication(worker, image_id, job))
        await settle_job(worker, job, outcome)
        assert "superseded" == (await job_row(superuser, job.job_id))["result_reason"]
    deletion = await job_row(superuser, stone["job_id"])
    held = (
        MadeJob(
            job_id=deletion["id"], claim_no=deletion["claim_no"], worker_id=deletion["locked_by"]
        )
        if deletion["state"] == "processing"
        else await hold_job(worker, deletion["id"])
    )
    await flag_void(worker, image_id, TENANT)
    await settle_job(worker, held, a_receipt(image_id))
    for row in await superuser.fetch(open_jobs, image_target(image_id)):
        job = await hold_job(worker, row["id"])
        await settle_job(worker, job, Released(why="flagged"))
        assert "image_deleted" == (await job_row(superuser, job.job_id))["failure_code"]

    assert shown == await superuser.fetchval(pointer, image_id)
    assert await find_current(api, [(image_id, "thumb", "webp")], within=1) == {}
    assert 1 == await superuser.fetchval(
        "SELECT count(*) FROM jobs WHERE type = 'delete_image' AND target = $1",
        image_target(image_id),
    )
    assert [] == await superuser.fetch(
        "SELECT FROM invalidations WHERE image_id = $1 AND reason <> 'deleted'", image_id
    )
