"""Images with real objects in S3, in every state that a sweep may find them in."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID, uuid4

from imagefleet.aws.objects import Headers, Objects
from imagefleet.jobs.images import Publication, original_key, variant_key
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, Submission
from imagefleet.store.database import Connection
from imagefleet.store.images.uploads import create_upload
from tests.support.factories import TENANT, MadeJob, a_worker, claim_job, settle_job
from tests.support.fleet import Place
from tests.support.image_rows import a_publication, a_variant
from tests.support.rows import job_row

EXTENSIONS = ("jpg", "webp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """A claim of a rendering job, and what it has stored."""

    image_id: UUID
    revision: int
    job: MadeJob
    keys: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Both buckets of a place, and the roles that fill them."""

    place: Place
    originals: Objects
    outputs: Objects
    api: Connection
    worker: Connection
    superuser: Connection

    async def keys(self) -> set[str]:
        """All that lies in both buckets."""
        return {entry.key for bucket in (self.originals, self.outputs)
                for entry in (await bucket.page("")).objects}  # fmt: skip

    async def put(self, key: str) -> str:
        bucket = self.originals if key.startswith("o/") else self.outputs
        await bucket.put(key, b"0123456789", Headers(content_type="image/jpeg"))
        return key

    async def upload(self, image_id: UUID | None = None) -> tuple[Submission, str]:
        """A first upload, or a replacement; its job, and the key of its original."""
        submission = await self.place.upload(self.api, image_id or uuid4(), b"an original")
        return submission, str(submission.payload["source_key"])

    async def claim(self, submission: Submission) -> Rendering:
        """Claim the job and store what it makes."""
        worker_id = await a_worker(self.worker)
        answer = await claim_job(self.worker, submission.job_id, worker_id)
        assert answer.claim is not None, answer
        job = MadeJob(job_id=submission.job_id, claim_no=answer.claim.claim_no, worker_id=worker_id)
        revision = (await job_row(self.superuser, submission.job_id))["target_seq"]
        image_id = UUID(str(submission.payload["image_id"]))
        keys = [
            await self.put(variant_key(image_id, revision, job.claim_no, "thumb", extension))
            for extension in EXTENSIONS
        ]
        return Rendering(image_id=image_id, revision=revision, job=job, keys=frozenset(keys))

    async def publish(self, made: Rendering) -> Rendering:
        """Complete the job with what it made."""
        await settle_job(self.worker, made.job, Completed(publication=_publication(made)))
        return made

    async def published(self, image_id: UUID | None = None) -> tuple[Rendering, str]:
        """An image that is shown, or another version of it, and its original."""
        submission, original = await self.upload(image_id)
        return await self.publish(await self.claim(submission)), original

    async def form(self, *, expired_for: timedelta) -> tuple[UUID, str]:
        """An upload that was prepared, and was good until so long ago; its object is there."""
        upload_id, image_id = uuid4(), uuid4()
        key = original_key(image_id, upload_id)
        await create_upload(
            self.api,
            upload_id=upload_id,
            tenant_id=TENANT,
            image_id=image_id,
            key=key,
            content_type="image/jpeg",
            max_bytes=1000,
            created_by="tests",
            valid_for=-expired_for,
        )
        return upload_id, await self.put(key)

    async def complete_debts(self, *, ago: timedelta) -> None:
        """The edge has agreed to everything it was owed, so long ago."""
        await self.superuser.execute(
            "WITH batch AS (INSERT INTO invalidation_batches"
            " (id, items, paths, accepted_at, cloudfront_id, completed_at)"
            " SELECT gen_random_uuid(), '[]', 1, moment, 'I1', moment"
            "   FROM (SELECT now() - $1::interval AS moment) AS earlier RETURNING id)"
            " UPDATE invalidations SET batch_id = batch.id FROM batch WHERE batch_id IS NULL",
            ago,
        )

    async def age_superseded(self, *, by: timedelta) -> None:
        await self.superuser.execute(
            "UPDATE image_revisions SET superseded_at = superseded_at - $1::interval", by
        )

    async def bury(self, image_id: UUID) -> None:
        """A tombstone, as the API writes it; nothing is deleted yet."""
        await self.superuser.execute(
            "INSERT INTO image_tombstones (image_id, tenant_id, job_id, requested_by)"
            " VALUES ($1, $2, gen_random_uuid(), 'tests')",
            image_id,
            TENANT,
        )

    async def prune(self, job_id: JobId) -> None:
        """The job is past retention and forgotten."""
        async with self.superuser.transaction():
            await self.superuser.execute("DELETE FROM jobs WHERE id = $1", job_id)
            await self.superuser.execute("DELETE FROM dead_letters WHERE job_id = $1", job_id)
            await self.superuser.execute("DELETE FROM attempts WHERE job_id = $1", job_id)
            await self.superuser.execute("INSERT INTO ledger (pruned) VALUES (1)")


def _publication(made: Rendering) -> Publication:
    # One picture each, under two names.
    variants = [
        a_variant(key, name=name) for key in sorted(made.keys) for name in ("small", "thumb")
    ]
    return a_publication(made.job, made.image_id, made.revision, variants)
