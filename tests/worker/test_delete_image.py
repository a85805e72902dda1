"""delete_image against the emulator: all versions, whoever died before, and whatever S3 refuses."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from imagefleet.aws.deletes import Deleted, Version
from imagefleet.aws.objects import Headers, Objects
from imagefleet.jobs.images import NewSource, image_target, original_key
from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.lifecycle import Completed, Retry
from imagefleet.jobs.model import JobId, Submission, new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.images.deleting import delete_image as delete
from imagefleet.store.images.images import submit_image
from imagefleet.worker.attempt import Attempt
from imagefleet.worker.handlers import delete_image
from tests.support.bench import Bench
from tests.support.factories import TENANT, a_submission
from tests.support.fleet import Place

TEXT = Headers(content_type="text/plain")


class Watched(Objects):
    """The real thing; refuses, or writes behind the deletion's back, when told to."""

    refuses = 0
    writes: Sequence[str] = ()
    seen: list[Version]

    @classmethod
    def over(cls, objects: Objects) -> "Watched":
        watched = cls(objects.bucket, line=objects._line, client=objects._client)
        watched.seen = []
        return watched

    async def delete_versions(self, versions: Sequence[Version]) -> Deleted:
        self.seen += versions
        if self.refuses:
            self.refuses -= 1
            return Deleted(failures=dict.fromkeys(versions, "AccessDenied"), errors=3)
        answer = await super().delete_versions(versions)
        left, self.writes = self.writes[1:], self.writes[:1]
        for key in self.writes:
            await self.upload(key, chunks(b"litter"), TEXT)
        self.writes = left
        return answer


async def chunks(body: bytes) -> AsyncIterator[bytes]:
    yield body


@pytest.fixture(params=["plain", "versioned"])
async def buckets(place: Place, request: pytest.FixtureRequest) -> tuple[Watched, Watched]:
    names = (place.settings.originals_bucket, place.settings.outputs_bucket)
    originals, outputs = [Watched.over(await place.session.objects(name)) for name in names]
    if request.param == "versioned":
        for bucket in (originals, outputs):
            await bucket._client.put_bucket_versioning(
                Bucket=bucket.bucket, VersioningConfiguration={"Status": "Enabled"}
            )
    return originals, outputs


async def an_image(api: Connection, buckets: tuple[Watched, Watched]) -> UUID:
    """With an original, a variant of two versions, one that was hidden, and litter."""
    originals, outputs = buckets
    image_id = new_job_id()
    key = original_key(image_id, uuid4())
    source = NewSource(
        image_id=image_id, tenant_id=TENANT, key=key, bytes=1, content_type="image/jpeg"
    )
    upload = a_submission(type="process_image", target=image_target(image_id))
    await submit_image(api, upload, source)
    await originals.upload(key, chunks(b"original"), TEXT)
    for name in ("1.1/thumb.webp", "1.1/thumb.webp", "1.1/hidden.webp", "7.3/litter.webp"):
        await outputs.upload(f"i/{image_id}/{name}", chunks(b"x"), TEXT)
    await outputs.delete([f"i/{image_id}/1.1/hidden.webp"])
    await outputs.upload(f"i/{image_id}0/other.webp", chunks(b"another image's"), TEXT)
    return image_id


def a_deletion(image_id: UUID) -> Submission:
    return a_submission(
        type="delete_image",
        target=image_target(image_id),
        preempts=True,
        payload={"image_id": str(image_id)},
    )


def a_cancel(job_id: JobId) -> Submission:
    return a_submission(type="cancel_job", payload={"job_id": str(job_id)})


async def attempt(bench: Bench, job: Submission, buckets: tuple[Watched, Watched]) -> Attempt:
    answer = await bench.ask(job)
    assert answer.claim is not None, answer
    equipment = replace(bench.equipment, originals=buckets[0], outputs=buckets[1])
    kind = BUILT_IN["delete_image"]
    handler = replace(delete_image.HANDLER, kind=kind)
    around = replace(bench.around, equipment=equipment)
    return Attempt(answer.claim, handler, bench.delivery(answer.claim), around)


