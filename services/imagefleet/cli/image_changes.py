"""`imagefleet images delete` and `replace`."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from imagefleet.cli.connection import open_api
from imagefleet.cli.operating import Yes, confirm, moment
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
from imagefleet.errors import FleetError, Unavailable
from imagefleet.jobs.model import JobState
from imagefleet.jobs.shapes.images import Deletion, ImageView
from imagefleet.jobs.shapes.jobs import JobView

AT_ONCE: Final = 4
WAIT_WITHIN: Final = 300  # seconds
ASK_EVERY: Final = 1.0  # whether it is dark; its job is waited for by a long poll

Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is done.")]
Within = Annotated[
    float, typer.Option(metavar="SECONDS", help="How long --wait waits for each image.")
]


def delete(
    image_ids: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="The images' ids.")],
    yes: Yes = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until nothing is shown any more.")
    ] = False,
    within: Within = WAIT_WITHIN,
    as_json: Json = False,
) -> None:
    """Delete images with everything they ever published. This cannot be undone.

    With --wait it prints the receipts: what S3 had, and when the edge had forgotten it.

    For example:

        imagefleet images delete --wait 0199a5c2-...
    """
    confirm(f"Delete {len(image_ids)} images for good?", yes=yes)
    results = run_async(_delete_all(image_ids, within if wait else None))
    if as_json:
        print_json([document for document, _ in results])
    else:
        names = ("imageId", "status", "jobId", "objects", "darkAt")
        print_table(
            ("image", "status", "job", "objects", "dark (UTC)"),
            [[document.get(name) for name in names] for document, _ in map(_row, results)],
        )
    for document, _ in results:
        if document.get("error"):
            complain(f"{document['imageId']}: {document['error']}")
    finish(max(code for _, code in results))


Result = tuple[dict[str, object], ExitCode]


def _row(result: Result) -> Result:
    document, code = result
    deletion = document.get("deletion")
    if not isinstance(deletion, dict):
        return result
    gone = Deletion.model_validate(deletion)
    shown = {
        "objects": gone.objects.deleted if gone.objects else None,
        "darkAt": moment(gone.dark_at),
    }
    return document | shown, code


async def _delete_all(image_ids: Sequence[str], within: float | None) -> list[Result]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(client: ApiClient, image_id: str) -> Result:
        document: dict[str, object] = {"imageId": image_id}
        try:
            async with slots:
                await _delete(client, image_id, within, document)
        except FleetError as error:
            return document | {"error": told(error)}, exit_code_of(error)
        failed = document["status"] == JobState.FAILED
        return document, ExitCode.FAILED if failed else ExitCode.DONE

    async with open_api() as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(client, image_id)) for image_id in image_ids]
    return [task.result() for task in tasks]


async def _delete(
    client: ApiClient, image_id: str, within: float | None, document: dict[str, object]
) -> None:
    accepted = await client.delete_image(image_id)
    document |= {"jobId": str(accepted.job_id), "status": accepted.status.value}
    if within is None:
        return
    clock = asyncio.get_running_loop().time
    deadline = clock() + within
    job = (await client.finished_job(str(accepted.job_id), within=timedelta(seconds=within))).shape
    document["status"] = job.status.value
    if job.status is JobState.FAILED:
        document["error"] = _why(job)
        return
    while True:
        answer = await client.image(image_id)
        image = answer.shape
        document |= answer.document if image.deletion and image.deletion.dark_at else {}
        if image.deletion is None or image.deletion.dark_at is not None:
            return
        if clock() >= deadline:
            sentence = f"The objects of {image_id} are deleted; the edge has not answered yet."
            raise Unavailable("not_dark_yet", sentence)
        await asyncio.sleep(ASK_EVERY)


def _why(failed: JobView) -> str:
    return failed.failure.message if failed.failure else "It failed."


def replace(
    image_id: Annotated[str, typer.Argument(metavar="IMAGE", help="The image's id.")],
    file: Annotated[
        Path, typer.Argument(help="Its new original.", exists=True, dir_okay=False, readable=True)
    ],
    recipe: Annotated[
        str | None, typer.Option(help="Which variants are made; as before if not given.")
    ] = None,
    wait: Wait = False,
    within: Within = WAIT_WITHIN,
    as_json: Json = False,
) -> None:
    """Give an image another original; until that is made, the present one is shown.

    For example:

        imagefleet images replace --wait 0199a5c2-... photo.jpg
    """
    document, code = run_async(_replace(image_id, file, recipe, within if wait else None))
    if as_json:
        print_json(document)
    else:
        names = ("imageId", "status", "jobId")
        print_table(("image", "status", "job"), [[document.get(name) for name in names]])
    if "error" in document:
        complain(f"{file}: {document['error']}")
    finish(code)


async def _replace(image_id: str, file: Path, recipe: str | None, within: float | None) -> Result:
    async with open_api() as client:
        accepted = await client.replace_image(image_id, file, recipe=recipe)
        document: dict[str, object] = {
            "imageId": str(accepted.image_id),
            "jobId": str(accepted.job_id),
            "status": accepted.status.value,
        }
        if within is None:
            return document, ExitCode.DONE
        ended = await client.finished_job(str(accepted.job_id), within=timedelta(seconds=within))
        job = ended.shape
        document["status"] = job.status.value
        if job.status is JobState.FAILED:
            document["error"] = _why(job)
            return document, ExitCode.FAILED
        return document, ExitCode.DONE


def show_receipt(image: ImageView) -> None:
    """The deletion of an image, for people."""
    gone = image.deletion
    if gone is None:
        return
    rows: list[tuple[str, object]] = [
        ("asked for (UTC)", moment(gone.requested_at)),
        ("objects deleted (UTC)", moment(gone.objects_deleted_at) or "not yet"),
    ]
    if gone.objects is not None:
        rows += [
            ("  keys deleted", gone.objects.deleted),
            ("  not there any more", gone.objects.not_there),
            ("  refused at first", gone.objects.errors),
        ]
    rows += [
        ("invalidation", gone.invalidation_id),
        ("dark (UTC)", moment(gone.dark_at) or "not yet"),
    ]
    if gone.seconds_to_dark is not None:
        rows.append(("  after", f"{gone.seconds_to_dark:.1f} s"))
    print_table(("", ""), rows)
