"""Who ends, hangs, or reaches nothing."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

import httpx

from tests.runbooks.cluster import NEVER_BEGINS, VOLUME
from tests.runbooks.fleet import Fleet
from tests.runbooks.troubles import Shows, Trouble, when
from tests.runbooks.troubles.queues import a_noop, aged, until_state
from tests.support.images import RED
from tests.support.published import a_picture

CROWD: Final = 6  # requests at once
OF_WORKERS: Final = "FROM pg_stat_activity WHERE usename = 'imagefleet_worker'"


@when("ApiFails")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    """A release with the wrong bucket."""

    async def upload() -> int:
        with suppress(httpx.HTTPError):
            return (await fleet.producer.upload(a_picture(RED))).status_code
        return 0

    await fleet.cluster.restart("api", ORIGINALS_BUCKET="another-one")
    await fleet.mark()
    assert await upload() >= 500

    async def again() -> None:
        await fleet.mark()
        assert await upload() == 202

    try:
        yield Trouble(see=(Shows("s3", code=1),), then=again, worked=("s3",))
    finally:
        if fleet.cluster.turned.get("api"):
            await fleet.cluster.restart("api")


@when("DatabaseAway")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    """Postgres takes no new connection, and a worker lost those that it had."""
    kept = fleet.stack.state / "postgres" / "data" / "postmaster.pid"
    postmaster = int(kept.read_text().split()[0])
    await fleet.mark()
    os.kill(postmaster, signal.SIGSTOP)

    async def back() -> None:
        os.kill(postmaster, signal.SIGCONT)
        await fleet.until(f"SELECT count(*) > 1 {OF_WORKERS}")
        await fleet.mark()

    try:
        await fleet.superuser.execute(f"SELECT pg_terminate_backend(pid) {OF_WORKERS}")
        yield Trouble(
            see=(Shows("postgres", code=1),),
            then=back,
            worked=("postgres", r"general +1 +"),
        )
    finally:
        os.kill(postmaster, signal.SIGCONT)
        await fleet.imagefleet('settings live reset slots.lane.general --reason "it is back"')


@when("PoolFull")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    """More requests at once than the API may have connections, and each takes its time."""
    await fleet.cluster.restart("api", DATABASE_POOL_MAX="2")
    async with AsyncExitStack() as crowds:
        await crowds.enter_async_context(crowd(fleet))
        yield Trouble(
            console=(200, 503),  # its API has the same pool
            see=("connections",),
            mended=crowds.aclose,
            then=lambda: crowds.enter_async_context(crowd(fleet)),
            worked=("connections",),
        )


@asynccontextmanager
async def crowd(fleet: Fleet) -> AsyncIterator[None]:
    """Requests at once that all wait for one table."""

    async def ask() -> None:
        with suppress(httpx.HTTPError):  # of a process that ends
            await fleet.producer.http.get("/v1/images")

    async with fleet.stack.database("superuser") as own, asyncio.TaskGroup() as group:
        await own.execute("BEGIN")
        await own.execute("LOCK TABLE images IN ACCESS EXCLUSIVE MODE")
        for _ in range(CROWD):
            group.create_task(ask())
        yield
        await own.execute("COMMIT")


@when("DiskFull")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    """Workers that were killed left their files in a small volume."""
    folder = fleet.stack.folder / "volumes" / "worker"
    folder.mkdir(parents=True, exist_ok=True)
    await fleet.cluster.restart("worker", TMPDIR=str(folder), VOLUME_BYTES=str(VOLUME))
    with (folder / "left-behind").open("wb") as left:
        left.truncate(VOLUME - (VOLUME >> 6))  # of which nothing is written
    yield Trouble(
        words={"POD": fleet.cluster.pod("worker")},
        see=(Shows("disk", code=1),),
        worked=("disk",),
    )


@when("ProcessDown")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    pod = fleet.cluster.pod("worker")
    fleet.cluster.stop("worker")
    yield Trouble(words={"POD": pod}, see=("s ago", pod), worked=("working",))


@when("MaintenanceAway")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    fleet.cluster.stop("maintenance")
    await fleet.execute("UPDATE elections SET until = now() - interval '1 second'")
    yield Trouble(
        see=("flusher +nobody", "imagefleet-maintenance"),
        worked=("flusher +[0-9a-f-]{36} since",),
    )


@when("NoWorkers")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    await fleet.cluster.restart("worker", **NEVER_BEGINS)
    job = await a_noop(fleet)
    await aged(fleet, [job], "5 minutes")
    try:
        yield Trouble(
            see=("no worker is up", r"fast +0 +"),
            worked=("working", r"fast +1 +\d+/\d+ +0 +0 "),
        )
    finally:
        if fleet.cluster.turned.get("worker"):
            await fleet.cluster.restart("worker")
    await until_state(fleet, job, "completed")


@when("BeatStale")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    """Somebody's session sits on the row of a worker."""
    pod = fleet.cluster.pod("worker")
    async with fleet.stack.database("superuser") as own:
        await own.execute("BEGIN")
        await own.fetch("SELECT FROM workers WHERE dead_at IS NULL FOR UPDATE")
        yield Trouble(
            words={"POD": pod},
            see=(r"1\d s ago",),
            mended=lambda: own.execute("COMMIT"),
            worked=(r" [0-4] s ago",),
        )


@when("WorkersDie")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    await fleet.mark()
    pod = fleet.cluster.pod("worker")
    job = await a_noop(fleet, 20_000)
    await until_state(fleet, job, "processing")
    await fleet.cluster.kill("worker", "OOMKilled")

    async def a_quiet_quarter() -> None:
        await fleet.mark()
        await until_state(fleet, await a_noop(fleet), "completed")

    yield Trouble(
        words={"POD": pod},
        see=("silent", "OOMKilled"),
        then=a_quiet_quarter,
        worked=("working",),
    )


@when("BreakerOpen")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    await fleet.imagefleet('breaker open s3 --reason "it is moved"')
    try:
        yield Trouble(words={"SERVICE": "s3"}, see=("s3 +open",), worked=("s3 +closed",))
    finally:
        await fleet.imagefleet('breaker reset s3 --reason "the test is over"')
