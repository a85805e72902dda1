"""Images: what is shown of each, how it came to be so, and what may be done about it.

Pictures are those that are published, from where they are published. Of an original nobody sees
more here than a small picture that a worker makes of it, which goes as bytes through the API.
"""

from enum import StrEnum
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from imagefleet.console.showing import Context
from imagefleet.console.visits import Visit, VisitHere, within
from imagefleet.console.wording import there
from imagefleet.errors import FleetError, RequestRejected
from imagefleet.jobs.model import TERMINAL, JobState
from imagefleet.jobs.shapes.images import ImageView, OverseenImagePage, WholeImage
from imagefleet.jobs.shapes.jobs import OrderedJob, WholeJob
from imagefleet.jobs.shapes.pictures import VariantView

IMAGES: Final = "/v1/operator/images"
SHOWN: Final = "48"
STATUSES: Final = ("pending", "ready", "failed", "deleted")
WIDEST: Final = 1280  # pixels of the picture that a focal point is set on
AS_WHOLE: Final = 0.02  # by which the shape of a variant may differ from that of its source

SourceSeq = Annotated[int | None, Query(alias="source", ge=0, lt=2**63)]

router = APIRouter()


class Preview(StrEnum):
    """How far the picture of an original is."""

    MADE = "made"
    MAKING = "making"
    NONE = "none"
    REFUSED = "refused"


@router.get("/images")
async def show_images(
    visit: VisitHere,
    tenant: str = "",
    status: str = "",
    reference: str = "",
    id: str = "",  # noqa: A002 - in addresses
    cursor: str = "",
) -> Response:
    """The newest first, those that every filter lets through."""

    async def look() -> Context:
        asked = {"tenant": tenant, "status": status, "reference": reference, "id": id}
        parameters = {"tenant": tenant, "status": status, "reference": reference, "idPrefix": id}
        page = await visit.look(
            OverseenImagePage,
            IMAGES,
            {name: value or None for name, value in parameters.items()}
            | {"limit": SHOWN, "cursor": cursor or None},
        )
        more = page.next_cursor
        return {
            "images": [(image, smallest(image)) for image in page.images],
            "asked": asked,
            "filtered": any(asked.values()),
            "statuses": STATUSES,
            "older": more and there("/images", asked | {"cursor": more}),
            "newest": cursor and there("/images", asked),
        }

    return await visit.show("images.html", look)


@router.get("/images/{image_id}")
async def show_image(visit: VisitHere, image_id: UUID) -> Response:
    """One, with its past."""

    async def look() -> Context:
        image = await visit.look(WholeImage, f"{IMAGES}/{image_id}")
        return {"image": image, "whole": whole(image)}

    return await visit.show("image.html", look)


@router.post("/images/{image_id}/reprocess")
async def reprocess(visit: VisitHere, image_id: UUID) -> Response:
    """Render it again, from its newest original."""
    form = visit.form
    document = {"reason": form.one("reason"), "recipe": form.one("recipe") or None}
    asked = {name: value for name, value in document.items() if value}
    path = f"{IMAGES}/{image_id}/reprocess"
    ordered = await visit.order(OrderedJob, "POST", path, document=asked)
    return visit.done(
        "It is rendered again; what is shown stays until that is done.", _job(ordered)
    )


@router.post("/images/{image_id}/focal")
async def move_focal(visit: VisitHere, image_id: UUID) -> Response:
    """Move the point that is kept where it is cut, or take it away."""
    point = None if visit.form.one("how") == "none" else _point(visit)
    document = {"reason": visit.form.one("reason"), "focalPoint": point}
    answer = await visit.ask("PATCH", f"{IMAGES}/{image_id}", document=document)
    if "jobId" in answer and "variants" not in answer:
        return visit.done("The point is moved; only what is cut is rendered for it.")
    return visit.done("That is where it was: nothing had to be done.")


@router.post("/images/{image_id}/replace")
async def replace(visit: VisitHere, image_id: UUID) -> Response:
    """Give it another original; the file goes to the API as it comes, and nothing is kept here."""
    asked = {name: visit.form.one(name) or None for name in ("reason", "recipe")}
    ordered = await visit.pass_on(OrderedJob, f"{IMAGES}/{image_id}", asked)
    return visit.done(
        "It is replaced; what is shown stays until the new one is made.", _job(ordered)
    )


