"""A day after its deletion an image is looked for once more; without an edge it is dark at once."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from imagefleet.aws.deletes import Deleted
from imagefleet.aws.objects import Headers, Objects
from imagefleet.errors import Unavailable
from imagefleet.maintenance.deletions import BATCH, DeletionKeeper, EmptiedAgain
from imagefleet.store.database import Connection, Pool
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.support.fleet import Place

DAY = timedelta(hours=24)
NOTHING = EmptiedAgain(taken=True)


class Refusing(Objects):
    """A bucket that deletes nothing."""

    async def delete_all(self, prefix: str) -> Deleted:
        versions = [version async for page in self.versions(prefix) for version in page]
        return Deleted(failures=dict.fromkeys(versions, "AccessDenied"))


async def a_grave(superuser: Connection, *, hours: int) -> UUID:
    image_id = uuid4()
    await superuser.execute(
        "INSERT INTO image_tombstones"
        " (image_id, tenant_id, job_id, requested_by, requested_at, objects_deleted_at)"
        " SELECT $1, 'acme', gen_random_uuid(), 'tests', moment - interval '2 s', moment"
        "   FROM (SELECT now() - $2::interval AS moment) AS earlier",
        image_id,
        timedelta(hours=hours),
    )
    return image_id


async def litter(objects: Objects, prefix: str, image_id: UUID) -> None:
    await objects.put(f"{prefix}/{image_id}/9.9/x", b"x", Headers(content_type="text/plain"))


async def buckets(place: Place) -> tuple[Objects, Objects]:
    names = (place.settings.originals_bucket, place.settings.outputs_bucket)
    originals, outputs = [await place.session.objects(name) for name in names]
    return originals, outputs


def keeper(
    pool: Pool,
    both: tuple[Objects, Objects],
    *,
    has_edge: bool = True,
    metrics: MaintenanceMetrics | None = None,
) -> DeletionKeeper:
    counts = metrics or MaintenanceMetrics(())
    return DeletionKeeper(pool, *both, uuid4(), counts, has_edge=has_edge)


async def test_what_was_stored_since_is_deleted_a_day_later_and_once(
    place: Place, pool: Pool, superuser: Connection
) -> None:
    both = originals, outputs = await buckets(place)
    old, young = await a_grave(superuser, hours=25), await a_grave(superuser, hours=23)
    for image_id in (old, young):
        await litter(outputs, "i", image_id)
        await litter(originals, "o", image_id)

    first = await keeper(pool, both).run_once()
    other = await keeper(pool, both).run_once()

    assert [EmptiedAgain(taken=True, images=1, found=2), EmptiedAgain(taken=False)] == [
        first,
        other,
    ]
    left = [entry.key for entry in (await outputs.page("i/")).objects]
    assert [f"i/{young}/9.9/x"] == left
    (debt,) = await superuser.fetch("SELECT image_id, reason FROM invalidations")
    assert (old, "deleted") == (debt["image_id"], debt["reason"])
    await superuser.execute("DELETE FROM periods")
    assert NOTHING == await keeper(pool, both).run_once()


async def test_where_nothing_lay_nothing_is_owed(
    place: Place, pool: Pool, superuser: Connection
) -> None:
    await a_grave(superuser, hours=25)

    answer = await keeper(pool, await buckets(place)).run_once()

    assert EmptiedAgain(taken=True, images=1, found=0) == answer
    assert 0 == await superuser.fetchval("SELECT count(*) FROM invalidations")


async def test_more_than_one_question_names_are_emptied_in_one_period(
    place: Place, pool: Pool, superuser: Connection
) -> None:
    for _ in range(BATCH + 1):
        await a_grave(superuser, hours=25)

    answer = await keeper(pool, await buckets(place)).run_once()

    assert EmptiedAgain(taken=True, images=BATCH + 1, found=0) == answer


async def test_what_s3_refuses_is_tried_again_in_the_next_period(
    place: Place, pool: Pool, superuser: Connection
) -> None:
    originals, outputs = await buckets(place)
    image_id = await a_grave(superuser, hours=25)
    await litter(outputs, "i", image_id)
    refusing = Refusing(outputs.bucket, line=outputs._line, client=outputs._client)

    with pytest.raises(Unavailable, match="AccessDenied"):
        await keeper(pool, (originals, refusing)).run_once()
    await superuser.execute("DELETE FROM periods")
    answer = await keeper(pool, (originals, outputs)).run_once()

    assert EmptiedAgain(taken=True, images=1, found=1) == answer


@pytest.mark.parametrize("has_edge", [True, False])
async def test_without_an_edge_it_is_dark_when_its_objects_are_gone(
    place: Place,
    pool: Pool,
    superuser: Connection,
    has_edge: bool,  # noqa: FBT001
) -> None:
    await a_grave(superuser, hours=1)
    metrics = MaintenanceMetrics(())

    for _ in range(2):
        both = await buckets(place)
        await keeper(pool, both, has_edge=has_edge, metrics=metrics).run_once()

    (grave,) = await superuser.fetch("SELECT dark_at, objects_deleted_at FROM image_tombstones")
    assert (None if has_edge else grave["objects_deleted_at"]) == grave["dark_at"]
    times = 0 if has_edge else 1
    assert f"image_dark_seconds_count {times}.0\n".encode() in metrics.exposition()
    assert f"image_dark_seconds_sum {2 * times}.0\n".encode() in metrics.exposition()
