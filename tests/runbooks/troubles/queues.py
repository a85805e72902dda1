"""What waits, stops, sticks or fails."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

from tests.runbooks.fleet import Fleet
from tests.runbooks.troubles import Shows, Trouble, when
from tests.support.images import RED, quadrants, saved
from tests.support.published import a_picture, publish, replace

WHOLE = saved(quadrants(), "PNG")
BROKEN = WHOLE[: len(WHOLE) // 2]
NO_LETTERS = "no open dead letters"
AGE = "UPDATE jobs SET run_at = now() - $2::text::interval WHERE id = ANY ($1::uuid[])"
TURN = """
UPDATE rings SET next_at = jobs.run_at FROM jobs
 WHERE rings.job_id = jobs.id AND jobs.id = ANY ($1::uuid[]) AND rings.next_at < 'infinity'
"""
ADD = "UPDATE ledger SET accepted = accepted + $1 WHERE ctid = (SELECT ctid FROM ledger LIMIT 1)"


async def aged(fleet: Fleet, jobs: Sequence[str], since: str) -> None:
    """They have been due for so long."""
    await fleet.execute(AGE, jobs, since)
    await fleet.execute(TURN, jobs)


async def a_noop(fleet: Fleet, milliseconds: int = 0, due: str | None = None) -> str:
    wanted = {"jobType": "noop", "payload": {"milliseconds": milliseconds}}
    asked = wanted if due is None else wanted | {"runAt": due}
    answer = await fleet.producer.http.post("/v1/jobs", json=asked)
    assert answer.status_code == 202, answer.text
    job: str = answer.json()["jobId"]
    return job


async def until_state(fleet: Fleet, job: str, state: str, within: float = 30.0) -> None:
    await fleet.until("SELECT state = $2 FROM jobs WHERE id = $1::uuid", job, state, within=within)


@asynccontextmanager
async def paused(fleet: Fleet, what: str) -> AsyncIterator[None]:
    """Somebody held it back; whatever a page does of it, it is lifted in the end."""
    await fleet.imagefleet(f'queue pause {what} --yes --reason "a test of something"')
    try:
        yield
    finally:
        await fleet.shell.run(f'imagefleet queue resume {what} --reason "the test is over"')


@asynccontextmanager
async def fleet_without_letters(fleet: Fleet) -> AsyncIterator[None]:
    """What failed here is seen to before the next trouble."""
    try:
        yield
    finally:
        await fleet.shell.run('imagefleet dlq ack --note "of a test" --all --yes')


@when("BacklogGrows")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    async with paused(fleet, "--all"):
        await fleet.producer.submit_many(501)
        yield Trouble(
            see=(r"fast .* 501 ", r"all +0"),
            worked=(r"fast +\d+ +\d+/\d+ +\d+ +\d{1,2} ",),
        )
    await fleet.stack.all_ended(within=30)


@when("OldestJobWaits")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    shown = await publish(fleet.producer, RED)
    target = f"image:{shown.image_id}"
    async with paused(fleet, f"--target {target} --tenant demo"):
        job = await replace(fleet.producer, shown.image_id, a_picture(RED))
        await aged(fleet, [job], "2 hours")
        yield Trouble(
            words={"JOB": job, "TARGET": target, "TENANT": "demo"},
            see=("no such jobs", "a test of something"),  # its id has the time of its making
            worked=("completed",),
        )


@when("NoProgress")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    async with paused(fleet, "--type noop"):
        await aged(fleet, [await a_noop(fleet)], "10 minutes")
        await fleet.mark()
        yield Trouble(
            words={"TYPE": "noop"},
            see=("noop .* queued +1", "type noop"),
            worked=("noop .* completed +\\d",),
        )


@when("FastLaneFull")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    turned = "slots.lane.fast"
    await fleet.imagefleet(f'settings live set {turned} 1 --reason "a test of something"')
    job = await a_noop(fleet, 60_000)
    try:
        yield Trouble(
            see=(r"fast +\d+ +1/", rf"{turned} "),
            worked=(r"fast +\d+ +1/\d\d",),
        )
    finally:
        await fleet.imagefleet(f'jobs fail --reason "the test is over" {job}')
        await until_state(fleet, job, "failed")
        await fleet.imagefleet('dlq ack --note "of a test" --all --yes')


@when("JobsStuck")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    job = await a_noop(fleet, 60_000)
    await until_state(fleet, job, "processing")
    await fleet.execute(
        "UPDATE jobs SET claimed_at = now() - interval '2 hours' WHERE id = $1::uuid", job
    )
    async with fleet_without_letters(fleet):
        yield Trouble(
            words={"JOB": job},
            see=(f"stuck[^$]*{job}", job),
            worked=(rf"\A(?![^$]*{job})", rf"\A(?![^$]*{job})"),
        )


@when("JobsFail")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    await fleet.mark()
    for _ in range(10):
        answer = await fleet.producer.upload(BROKEN, "image/png", key=str(uuid4()))
        assert answer.status_code == 202, answer.text

    async def upload_another() -> None:
        await fleet.mark()
        held = await fleet.producer.upload(BROKEN, "image/png", key=str(uuid4()))
        await until_state(fleet, held.json()["jobId"], "queued")

    async with fleet_without_letters(fleet):
        yield Trouble(
            words={"TYPE": "process_image"},
            see=("process_image +corrupt +10", "corrupt .* demo|demo .* corrupt"),
            then=upload_another,
            worked=("type process_image", "process_image .* queued +1"),
        )
        await fleet.imagefleet('queue resume --type process_image --reason "it is rolled back"')
        await fleet.stack.all_ended(within=30)


@when("DeadLetters")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    """Somebody's clean-up took originals away, and brought them back."""
    bucket, s3 = fleet.stack.place.originals, fleet.stack.place.client("s3")
    async with paused(fleet, "--type process_image"):
        answer = await fleet.producer.upload(a_picture(RED), key=str(uuid4()))
        job = answer.json()["jobId"]
        key = await fleet.owner.fetchval(
            "SELECT key FROM image_sources WHERE image_id = $1::uuid", answer.json()["imageId"]
        )
        kept = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        s3.delete_object(Bucket=bucket, Key=key)
    await until_state(fleet, job, "failed")
    fingerprint = await fleet.owner.fetchval(
        "SELECT fingerprint FROM dead_letters WHERE job_id = $1::uuid", job
    )

    async def restored() -> None:
        s3.put_object(Bucket=bucket, Key=key, Body=kept)

    async with fleet_without_letters(fleet):
        yield Trouble(
            words={"FINGERPRINT": fingerprint},
            see=(fingerprint[:8],),
            mended=restored,
            do="1 replayed|completed",
            worked=(NO_LETTERS,),
        )


