"""Images as rows, without anything in S3: uploads, what renderings published, sets of them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

from imagefleet.jobs.images import (
    Caveat,
    ImageFormat,
    NewSource,
    PlaceholderFacts,
    Publication,
    PublishedVariant,
    SourceFacts,
    VariantFacts,
    original_key,
)
from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.model import Claim, JobId, Lane, Submission, TenantId, new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.images.images import submit_image
from imagefleet.store.jobs.leases import Renewal
from tests.support.factories import TENANT, MadeJob, a_submission
from tests.support.fleet import an_image_submission

FORMATS = {made.extension: made for made in ImageFormat}
NO_DIGEST = "0" * 64
TOMBSTONE = """
INSERT INTO image_tombstones (image_id, tenant_id, job_id, requested_by)
VALUES ($1, $2, $3, 'tests')
"""


async def an_image(
    api: Connection,
    *,
    tenant_id: TenantId = TENANT,
    recipe: str = "default",
    recipe_hash: str | None = None,
    reference: str | None = None,
    image_id: UUID | None = None,
) -> UUID:
    """An accepted upload; with the id of an image, its replacement."""
    image_id = image_id or new_job_id()
    source = NewSource(
        image_id=image_id,
        tenant_id=tenant_id,
        key=original_key(image_id, uuid4()),
        bytes=7,
        content_type="image/jpeg",
        etag='"etag"',
        sha256="0" * 64,
        width=64,
        height=48,
        recipe=recipe,
        recipe_hash=recipe_hash,
        reference=reference,
    )
    submission = an_image_submission(image_id, source_key=source.key, source_bytes=7)
    await submit_image(api, replace(submission, tenant_id=tenant_id), source)
    return image_id


async def some_images(api: Connection, count: int, *, reference: str | None = None) -> list[UUID]:
    """Newest first, as a walk meets them."""
    made = [await an_image(api, reference=reference) for _ in range(count)]
    return sorted(made, reverse=True)


def a_variant(
    key: str,
    *,
    name: str = "thumb",
    width: int = 64,
    height: int = 48,
    warnings: tuple[Caveat, ...] = (),
) -> PublishedVariant:
    """Of the format that its key ends with."""
    made = FORMATS[key.rpartition(".")[2]]
    facts = VariantFacts(
        name=name,
        format=made,
        content_type=made.mime_type,
        width=width,
        height=height,
        bytes=100,
        sha256=NO_DIGEST,
        warnings=warnings,
    )
    return PublishedVariant(key=key, facts=facts)


def a_publication(
    job: MadeJob,
    image_id: UUID,
    revision: int,
    variants: Iterable[PublishedVariant],
    *,
    source_seq: int | None = None,
    tenant_id: TenantId = TENANT,
    source_bytes: int = 100,
    recipe_hash: str = "0" * 32,
) -> Publication:
    """Of a job that holds its claim; of its own revision's source, if no other is named."""
    return Publication(
        job_id=job.job_id,
        claim_no=job.claim_no,
        image_id=image_id,
        tenant_id=tenant_id,
        source_seq=revision if source_seq is None else source_seq,
        revision=revision,
        recipe="default",
        recipe_hash=recipe_hash,
        encoder="tests",
        source=SourceFacts(
            format=ImageFormat.JPEG, width=64, height=40, bytes=source_bytes, sha256=NO_DIGEST
        ),
        placeholder=PlaceholderFacts(thumbhash="aGFzaA==", color="#aabbcc"),
        variants=tuple(variants),
    )


async def bury(api: Connection, image_id: UUID, *, tenant_id: TenantId = TENANT) -> None:
    await api.execute(TOMBSTONE, image_id, tenant_id, uuid4())


def a_set(**payload: object) -> Submission:
    kind = BUILT_IN["reprocess_images"]
    return replace(
        a_submission(type=kind.name, lane=Lane.GENERAL, payload=payload or {"all_images": True}),
        correlation_id="the-set",
        created_by="somebody",
        max_attempts=7,
    )


def renewal_of(claim: Claim | MadeJob) -> Renewal:
    return Renewal(job_id=claim.job_id, claim_no=claim.claim_no, renewable_for=timedelta(hours=1))


async def asked_for(connection: Connection, set_job: JobId) -> Sequence[UUID]:
    """The images that a set's job has submitted jobs for, in the order of their submission."""
    rows = await connection.fetch(
        "SELECT payload->>'image_id' AS image FROM jobs WHERE parent_job_id = $1"
        " ORDER BY created_at, payload->>'image_id' DESC",
        set_job,
    )
    return [UUID(row["image"]) for row in rows]
