"""`imagefleet submit`: images, waited for if wished."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import typer

from imagefleet.cli.output import run_async
from imagefleet.cli.progress import counting
from imagefleet.cli.results import Result, each, tell
from imagefleet.cli.verbs import STDIN, WITHIN, Json, WithinEach, a_file, readable
from imagefleet.client.api import ApiClient
from imagefleet.errors import Misconfigured

_ONE_STDIN: Final = "- is the standard input: name it once, and without --reference"

Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help="Images; - is the standard input.", parser=a_file),
]


def submit(
    files: Files,
    recipe: Annotated[
        str | None, typer.Option(help="Which variants are made; the API's default if not given.")
    ] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Keep each file's path as the image's reference.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until every image is made, or failed.")
    ] = False,
    within: WithinEach = WITHIN,
    as_json: Json = False,
) -> None:
    """Upload images.

    Prints a job and an image for every file. Each file is sent with an idempotency key, so an
    answer that gets lost on the way costs nothing. With --wait it exits with 1 when one failed.

    For example:

        imagefleet submit photo.jpg
        imagefleet submit --wait --recipe avif *.png
        imagefleet submit --wait - < photo.jpg
        imagefleet submit --json photo.jpg | jq -r '.[].imageId'
    """
    if files.count(STDIN) > (not reference):
        raise Misconfigured(_ONE_STDIN)
    nothing = dict.fromkeys(("jobId", "imageId", "status", "error"))
    results = [Result(str(file), {"file": str(file), **nothing}) for file in files]

    async def upload(client: ApiClient, result: Result) -> None:
        file = Path(result.name)
        # A name need not be UTF-8; a reference has to be.
        name = os.fsencode(file).decode(errors="replace")
        accepted = await client.submit(
            contents[file], name=file.name, recipe=recipe, reference=name if reference else None
        )
        result.accepted(accepted)
        result.document["imageId"] = str(accepted.image_id)

    with ExitStack() as stack, counting("submit", len(files)) as advance:
        contents = {file: stack.enter_context(readable(file)) for file in files}
        run_async(each(results, upload, within if wait else None, told_of_one=advance))
    columns = {"file": "file", "status": "status", "job": "jobId", "image": "imageId"}
    tell(results, columns, as_json=as_json)
