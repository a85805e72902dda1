"""From what the store knows to what the public sees. Nothing else makes answers."""

from collections.abc import Mapping
from uuid import UUID

from pydantic import BaseModel
from starlette.responses import Response

from imagefleet.api.producers.schemas import (
    AcceptedImage,
    AcceptedJob,
    DeletedObjects,
    Deletion,
    Failure,
    ImageView,
    JobLinks,
    JobView,
    Placeholder,
    Progress,
    Source,
    VariantView,
)
from imagefleet.jobs.images import EXTENSIONS, stable_path
from imagefleet.jobs.kinds import image_target
from imagefleet.jobs.model import JobId, Submitted
from imagefleet.store.images import tombstones
from imagefleet.store.images.images import Image
from imagefleet.store.jobs.reports import PublicJob

_IMAGE_TARGET = image_target(UUID(int=0)).removesuffix(str(UUID(int=0)))


def answer(
    shown: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer as it is sent."""
    return Response(encoded(shown), status, headers, "application/json")


def encoded(shown: BaseModel) -> bytes:
    """The JSON of an answer; what has no value is left out."""
    return shown.model_dump_json(by_alias=True, exclude_none=True).encode()


def image_of(target: str | None) -> UUID | None:
    """The image that a job is about, if it is about one."""
    if target is None or not target.startswith(_IMAGE_TARGET):
        return None
    return UUID(target.removeprefix(_IMAGE_TARGET))


def job_links(job_id: JobId, target: str | None) -> JobLinks:
    """Where to go on from a job."""
    self = f"/v1/jobs/{job_id}"
    image_id = image_of(target)
    return JobLinks(
        self=self,
        events=f"{self}/events",
        cancel=f"{self}/cancel",
        image=None if image_id is None else f"/v1/images/{image_id}",
    )


def accepted_job(submitted: Submitted) -> AcceptedJob:
    """The answer to a submission."""
    return AcceptedJob(
        job_id=submitted.job_id,
        job_type=submitted.type,
        status=submitted.state,
        links=job_links(submitted.job_id, submitted.target),
    )


def accepted_image(submitted: Submitted, image_id: UUID) -> AcceptedImage:
    """The answer to an upload; a repeat names the image of the first."""
    return AcceptedImage(
        job_id=submitted.job_id,
        image_id=image_of(submitted.target) or image_id,
        status=submitted.state,
        links=job_links(submitted.job_id, submitted.target),
    )


def accepted(shown: AcceptedJob | AcceptedImage) -> Response:
    """202: recorded, and it will be done."""
    return answer(shown, 202, {"Location": shown.links.self})


def job_view(job: PublicJob) -> JobView:
    """What a producer may see of a job."""
    has_progress = job.progress_done > 0 or job.progress_total is not None
    return JobView(
        job_id=job.job_id,
        job_type=job.type,
        status=job.state,
        image_id=image_of(job.target),
        progress=Progress(done=job.progress_done, total=job.progress_total)
        if has_progress
        else None,
        failure=None
        if job.failure_code is None
        else Failure(code=job.failure_code, message=job.failure_message or ""),
        created_at=job.created_at,
        updated_at=job.updated_at,
        finished_at=job.finished_at,
        next_attempt_at=job.next_attempt_at,
        links=job_links(job.job_id, job.target),
    )


def image_view(image: Image, base_url: str, deletion: Deletion | None = None) -> ImageView:
    """What a producer may see of an image."""
    variants = [_variant(image.image_id, each, base_url) for each in image.variants]
    return ImageView(
        image_id=image.image_id,
        status=image.status,
        reference=image.reference,
        revision=image.revision if image.source is not None else None,
        source=None if image.source is None else Source.model_validate(image.source),
        placeholder=None
        if image.thumbhash is None and image.color is None
        else Placeholder(thumbhash=image.thumbhash, color=image.color),
        variants=variants,
        srcset=srcset(variants),
        deletion=deletion,
    )


def deletion_view(gone: tombstones.Deletion) -> Deletion:
    """How far a deletion is: the receipt, once it is done."""
    dark_after = None if gone.dark_at is None else gone.dark_at - gone.requested_at
    return Deletion(
        requested_at=gone.requested_at,
        requested_by=gone.requested_by,
        objects_deleted_at=gone.objects_deleted_at,
        objects=None if gone.objects is None else DeletedObjects.model_validate(gone.objects),
        invalidation_id=gone.invalidation_id,
        dark_at=gone.dark_at,
        seconds_to_dark=None if dark_after is None else dark_after.total_seconds(),
        emptied_again_at=gone.emptied_again_at,
    )


def _variant(image_id: UUID, made: Mapping[str, object], base_url: str) -> VariantView:
    name, form = str(made["name"]), str(made["format"])
    stable = stable_path(image_id, name, EXTENSIONS[form])
    shown = {key: made[key] for key in ("name", "format", "width", "height", "bytes", "warnings")}
    urls = {"url": f"{base_url}/{made['key']}", "stable_url": f"{base_url}/{stable}"}
    return VariantView.model_validate(shown | urls)


def srcset(variants: list[VariantView]) -> dict[str, str]:
    """What belongs into `srcset`, by the type of the images; of one width only the first."""
    by_type: dict[str, dict[int, str]] = {}
    for variant in variants:
        widths = by_type.setdefault(f"image/{variant.format}", {})
        widths.setdefault(variant.width, variant.url)
    return {
        media_type: ", ".join(f"{url} {width}w" for width, url in sorted(widths.items()))
        for media_type, widths in by_type.items()
    }
