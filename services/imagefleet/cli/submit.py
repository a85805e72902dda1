"""`imagefleet submit`: upload images, a few at a time, and wait for them if that is wished."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from imagefleet.cli.connection import open_api
from imagefleet.cli.output import (
    ExitCode,
    Json,
    complain,
    counting,
    exit_code_of,
    finish,
    print_json,
    print_table,
    run_async,
    told,
)
from imagefleet.client.api import ApiClient
from imagefleet.errors import FleetError
from imagefleet.jobs.model import JobState

UPLOADS_AT_ONCE: Final = 4
WAIT_WITHIN: Final = 300  # seconds


@dataclass(slots=True)
class Submitted:
    """What came of one file."""

    file: str
    job_id: str | None = None
    image_id: str | None = None
    status: str | None = None
    error: str | None = None
    code: ExitCode = ExitCode.DONE


def submit(
    files: Annotated[
        list[Path], typer.Argument(help="Images.", exists=True, dir_okay=False, readable=True)
    ],
    recipe: Annotated[
        str | None, typer.Option(help="Which variants are made; the API's default if not given.")
    ] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Keep each file's path as the image's reference.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until every image is made, or failed.")
    ] = False,
    within: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long --wait waits for each.")
    ] = WAIT_WITHIN,
    as_json: Json = False,
) -> None:
    """Upload images.

    Prints a job and an image for every file. Each file is sent with an idempotency key, so an
    answer that gets lost on the way costs nothing.

    For example:

        imagefleet submit photo.jpg
        imagefleet submit --wait --recipe avif *.png
        imagefleet submit --json photo.jpg | jq -r '.[].imageId'
    """
    given = within if wait else None
    results = run_async(_submit_all(files, recipe, given, with_reference=reference))
    if as_json:
        print_json([_document(result) for result in results])
    else:
        rows = [(one.file, one.status, one.job_id, one.image_id) for one in results]
        print_table(("file", "status", "job", "image"), rows)
    for result in results:
        if result.error:
            complain(f"{result.file}: {result.error}")
    finish(max(result.code for result in results))


async def _submit_all(
    files: Sequence[Path], recipe: str | None, within: float | None, *, with_reference: bool
) -> list[Submitted]:
    slots = asyncio.Semaphore(UPLOADS_AT_ONCE)
    with counting("submit", len(files)) as advance:

        async def one(client: ApiClient, file: Path) -> Submitted:
            result = Submitted(str(file))
            # A name need not be UTF-8; a reference has to be.
            name = os.fsencode(file).decode(errors="replace")
            reference = name if with_reference else None
            try:
                async with slots:
                    await _upload(client, file, recipe, reference, result)
                if within is not None:
                    await _wait(client, within, result)
            except FleetError as error:
                result.error, result.code = told(error), exit_code_of(error)
            advance()
            return result

        async with open_api() as client, asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(client, file)) for file in files]
    return [task.result() for task in tasks]


async def _upload(
    client: ApiClient, file: Path, recipe: str | None, reference: str | None, result: Submitted
) -> None:
    accepted = await client.submit(file, name=file.name, recipe=recipe, reference=reference)
    result.job_id, result.image_id = str(accepted.job_id), str(accepted.image_id)
    result.status = accepted.status.value


async def _wait(client: ApiClient, within: float, result: Submitted) -> None:
    ended = await client.finished_job(result.job_id or "", within=timedelta(seconds=within))
    job = ended.shape
    result.status = job.status.value
    if job.status is JobState.FAILED:
        result.code = ExitCode.FAILED
        result.error = job.failure.message if job.failure else "failed"


def _document(result: Submitted) -> dict[str, object]:
    found = asdict(result)
    return {
        "file": found["file"],
        "jobId": found["job_id"],
        "imageId": found["image_id"],
        "status": found["status"],
        "error": found["error"],
    }