async def deleting(api: Connection, image_id: UUID) -> Submission:
    job = a_deletion(image_id)
    await delete(api, job, image_id, cancelling=a_cancel)
    return job


async def left(buckets: tuple[Watched, Watched], image_id: UUID) -> list[Version]:
    originals, outputs = buckets
    versions = [version async for page in originals.versions(f"o/{image_id}/") for version in page]
    return versions + [
        version async for page in outputs.versions(f"i/{image_id}/") for version in page
    ]


async def test_every_version_of_everything_is_deleted_and_told(
    bench: Bench, api: Connection, buckets: tuple[Watched, Watched]
) -> None:
    image_id = await an_image(api, buckets)
    keys = {version.key for version in await left(buckets, image_id)}

    outcome = await (await attempt(bench, await deleting(api, image_id), buckets)).work()

    assert isinstance(outcome, Completed)
    assert outcome.emptied is not None
    assert keys == set(outcome.emptied.keys)
    assert (len(keys), 0, 0) == (
        outcome.emptied.deleted,
        outcome.emptied.not_there,
        outcome.emptied.errors,
    )
    assert [] == await left(buckets, image_id)
    other = [version async for page in buckets[1].versions(f"i/{image_id}0/") for version in page]
    assert 1 == len(other)


async def test_what_s3_refuses_is_a_retry_and_the_next_attempt_knows_what_was_there(
    bench: Bench, api: Connection, buckets: tuple[Watched, Watched]
) -> None:
    image_id = await an_image(api, buckets)
    keys = {version.key for version in await left(buckets, image_id)}
    buckets[0].refuses = 1  # the outputs are gone by then
    job = await deleting(api, image_id)

    first = await attempt(bench, job, buckets)
    refused = await first.work()
    assert isinstance(refused, Retry)
    assert "AccessDenied" in (refused.detail or "")
    assert [] != await left(buckets, image_id)
    await first.settle(refused)
    await bench.worker.execute("UPDATE jobs SET run_at = now() WHERE id = $1", job.job_id)
    outcome = await (await attempt(bench, job, buckets)).work()

    assert isinstance(outcome, Completed)
    assert outcome.emptied is not None
    assert (keys, 3) == (set(outcome.emptied.keys), outcome.emptied.errors)
    assert 0 == outcome.emptied.not_there
    assert [] == await left(buckets, image_id)


async def test_what_is_stored_behind_its_back_is_deleted_as_well(
    bench: Bench, api: Connection, buckets: tuple[Watched, Watched]
) -> None:
    image_id = await an_image(api, buckets)
    late = f"i/{image_id}/0.1/late.webp"  # before what the listing has passed
    buckets[1].writes = [late]

    outcome = await (await attempt(bench, await deleting(api, image_id), buckets)).work()

    assert isinstance(outcome, Completed)
    assert outcome.emptied is not None
    assert late in outcome.emptied.keys
    assert [] == await left(buckets, image_id)


async def test_who_goes_on_writing_is_not_taken_for_an_empty_prefix(
    bench: Bench, api: Connection, buckets: tuple[Watched, Watched]
) -> None:
    image_id = await an_image(api, buckets)
    buckets[1].writes = [f"i/{image_id}/0.{n}/late.webp" for n in range(9)]

    outcome = await (await attempt(bench, await deleting(api, image_id), buckets)).work()

    assert isinstance(outcome, Retry)
    assert "objects_remain" in (outcome.detail or "")


async def test_without_a_tombstone_nothing_is_deleted(
    bench: Bench, api: Connection, buckets: tuple[Watched, Watched]
) -> None:
    image_id = await an_image(api, buckets)
    before = await left(buckets, image_id)
    job = await bench.submit(a_deletion(image_id))

    outcome = await (await attempt(bench, job, buckets)).work()

    assert isinstance(outcome, Completed)
    assert ("nothing_left", None) == (outcome.reason, outcome.emptied)
    assert before == await left(buckets, image_id)
