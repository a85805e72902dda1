"""The flusher as it is run: elected among processes, taken over, and of no concern to jobs."""

import signal
from uuid import UUID, uuid4

from imagefleet.store.database import Connection
from tests.support.cloudfront import DISTRIBUTION, CloudFront, Made, a_cloudfront
from tests.support.eventually import eventually
from tests.support.fleet import Place, inside, running
from tests.support.images import quadrants, saved

OWE = """
INSERT INTO invalidations (image_id, tenant_id, reason)
SELECT gen_random_uuid(), 'acme', 'replaced' FROM generate_series(1, 10)
RETURNING image_id
"""
UNPAID = """
SELECT count(*) FROM invalidations
  LEFT JOIN invalidation_batches AS batches ON batches.id = invalidations.batch_id
 WHERE batches.completed_at IS NULL
"""
KEYS = """
SELECT variants.key FROM images
  JOIN variants ON variants.image_id = images.id AND variants.revision = images.revision
 WHERE images.id = $1
"""


def told_of(played: CloudFront) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL_CLOUDFRONT": played.url,
        "CLOUDFRONT_DISTRIBUTION_ID": DISTRIBUTION,
    }


async def test_a_killed_flushers_batch_is_taken_over_within_seconds_and_is_sent_once(
    place: Place, worker: Connection, superuser: Connection
) -> None:
    images = {row["image_id"] for row in await worker.fetch(OWE)}

    async with a_cloudfront() as played:
        played.hold()
        async with running(place, "maintenance", environment=told_of(played)) as first:
            await first.tells("flusher.elected")
            async with running(place, "maintenance", environment=told_of(played)) as second:
                await eventually(played.arrived.is_set, within=15)
                first.signal(signal.SIGKILL)
                assert -signal.SIGKILL == await first.ends()
                killed_at = await superuser.fetchval("SELECT clock_timestamp()")
                assert [] == second.told("flusher.elected")
                played.release()  # what the dead one asked for is carried out all the same

                await second.tells("flusher.elected", within=20)
                taken_at = await superuser.fetchval("SELECT clock_timestamp()")

                async def is_paid() -> bool:
                    return not await superuser.fetchval(UNPAID)

                await eventually(is_paid, within=15)

    assert (taken_at - killed_at).total_seconds() < 15
    (accepted,) = played.accepted
    assert {f"/i/{image_id}/*" for image_id in images} == set(accepted)
    (batch,) = await superuser.fetch("SELECT * FROM invalidation_batches")
    assert [batch["cloudfront_id"]] == list(played.made)
    assert 2 == batch["sends"], "by each of them, under one reference"
    assert 10 == await superuser.fetchval("SELECT sum(paths) FROM invalidation_months")


async def test_who_drains_hands_its_offices_on_at_once(place: Place, superuser: Connection) -> None:
    """So that a rolling deployment does not wait for what runs out after ten seconds."""
    offices = "SELECT name FROM elections WHERE until > now() AND holder = ANY ($1) ORDER BY name"

    async def holders() -> list[UUID]:
        rows = await superuser.fetch("SELECT holder FROM elections")
        return [row["holder"] for row in rows] if len(rows) == 4 else []

    async with (
        a_cloudfront() as played,
        running(place, "maintenance", environment=told_of(played)) as maintenance,
    ):
        await maintenance.tells("flusher.elected")
        mine = await eventually(holders, within=10)
        before = [row["name"] for row in await superuser.fetch(offices, mine)]
        maintenance.signal(signal.SIGTERM)
        assert 0 == await maintenance.ends()
        after = [row["name"] for row in await superuser.fetch(offices, mine)]

    assert ["bookkeeper", "flusher", "sampler", "statistician"] == before
    assert [] == after


async def test_jobs_neither_wait_nor_fail_and_no_edge_hears_of_what_is_not_there(
    place: Place, api: Connection, superuser: Connection
) -> None:
    image_id = uuid4()
    outputs = await place.session.objects(place.settings.outputs_bucket)
    accepted: list[tuple[UUID, int]] = []

    async def look(made: Made) -> None:
        """At the moment of acceptance all that is published now can be fetched."""
        async with place.database.connect("superuser") as connection:
            for item in made.items:
                shown = UUID(item.split("/")[2])
                keys = [row["key"] for row in await connection.fetch(KEYS, shown)]
                for key in keys:
                    await outputs.head(key)
                accepted.append((shown, len(keys)))

    played = CloudFront(refuses="ServiceUnavailable", on_accepted=look)
    async with (
        a_cloudfront(played),
        running(place, "worker") as worker,
        inside(place, "maintenance", environment=told_of(played)) as maintenance,
    ):
        for uploads, width in enumerate((64, 72), start=1):
            await place.upload(api, image_id, saved(quadrants(width, 40)))
            await worker.tells("job.completed", times=uploads)
        await maintenance.tells("invalidation.deferred", within=20)
        assert 0 == len(played.made)

        await place.upload(api, image_id, saved(quadrants(80, 40)))
        await worker.tells("job.completed", times=3)
        assert 0 == len(played.made), "completed while CloudFront takes nothing"
        assert await superuser.fetchval(UNPAID) > 0
        played.refuses = None

        async def is_paid() -> bool:
            return not await superuser.fetchval(UNPAID)

        await eventually(is_paid, within=25)
        assert [] == worker.told("job.failed")

    assert 1 < await attempts_that_completed(superuser)
    assert {(image_id, 10)} == set(accepted)
    assert accepted


async def attempts_that_completed(superuser: Connection) -> int:
    return int(
        await superuser.fetchval("SELECT count(*) FROM attempts WHERE outcome = 'completed'")
    )
