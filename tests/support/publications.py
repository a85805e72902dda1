"""What a rendering would have published, without a picture."""

from collections.abc import Iterable
from uuid import UUID

from imagefleet.jobs.images import (
    Caveat,
    ImageFormat,
    PlaceholderFacts,
    Publication,
    PublishedVariant,
    SourceFacts,
    VariantFacts,
)
from imagefleet.jobs.model import TenantId
from tests.support.factories import TENANT, MadeJob

FORMATS = {one.extension: one for one in ImageFormat}
NO_DIGEST = "0" * 64


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
        encoder="tests",
        source=SourceFacts(
            format=ImageFormat.JPEG, width=64, height=40, bytes=source_bytes, sha256=NO_DIGEST
        ),
        placeholder=PlaceholderFacts(thumbhash="aGFzaA==", color="#aabbcc"),
        variants=tuple(variants),
    )
