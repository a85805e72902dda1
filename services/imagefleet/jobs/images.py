"""What an image is to the fleet: where its objects lie, and what a rendering publishes.

A revision belongs to exactly one rendering job: it is that job's place in the order of its image.
Its objects lie under `i/{image_id}/{revision}.{claim_no}/`, so that no two claims ever write the
same key: a worker that lost its claim can only litter. What counts is the pointer in Postgres, and
it is flipped by the statement that completes the job.
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from imagefleet.jobs.model import JobId, TenantId

IMMUTABLE: Final = "public, max-age=31536000, immutable"
EXTENSIONS: Final = {"jpeg": "jpg", "webp": "webp", "avif": "avif", "png": "png"}


def original_key(image_id: UUID, upload_id: UUID) -> str:
    """Where an uploaded original lies, in the bucket of originals; never served."""
    return f"o/{image_id}/{upload_id}"


def revision_prefix(image_id: UUID, revision: int, claim_no: int) -> str:
    """The folder that one claim of one rendering job writes to, in the bucket of outputs."""
    return f"i/{image_id}/{revision}.{claim_no}/"


def variant_key(image_id: UUID, revision: int, claim_no: int, name: str, extension: str) -> str:
    """The immutable key of one variant; with a host before it, its URL."""
    return f"{revision_prefix(image_id, revision, claim_no)}{name}.{extension}"


def stable_path(image_id: UUID, name: str, extension: str) -> str:
    """The path that always leads to the current revision of a variant."""
    return f"i/{image_id}/current/{name}.{extension}"


def cache_tag(image_id: UUID) -> str:
    """One tag for all that an image ever published: one path of an invalidation forgets it."""
    return f"img-{image_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSource:
    """An original that is stored and about to be accepted with its job."""

    image_id: UUID
    tenant_id: TenantId
    key: str
    bytes: int
    content_type: str
    etag: str | None = None
    sha256: str | None = None
    width: int | None = None
    height: int | None = None
    reference: str | None = None
    recipe: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedVariant:
    """One variant that was stored."""

    name: str
    format: str
    key: str
    content_type: str
    width: int
    height: int
    bytes: int
    sha256: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Everything one rendering made; it becomes visible when its job completes, or never."""

    job_id: JobId
    claim_no: int
    image_id: UUID
    tenant_id: TenantId
    source_seq: int
    revision: int
    recipe: str
    format: str
    width: int
    height: int
    bytes: int
    sha256: str
    thumbhash: str | None
    color: str | None
    encoder: str
    variants: tuple[PublishedVariant, ...]
