"""`imagefleet submit`: images, waited for if wished."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Final

import typer

from imagefleet.cli.output import run_async
from imagefleet.cli.progress import counting
from imagefleet.cli.results import Result, each, tell
from imagefleet.cli.verbs import STDIN, WITHIN, Json, Recipe, Wait, Within
from imagefleet.client.api import ApiClient
from imagefleet.errors import Misconfigured

MOST_READ: Final = 2**30  # bytes that are kept on this machine; of an image the API takes less
PIECE: Final = 2**18
_ONE_STDIN: Final = "- is the standard input: name it once, and without --keep-path"


def a_file(named: str) -> Path:
    """A file that can be read; Typer's own check knows no `-`."""
    file = Path(named)
    if file != STDIN and not (file.is_file() and os.access(file, os.R_OK)):
        why = "cannot be read" if file.exists() else "does not exist"
        detail = f"file {named!r} {why}"
        raise typer.BadParameter(detail)
    return file


@contextmanager
def readable(file: Path) -> Iterator[Path]:
    """A file that can be sent again; of `-` what the standard input has."""
    if file != STDIN:
        yield file
        return
    with NamedTemporaryFile(prefix="imagefleet-") as kept:
        while piece := sys.stdin.buffer.read(PIECE):
            kept.write(piece)
            if kept.tell() > MOST_READ:
                detail = f"the standard input has more than {MOST_READ:,} bytes"
                raise Misconfigured(detail)
        kept.flush()
        yield Path(kept.name)


Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help="Images; - is the standard input.", parser=a_file),
]


def submit(
    files: Files,
    recipe: Recipe = None,
    keep_path: Annotated[
        bool, typer.Option("--keep-path", help="Each file's path becomes its image's reference.")
    ] = False,
    wait: Wait = False,
    within: Within = WITHIN,
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
    if files.count(STDIN) > (not keep_path):
        raise Misconfigured(_ONE_STDIN)
    nothing = dict.fromkeys(("jobId", "imageId", "status", "error"))
    results = [Result(str(file), {"file": str(file), **nothing}) for file in files]

    async def upload(client: ApiClient, result: Result) -> None:
        file = Path(result.name)
        # A name need not be UTF-8; a reference has to be.
        name = os.fsencode(file).decode(errors="replace")
        accepted = await client.submit(
            contents[file], name=file.name, recipe=recipe, reference=name if keep_path else None
        )
        result.accepted(accepted)
        result.document["imageId"] = str(accepted.image_id)

    with ExitStack() as stack, counting("submit", len(files)) as advance:
        contents = {file: stack.enter_context(readable(file)) for file in files}
        run_async(each(results, upload, within if wait else None, told_of_one=advance))
    columns = {"file": "file", "status": "status", "job": "jobId", "image": "imageId"}
    tell(results, columns, as_json=as_json)
