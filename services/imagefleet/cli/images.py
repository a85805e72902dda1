"""`imagefleet images`: change images; what is published of them is in `published`."""

from pathlib import Path
from typing import Annotated, Final

import typer

from imagefleet.cli.naming import EVERY_IMAGE, IMAGES, ImageId, ImageNamed, ImagesNamed, whole
from imagefleet.cli.output import ExitCode, confirm, filled, moment, run_async, show
from imagefleet.cli.overseen import TERMS_OF_PRODUCERS, order
from imagefleet.cli.previews import preview
from imagefleet.cli.published import download, list_images, show_image
from imagefleet.cli.results import Result, each, tell, wait_for
from imagefleet.cli.submit import a_file, readable, terms
from imagefleet.cli.verbs import (
    WITHIN,
    All,
    Correlation,
    DedupKey,
    Json,
    MaxAttempts,
    OfReference,
    Parent,
    Priority,
    RateIfAny,
    ReasonIfAny,
    Recipe,
    RunAt,
    Wait,
    Within,
    Yes,
    call,
    ends_in,
    group,
    looks,
)
from imagefleet.client.api import ApiClient
from imagefleet.errors import Misconfigured, Unavailable
from imagefleet.jobs.model import JobState
from imagefleet.jobs.shapes.images import ImageView

_ONE_SET: Final = "name images, or exactly one of --all, --reference and --recipe-was"
_OF_A_SET: Final = "a rate is of a set: --all, --reference or --recipe-was"
_ONE_POINT: Final = "name a point by X and Y, or --clear"

app = group("Look at images, change them.")


@app.command()
def reprocess(
    images: ImagesNamed = [],  # noqa: B006 - Typer reads it, nobody writes it
    recipe: Recipe = None,
    every_image: All = False,
    reference: OfReference = None,
    recipe_was: Annotated[
        str | None,
        typer.Option(
            "--recipe-was",
            metavar="NAME[@HASH]",
            help="Those that have this recipe; with 8 or more digits of its hash, this version.",
        ),
    ] = None,
    rate: RateIfAny = None,
    priority: Priority = None,
    run_at: RunAt = None,
    dedup_key: DedupKey = None,
    correlation_id: Correlation = None,
    parent: Parent = None,
    max_attempts: MaxAttempts = None,
    reason: ReasonIfAny = None,
    wait: Wait = False,
    within: Within = WITHIN,
    as_json: Json = False,
) -> None:
    """Render images again, from the originals that they have.

    Prints a job for every image. For a set it is one job, which submits the others: waiting for it
    is waiting until every image has its job. Those come after what producers upload meanwhile, at
    the given rate if there is one; each is pinned to what is in force now, and what is shown stays
    until its image is made. With --reason it is an operator's order, about images of any tenant.

    For example:

        imagefleet images reprocess --recipe avif --priority 20 0199a5c2-7d41
        imagefleet images reprocess --recipe-was default --recipe avif --wait
        imagefleet images reprocess --recipe-was default@5f0c2a91 --rate 5
    """
    named = filled(all_images=every_image or None, reference=reference, recipe_was=recipe_was)
    if len(named) + bool(images) != 1:
        raise Misconfigured(_ONE_SET)
    if rate is not None and images:
        raise Misconfigured(_OF_A_SET)
    told = terms(
        priority, run_at, dedup_key, correlation_id, parent, max_attempts, jobs=len(images)
    )
    if reason is not None:
        if named or told or wait:
            raise Misconfigured(TERMS_OF_PRODUCERS)
        wanted = filled(recipe=recipe, reason=reason)
        order(images, "POST", ("reprocess",), document=wanted, as_json=as_json)
        return
    images = [whole(image, IMAGES) for image in images]
    nothing = dict.fromkeys(("jobId", "status", "error"))
    results = [Result(image, {"imageId": image, **nothing}) for image in images]

    async def again(client: ApiClient, result: Result) -> None:
        result.accepted(await client.reprocess(result.name, recipe=recipe, terms=told))

    if named:
        payload = named | filled(recipe=recipe or None, rate=rate)
        accepted = call(lambda client: client.submit_job("reprocess_images", payload, told)).shape
        results = [Result(str(accepted.job_id), {**nothing})]
        results[0].accepted(accepted)
    run_async(each(results, None if named else again, within if wait else None))
    columns = {"image": "imageId", "status": "status", "job": "jobId", "progress": "progress"}
    tell(results, columns, as_json=as_json)