@when("LedgerMissing")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    """A job was taken out of the book past the triggers, as by a restore of one table."""
    await fleet.stack.all_ended(within=30)
    await fleet.execute(ADD, 1)

    async def found() -> None:
        await fleet.execute(ADD, -1)

    try:
        yield Trouble(
            see=(Shows(r"missing +1\b", code=1),),
            then=found,
            worked=(r"retention.jobs_days +3650", r"missing +0\b"),
        )
    finally:
        await fleet.imagefleet('settings live reset retention.jobs_days --reason "it balances"')


HOLD = "UPDATE lanes SET holder = $2, until = now() + interval '1 hour' WHERE lane = $1"
AWAY = """
UPDATE lanes SET looked_at = now() - interval '1 minute', oldest_at = now() - interval '2 minutes'
 WHERE lane = $1
"""


@asynccontextmanager
async def hanging_dispatcher(fleet: Fleet, lane: str) -> AsyncIterator[str]:
    """One that holds the lane, and looks no more until its process is ended; a job in it."""
    hanging, others = uuid4(), "SELECT max(looked_at) FROM lanes WHERE holder <> $1"
    await fleet.execute(HOLD, lane, hanging)
    looked_at = await fleet.owner.fetchval("SELECT now()")
    for _ in range(2):  # the first may have begun before, and announce what is submitted now
        looked_at = await fleet.until(
            f"SELECT nullif(({others}), least(({others}), $2))", hanging, looked_at
        )
    await fleet.execute("UPDATE lanes SET room = 0, looked_at = now() WHERE lane = $1", lane)

    async def end() -> None:
        await fleet.execute("UPDATE lanes SET until = now() WHERE holder = $1", hanging)

    fleet.cluster.when_restarted["maintenance"] = end
    try:
        job = await a_noop(fleet, due="2099-01-01T00:00:00Z")  # which nobody announces
        await fleet.execute(AWAY, lane)
        await aged(fleet, [job], "2 minutes")
        yield job
    finally:
        del fleet.cluster.when_restarted["maintenance"]
        await end()
    await until_state(fleet, job, "completed")


@when("NotAnnounced")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    async with hanging_dispatcher(fleet, "fast"):
        yield Trouble(
            words={"LANE": "fast"},
            see=("No dispatcher has looked for", "sqs"),
            worked=(r"fast +\d+ +\d+/\d+ +0 +0 ",),
        )


@when("DispatcherSilent")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    async with hanging_dispatcher(fleet, "fast"):
        yield Trouble(
            words={"LANE": "fast"},
            see=("No dispatcher has looked for",),
            worked=(r"\A(?![^$]*dispatcher)",),
        )


@when("QueueDrifts")
async def _(fleet: Fleet) -> AsyncIterator[Trouble]:
    """Messages were purged, and the worker hangs that would have told that none come."""
    sqs = fleet.stack.place.client("sqs")
    pod = fleet.cluster.pod("worker")
    fleet.cluster.stop("worker")
    jobs = [await a_noop(fleet) for _ in range(3)]
    await fleet.until("SELECT count(*) >= 3 FROM rings WHERE sent_at IS NOT NULL")
    sqs.purge_queue(QueueUrl=fleet.stack.place.queue_urls["fast"])
    yield Trouble(
        words={"POD": pod},
        see=(r"fast +\d+ +3 +3", "s ago"),
        worked=(r"fast +0 +0 +0",),
    )
    for job in jobs:
        await until_state(fleet, job, "completed")
