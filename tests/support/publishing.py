"""Images from the upload over HTTP to what a worker publishes."""

from typing import Any
from uuid import UUID

import httpx

from imagefleet.jobs.images import Publication, PublishedVariant, variant_key
from imagefleet.jobs.lifecycle import Completed
from imagefleet.store.database import Connection
from tests.support.api import ACME, JPEG
from tests.support.factories import settle_job
from tests.support.http import a_jpeg, claimed


async def uploaded(client: httpx.AsyncClient, **params: str) -> dict[str, Any]:
    answer = await client.post("/v1/images", content=a_jpeg(), headers=JPEG, params=params)
    assert answer.status_code == 202, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def published(worker: Connection, accepted: dict[str, Any]) -> None:
    """The job completes, and one variant of each format is shown."""
    job = await claimed(worker, accepted["jobId"])
    image_id = UUID(accepted["imageId"])
    revision = await worker.fetchval("SELECT target_seq FROM jobs WHERE id = $1", job.job_id)
    variants = tuple(
        PublishedVariant(
            name=name,
            format=kind,
            key=variant_key(image_id, revision, job.claim_no, name, extension),
            content_type=f"image/{kind}",
            width=width,
            height=width // 2,
            bytes=100,
            sha256="0" * 64,
            warnings=("not_enlarged",),
        )
        for name, width in (("thumb", 200), ("small", 640))
        for kind, extension in (("jpeg", "jpg"), ("webp", "webp"))
    )
    publication = Publication(
        job_id=job.job_id,
        claim_no=job.claim_no,
        image_id=image_id,
        tenant_id=ACME,
        source_seq=revision,
        revision=revision,
        recipe="default",
        format="jpeg",
        width=64,
        height=40,
        bytes=len(a_jpeg()),
        sha256="0" * 64,
        thumbhash="aGFzaA==",
        color="#aabbcc",
        encoder="tests",
        variants=variants,
    )
    await settle_job(worker, job, Completed(publication=publication))