@app.command()
def replace(
    image_id: ImageNamed,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Its new original; - is the standard input.", parser=a_file
        ),
    ],
    recipe: Recipe = None,
    priority: Priority = None,
    run_at: RunAt = None,
    dedup_key: DedupKey = None,
    correlation_id: Correlation = None,
    parent: Parent = None,
    max_attempts: MaxAttempts = None,
    reason: ReasonIfAny = None,
    wait: Wait = False,
    within: Within = WITHIN,
    as_json: Json = False,
) -> None:
    """Give an image another original; until that is made, the present one is shown.

    With --reason it is an operator's order, about an image of any tenant.

    For example:

        imagefleet images replace --wait 0199a5c2-7d41 photo.jpg
    """
    told = terms(priority, run_at, dedup_key, correlation_id, parent, max_attempts)
    if reason is not None and (told or wait):
        raise Misconfigured(TERMS_OF_PRODUCERS)
    image_id = whole(image_id, IMAGES if reason is None else EVERY_IMAGE)

    async def replaced(client: ApiClient) -> Result:
        if reason is not None:
            ordered = await client.replace_any_image(
                image_id, content, recipe=recipe, reason=reason
            )
            job = {"jobId": str(ordered.job_id), "status": str(ordered.status)}
            return Result(str(file), {"imageId": image_id, **job})
        accepted = await client.replace_image(image_id, content, recipe=recipe, terms=told)
        result = Result(str(file), {"imageId": str(accepted.image_id)})
        result.accepted(accepted)
        if wait:
            await wait_for(client, result, within)
        return result

    columns = {"image": "imageId", "status": "status", "job": "jobId"}
    with readable(file) as content:
        result = call(replaced)
    tell([result], columns, as_json=as_json, alone=True)


@app.command()
def focal(
    image_id: ImageNamed,
    x: Annotated[float | None, typer.Argument(help="From the left, 0 to 1.", min=0, max=1)] = None,
    y: Annotated[float | None, typer.Argument(help="From the top.", min=0, max=1)] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take the point away.")] = False,
    reason: ReasonIfAny = None,
    wait: Wait = False,
    within: Within = WITHIN,
    as_json: Json = False,
) -> None:
    """Say what of an image is kept where it is cut. What is not cut is not made anew.

    With --reason it is an operator's order, about an image of any tenant.

    For example:

        imagefleet images focal 0199a5c2-7d41 0.3 0.7
    """
    point = None if x is None or y is None else (x, y)
    if clear != (x is None) or clear != (y is None):
        raise Misconfigured(_ONE_POINT)
    if reason is not None:
        if wait:
            raise Misconfigured(TERMS_OF_PRODUCERS)
        kept = point and dict(zip("xy", point, strict=True))
        wanted = {"focalPoint": kept, "reason": reason}
        order([image_id], "PATCH", document=wanted, as_json=as_json)
        return
    image_id = whole(image_id, IMAGES)

    async def moved(client: ApiClient) -> Result:
        answer = await client.move_focal(image_id, point)
        result = Result(image_id, {"imageId": str(answer.image_id), "jobId": None})
        if isinstance(answer, ImageView):  # nothing would change
            result.document["status"] = answer.status
            return result
        result.accepted(answer)
        if wait:
            await wait_for(client, result, within)
        return result

    columns = {"image": "imageId", "status": "status", "job": "jobId"}
    tell([call(moved)], columns, as_json=as_json, alone=True)


@app.command()
def delete(
    image_ids: ImagesNamed,
    reason: ReasonIfAny = None,
    yes: Yes = False,
    wait: Wait = False,
    within: Within = WITHIN,
    as_json: Json = False,
) -> None:
    """Delete images with everything they ever published. This cannot be undone.

    With --wait it prints the receipts: what S3 had, and when the edge had forgotten it. With
    --reason it is an operator's order, about images of any tenant.

    For example:

        imagefleet images delete --wait 0199a5c2-7d41
        imagefleet images delete --reason "asked for by mail" 0199a5c2-7d41
    """
    if reason is not None and wait:
        raise Misconfigured(TERMS_OF_PRODUCERS)
    confirm(f"Delete {len(image_ids)} images for good?", yes=yes)
    if reason is not None:
        order(image_ids, "DELETE", parameters={"reason": reason}, as_json=as_json)
        return
    known = [whole(image_id, IMAGES) for image_id in image_ids]
    results = [Result(image_id, {"imageId": image_id}) for image_id in known]

    async def deleted(client: ApiClient, result: Result) -> None:
        accepted = await client.delete_image(result.name)
        result.accepted(accepted)
        if wait:
            await _wait_until_dark(client, result, within)
        elif accepted.status is JobState.FAILED:
            result.code = ExitCode.FAILED

    run_async(each(results, deleted))
    columns = {
        "image": "imageId", "status": "status", "job": "jobId", "objects": "objects",
        "dark (UTC)": "darkAt",
    }  # fmt: skip
    tell(results, columns, as_json=as_json)


async def _wait_until_dark(client: ApiClient, result: Result, within: float) -> None:
    ends_at = ends_in(within)
    await wait_for(client, result, within)
    if result.code is ExitCode.FAILED:
        return
    async for _ in looks(ends_at):
        answer = await client.image(result.name)
        gone = answer.shape.deletion
        if gone is None:
            return
        if gone.dark_at is not None:
            result.document |= answer.document
            objects = gone.objects.deleted if gone.objects else None
            result.more |= {"objects": objects, "darkAt": moment(gone.dark_at)}
            return
    sentence = f"The objects of {result.name} are deleted; the edge has not answered yet."
    raise Unavailable("not_dark_yet", sentence)


@app.command()
def original(image_id: ImageId, as_json: Json = False) -> None:
    """Print an address that an image's original is downloaded from, good for five minutes.

    With a key that has the scope `originals`.

    For example:

        curl -fsSo photo.jpg "$(imagefleet images original 0199a5c2-7d41)"
    """
    show(call(lambda client: client.original(image_id)), lambda seen: seen.url, as_json=as_json)


app.command("show")(show_image)
app.command("list")(list_images)
app.command()(download)
app.command()(preview)
