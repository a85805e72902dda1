"""The blocks of the pages that alerts lead on to."""

from collections.abc import AsyncIterator
from uuid import uuid4

from tests.runbooks.fleet import Fleet
from tests.runbooks.pages import deeper
from tests.runbooks.troubles import Trouble, when
from tests.runbooks.troubles.queues import BROKEN, a_noop, fleet_without_letters, until_state
from tests.support.images import GREEN, RED
from tests.support.published import a_picture, all_flushed, publish, replace

DOCTOR = (
    "kubectl --namespace imagefleet exec deployment/imagefleet-{} -- imagefleet doctor --for {}"
)


@when("api.md: " + DOCTOR.format("api", "api"))
async def _(_: Fleet) -> AsyncIterator[Trouble]:
    yield Trouble(see=("postgres",))


@when("database.md: " + DOCTOR.format("worker-general", "worker"))
async def _(_: Fleet) -> AsyncIterator[Trouble]:
    yield Trouble(see=("connections",))


@when("storage.md: imagefleet sweep")
async def _(_: Fleet) -> AsyncIterator[Trouble]:
    yield Trouble(see=("walk of .* through at",))


@when("edge.md: imagefleet edge status")
async def _(_: Fleet) -> AsyncIterator[Trouble]:
    yield Trouble(see=(r"flusher +[0-9a-f-]{36} since",))


@when("queues.md: imagefleet audit --since 1h")
async def _(_: Fleet) -> AsyncIterator[Trouble]:
    yield Trouble(see=("night",))


@when("queues.md: imagefleet jobs explain JOB")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    await fleet.imagefleet('queue pause --type noop --reason "somebody forgot it"')
    job = await a_noop(fleet)
    try:
        yield Trouble(words={"JOB": job}, see=("somebody forgot it",))
    finally:
        await fleet.imagefleet('queue resume --type noop --reason "the test is over"')
    await until_state(fleet, job, "completed")


@when("queues.md: imagefleet queue pause --all --refuse-new --wait --yes --reason")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    job = await a_noop(fleet, 1_000)
    await until_state(fleet, job, "processing")
    yield Trouble(see=("",))
    assert "completed" == await fleet.owner.fetchval(
        "SELECT state FROM jobs WHERE id = $1::uuid", job
    )
    assert (await fleet.producer.submit()).status_code == 503


@when('queues.md: imagefleet queue resume --all --reason "the database is new"')
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    yield Trouble(see=("",))
    job = await a_noop(fleet)
    await until_state(fleet, job, "completed")


REDRIVE = next(
    block for page in deeper() if page.name == "dead-letters.md" for block in page.blocks
)


@when(REDRIVE.name)
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    """A broken picture, whose letter has its copy in the queue."""
    async with fleet_without_letters(fleet):
        answer = await fleet.producer.upload(BROKEN, "image/png", key=str(uuid4()))
        job = answer.json()["jobId"]
        await until_state(fleet, job, "failed")
        await fleet.until("SELECT count(*) = 0 FROM dead_letter_sends")
        sqs = fleet.stack.place.client("sqs")
        urls = fleet.stack.place.queue_urls
        arns = {
            lane: sqs.get_queue_attributes(QueueUrl=urls[lane], AttributeNames=["QueueArn"])[
                "Attributes"
            ]["QueueArn"]
            for lane in ("dead-letter", "general")
        }
        words = {"DEAD_LETTER_QUEUE": arns["dead-letter"], "GENERAL_QUEUE": arns["general"]}
        yield Trouble(words=words, see=("TaskHandle",))
        replayed = "SELECT count(*) = 1 FROM jobs WHERE replay_of = $1::uuid"
        await fleet.until(replayed, job, within=30)
        await fleet.stack.all_ended(within=30)


@when("edge.md: SELECT items FROM invalidation_batches WHERE completed_at IS NULL AND las")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    rejected = uuid4()
    await fleet.execute(
        "INSERT INTO invalidation_batches (id, items, paths, sends, last_error)"
        " VALUES ($1, '[\"/i/that-one/*\"]', 1, 99, 'cloudfront_rejected: no tags')",
        rejected,
    )
    try:
        yield Trouble(see=("that-one",))
    finally:
        await fleet.execute("DELETE FROM invalidation_batches WHERE id = $1", rejected)


@when("edge.md: SELECT tenant_id, image_id, reason, count(*) AS paths, sum(debts) AS debt")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    shown = await publish(fleet.producer, RED)
    await fleet.producer.ended(await replace(fleet.producer, shown.image_id, a_picture(GREEN)))
    await all_flushed(fleet.stack)
    yield Trouble(see=(shown.image_id,))
