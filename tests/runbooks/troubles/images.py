"""What the edge and S3 are owed."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final
from uuid import uuid4

from tests.runbooks.fleet import Fleet
from tests.runbooks.troubles import Shows, Trouble, when
from tests.runbooks.troubles.queues import until_state
from tests.support.images import GREEN, RED
from tests.support.published import a_picture, all_flushed, delete, publish, replace

OWED_FOR: Final = (
    "UPDATE invalidations SET owed_at = now() - interval '10 minutes' WHERE image_id = $1::uuid"
)
LEAVE: Final = "UPDATE elections SET until = now() WHERE name = 'flusher' AND holder = $1"
HANG: Final = """
UPDATE elections SET holder = $1, until = now() + interval '1 hour', term = term + 1
 WHERE name = 'flusher'
"""


@asynccontextmanager
async def hanging_flusher(fleet: Fleet) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """One that holds its office and sends nothing; what is yielded ends it."""
    hanging = uuid4()
    await all_flushed(fleet.stack)
    await fleet.execute(HANG, hanging)

    async def end() -> None:
        await fleet.execute(LEAVE, hanging)

    try:
        yield end
    finally:
        await end()
    await all_flushed(fleet.stack)


@when("DarkLate")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    shown = await publish(fleet.producer, RED)
    async with hanging_flusher(fleet) as ended:
        await fleet.producer.ended(await replace(fleet.producer, shown.image_id, a_picture(GREEN)))
        await fleet.execute(OWED_FOR, shown.image_id)
        yield Trouble(
            words={"IMAGE": shown.image_id},
            see=(r"owed +1 images, the oldest for 6\d\d s", "no such jobs"),
            mended=ended,
            do=shown.image_id,
            worked=(r"owed +0 images",),
        )


async def dark_late(fleet: Fleet) -> None:
    """An image was dark two minutes after somebody had asked for it."""
    await fleet.mark()
    shown = await publish(fleet.producer, RED)
    async with hanging_flusher(fleet):
        await fleet.producer.ended(await delete(fleet.producer, shown.image_id))
        await fleet.execute(
            "UPDATE image_tombstones SET requested_at = now() - interval '2 minutes'"
            " WHERE image_id = $1::uuid",
            shown.image_id,
        )


@when("DarkBurnsFast")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    await dark_late(fleet)
    shown = await publish(fleet.producer, RED)

    async def deleted() -> None:
        await fleet.mark()
        await fleet.producer.ended(await delete(fleet.producer, shown.image_id))

    yield Trouble(
        words={"IMAGE": shown.image_id},
        see=(r"owed +\d+ images",),
        mended=deleted,
        do=shown.image_id,
        worked=(r"owed +0 images",),
    )
    await all_flushed(fleet.stack)


@when("DarkBurnsSlowly")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    await dark_late(fleet)

    async def delete_another() -> None:
        await fleet.mark()
        shown = await publish(fleet.producer, RED)
        await fleet.producer.ended(await delete(fleet.producer, shown.image_id))
        await fleet.until(
            "SELECT dark_at IS NOT NULL FROM image_tombstones WHERE image_id = $1::uuid",
            shown.image_id,
        )
        sent = await fleet.owner.fetchval(
            "SELECT items ->> 0 FROM invalidation_batches ORDER BY created_at DESC LIMIT 1"
        )
        assert sent.startswith("#"), "by tag, and not by wildcard"

    yield Trouble(see=(r"owed +\d+ images",), then=delete_another, worked=(r"owed +0 images",))


@when("PathBudgetUsed")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    shown = await publish(fleet.producer, RED)
    await fleet.producer.ended(await replace(fleet.producer, shown.image_id, a_picture(GREEN)))
    await all_flushed(fleet.stack)
    used = await fleet.owner.fetchval("SELECT sum(paths)::bigint FROM invalidation_months")
    await fleet.execute("UPDATE invalidation_months SET paths = 1001")

    async def until_the_next_month() -> None:
        job = await replace(fleet.producer, shown.image_id, a_picture(RED))
        await until_state(fleet, job, "queued")
        owed = await fleet.owner.fetchval(
            "SELECT count(*) FROM invalidations WHERE batch_id IS NULL"
        )
        assert owed == 0, "it costs another path"
        await fleet.execute("UPDATE invalidation_months SET month = month - interval '1 month'")

    try:
        yield Trouble(
            words={"IMAGE": shown.image_id, "TENANT": "demo"},
            see=("1001 of 1000 paths, over budget",),
            then=until_the_next_month,
            worked=("0 of 1000 paths",),
        )
    finally:
        await fleet.execute(
            "UPDATE invalidation_months SET paths = $1,"
            " month = date_trunc('month', now() AT TIME ZONE 'UTC')::date",
            used,
        )
        target = f"--target image:{shown.image_id} --tenant demo"
        await fleet.shell.run(f'imagefleet queue resume {target} --reason "the test is over"')
    await fleet.stack.all_ended(within=30)
    await all_flushed(fleet.stack)


async def walk(fleet: Fleet) -> None:
    """Time goes by until the next walk through S3, which is taken by a process that begins."""
    await fleet.execute("DELETE FROM periods WHERE name IN ('sweep', 'sweep_walk')")
    await fleet.cluster.start_another("maintenance")
    await fleet.until(
        "SELECT count(*) = 1 FROM periods WHERE name = 'sweep_walk' AND finished_at IS NOT NULL"
    )
    await fleet.cluster.end_others()


@when("ObjectsMissing")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    """Somebody deleted from the bucket of variants."""
    shown = await publish(fleet.producer, RED)
    key = await fleet.owner.fetchval(
        "SELECT key FROM variants WHERE image_id = $1::uuid ORDER BY key LIMIT 1", shown.image_id
    )
    fleet.stack.place.client("s3").delete_object(Bucket=fleet.stack.place.outputs, Key=key)
    await walk(fleet)

    async def walked_again() -> None:
        await fleet.stack.all_ended(within=30)
        await walk(fleet)

    yield Trouble(
        words={"IMAGE": shown.image_id},
        see=(Shows(f"{shown.image_id}", code=1),),
        then=walked_again,
        worked=("walk of .* through at",),
    )


LATE: Final = """
UPDATE periods
   SET period_start = period_start - interval '1 hour',
       report = report || '{"behind_seconds": 7200}'
 WHERE name = 'prune'
"""
TAKEN: Final = """
INSERT INTO periods (name, period_start, holder)
SELECT 'prune', date_bin('1 minute', later, timestamptz '2000-01-01 00:00+00'), $1
  FROM generate_series(now(), now() + interval '5 minutes', interval '1 minute') AS later
"""


@when("UpkeepBehind")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    """Whoever takes the periods of pruning does nothing with them."""
    slow = uuid4()
    await fleet.execute(LATE)
    await fleet.execute(TAKEN, slow)

    async def given_up() -> None:
        await fleet.execute("DELETE FROM periods WHERE name = 'prune' AND holder = $1", slow)

    try:
        yield Trouble(
            see=("prune|retention", "walk of"),
            mended=given_up,
            worked=("prune|retention",),
        )
    finally:
        await given_up()
        await fleet.cluster.end_others()
