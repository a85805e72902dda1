"""`imagefleet images reprocess`: render images again, one by one or a whole set."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Final

import typer

from imagefleet.cli.connection import open_api
from imagefleet.cli.output import (
    ExitCode,
    Json,
    complain,
    exit_code_of,
    finish,
    print_json,
    print_table,
    run_async,
    told,
)
from imagefleet.client.api import ApiClient
from imagefleet.errors import FleetError, Misconfigured
from imagefleet.jobs.model import JobState
from imagefleet.jobs.shapes.jobs import JobView

AT_ONCE: Final = 4  # requests
WAIT_WITHIN: Final = 300  # seconds

_ONE_SET: Final = "name images, or exactly one of --all, --reference and --recipe-was"


def reprocess(
    images: Annotated[
        list[str] | None, typer.Argument(metavar="IMAGE", help="Ids of images.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Which variants are made; each image's own if not given.")
    ] = None,
    every_image: Annotated[bool, typer.Option("--all", help="All images of the tenant.")] = False,
    reference: Annotated[str | None, typer.Option(help="Those with this reference.")] = None,
    recipe_was: Annotated[
        str | None, typer.Option("--recipe-was", help="Those that have this recipe.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end of each job that is printed.")
    ] = False,
    within: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long --wait waits for each.")
    ] = WAIT_WITHIN,
    as_json: Json = False,
) -> None:
    """Render images again, from the originals that they have.

    Prints a job for every image. For a set it is one job, which submits the others: waiting for it
    is waiting until every image has its job.

    For example:

        imagefleet images reprocess --recipe avif 0199a5c2-...
        imagefleet images reprocess --recipe-was default --recipe avif --wait
    """
    sets: dict[str, object] = {
        "all_images": every_image or None,
        "reference": reference,
        "recipe_was": recipe_was,
    }
    named = {name: value for name, value in sets.items() if value is not None}
    if len(named) + bool(images) != 1:
        raise Misconfigured(_ONE_SET)
    given = within if wait else None
    if named:
        payload = named | ({"recipe": recipe} if recipe else {})
        results = [run_async(_reprocess_set(payload, given))]
    else:
        results = run_async(_reprocess_images(images or [], recipe, given))
    _tell(results, as_json=as_json)


class _Result:
    """What came of one image, or of a set."""

    def __init__(self, image_id: str | None = None) -> None:
        self.image_id = image_id
        self.job_id: str | None = None
        self.status: str | None = None
        self.progress: str | None = None
        self.error: str | None = None
        self.code = ExitCode.DONE

    def failed(self, error: FleetError) -> None:
        self.error, self.code = told(error), exit_code_of(error)

    def ended(self, job: JobView) -> None:
        self.status, self.progress = job.status.value, job.steps
        if job.status is JobState.FAILED:
            self.code = ExitCode.FAILED
            self.error = job.failure.message if job.failure else "failed"

    def document(self) -> dict[str, object]:
        image = {} if self.image_id is None else {"imageId": self.image_id}
        return image | {"jobId": self.job_id, "status": self.status, "error": self.error}


async def _reprocess_set(payload: dict[str, object], within: float | None) -> _Result:
    result = _Result()
    async with open_api() as client:
        accepted = (await client.submit_job("reprocess_images", payload)).shape
        result.job_id, result.status = str(accepted.job_id), accepted.status.value
        await _wait(client, result, within)
    return result


async def _reprocess_images(
    images: Sequence[str], recipe: str | None, within: float | None
) -> list[_Result]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(client: ApiClient, image_id: str) -> _Result:
        result = _Result(image_id)
        try:
            async with slots:
                accepted = await client.reprocess(image_id, recipe=recipe)
                result.job_id, result.status = str(accepted.job_id), accepted.status.value
            await _wait(client, result, within)
        except FleetError as error:
            result.failed(error)
        return result

    async with open_api() as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(client, image_id)) for image_id in images]
    return [task.result() for task in tasks]


async def _wait(client: ApiClient, result: _Result, within: float | None) -> None:
    if within is not None:
        try:
            job = await client.finished_job(result.job_id or "", within=timedelta(seconds=within))
        except FleetError as error:
            result.failed(error)
        else:
            result.ended(job.shape)


def _tell(results: Sequence[_Result], *, as_json: bool) -> None:
    if as_json:
        print_json([one.document() for one in results])
    else:
        rows = [(one.image_id, one.status, one.job_id, one.progress) for one in results]
        print_table(("image", "status", "job", "progress"), rows)
    for one in results:
        if one.error:
            complain(f"{one.image_id or one.job_id}: {one.error}")
    finish(max(one.code for one in results))
