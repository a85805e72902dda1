"""What producers were promised, and not given in time."""

from collections.abc import AsyncIterator

from tests.runbooks.fleet import Fleet
from tests.runbooks.troubles import Trouble, when
from tests.runbooks.troubles.queues import NO_LETTERS, paused
from tests.support.images import RED
from tests.support.published import a_picture, publish


async def published_late(fleet: Fleet) -> None:
    """An image was shown a minute after it had been accepted."""
    await fleet.mark()
    async with paused(fleet, "--type process_image"):
        job = (await fleet.producer.upload(a_picture(RED))).json()["jobId"]
        await fleet.execute(
            "UPDATE jobs SET created_at = now() - interval '1 minute',"
            " run_at = now() - interval '1 minute' WHERE id = $1::uuid",
            job,
        )
    await fleet.producer.ended(job)


async def publish_in_time(fleet: Fleet) -> None:
    await fleet.mark()
    await publish(fleet.producer, RED)


@when("PublishBurnsFast")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    await published_late(fleet)
    try:
        yield Trouble(
            see=("process_image", NO_LETTERS),
            then=lambda: publish_in_time(fleet),
            worked=("process_image .* completed",),
        )
    finally:
        held = "--type reprocess_images"
        await fleet.shell.run(f'imagefleet queue resume {held} --reason "the test is over"')


@when("PublishBurnsSlowly")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    await published_late(fleet)
    yield Trouble(
        see=("a minute",),
        then=lambda: publish_in_time(fleet),
        worked=("a minute",),
    )
    assert fleet.cluster.patched == {"imagefleet-worker-general": {"spec": {"maxReplicaCount": 40}}}