@router.post("/images/{image_id}/delete")
async def delete(visit: VisitHere, image_id: UUID) -> Response:
    """Delete it with everything that it ever published."""
    why = {"reason": visit.form.one("reason")}
    await visit.order(OrderedJob, "DELETE", f"{IMAGES}/{image_id}", why)
    return visit.done("It is deleted: from now on nothing of it is published. The receipt follows.")


@router.get("/images/{image_id}/original")
async def show_original(
    visit: VisitHere, image_id: UUID, source: SourceSeq = None, job: UUID | None = None
) -> Response:
    """Whether there is a picture of an original, for a place on a page; it asks again by itself."""
    if job is not None:
        making = await visit.look(WholeJob, f"/v1/operator/jobs/{job}")
        if making.status not in TERMINAL:
            return _original(visit, image_id, source, Preview.MAKING, job)
        if sentence := refusal(making):
            return _original(visit, image_id, source, Preview.REFUSED, sentence=sentence)
    try:
        await _picture(visit, image_id, source)
    except FleetError as error:
        if error.code != "not_found":
            raise
        return _original(visit, image_id, source, Preview.NONE)
    return _original(visit, image_id, source, Preview.MADE)


@router.post("/images/{image_id}/original")
async def order_preview(visit: VisitHere, image_id: UUID, source: SourceSeq = None) -> Response:
    """Have a worker make that picture."""
    path = f"{IMAGES}/{image_id}/preview"
    ordered = await visit.order(OrderedJob, "POST", path, _of(source))
    return _original(visit, image_id, source, Preview.MAKING, ordered.job_id)


@router.get("/images/{image_id}/preview")
async def show_preview(visit: VisitHere, image_id: UUID, source: SourceSeq = None) -> Response:
    """The picture itself."""
    return Response(await _picture(visit, image_id, source), media_type="image/webp")


def refusal(job: WholeJob) -> str | None:
    """Why there is no picture, of a job that was to make one."""
    if job.status is JobState.FAILED:
        return job.failure_message or "The job that was to make it failed."
    told = (job.result or {}).get("failure")
    return str(told.get("message", told)) if isinstance(told, dict) else None


def smallest(image: ImageView) -> VariantView | None:
    """The variant for a tile."""
    return min(image.variants, key=lambda made: made.width * made.height, default=None)


def whole(image: ImageView) -> VariantView | None:
    """The largest variant that a page has room for, and that nothing is cut from."""
    source = image.source
    if source is None:
        return None
    shape = source.width / source.height
    fit = [
        made
        for made in image.variants
        if made.width <= WIDEST and abs(made.width / made.height / shape - 1) <= AS_WHOLE
    ]
    return max(fit, key=lambda made: made.width, default=None)


async def _picture(visit: Visit, image_id: UUID, source: int | None) -> bytes:
    path = f"{IMAGES}/{image_id}/preview"
    return await within(visit.client.picture(path, _of(source)))


def _original(
    visit: Visit,
    image_id: UUID,
    source: int | None,
    how: Preview,
    job: UUID | None = None,
    sentence: str = "",
) -> Response:
    place = f"/images/{image_id}"
    context = {
        "how": how,
        "ordering": there(f"{place}/original", {"source": source}),
        "asking": there(f"{place}/original", {"source": source, "job": job}),
        "picture": there(f"{place}/preview", {"source": source}),
        "sentence": sentence,
    }
    return visit.part("original.html", "original", context)


def _of(source: int | None) -> dict[str, str | None]:
    return {"sourceSeq": None if source is None else str(source)}


def _job(ordered: OrderedJob) -> str:
    return f"/jobs/{ordered.job_id}"


def _point(visit: Visit) -> dict[str, float]:
    try:
        return {name: round(float(visit.form.one(name)), 4) for name in ("x", "y")}
    except ValueError:
        sentence = "A focal point is two numbers from 0 to 1. Nothing was changed."
        raise RequestRejected("no_point", sentence) from None
