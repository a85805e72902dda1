"""`imagefleet submit` and `imagefleet jobs submit`: images and other jobs, waited for if wished."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Final

import orjson
import typer

from imagefleet.cli.naming import JOBS, whole
from imagefleet.cli.output import ExitCode, complain, filled, finish, run_async, show
from imagefleet.cli.progress import counting
from imagefleet.cli.results import Result, each, tell, why
from imagefleet.cli.verbs import (
    STDIN,
    WITHIN,
    Correlation,
    DedupKey,
    Json,
    MaxAttempts,
    Parent,
    Priority,
    Recipe,
    RunAt,
    Wait,
    Within,
    call,
)
from imagefleet.client.api import ApiClient, Reply
from imagefleet.errors import Misconfigured
from imagefleet.jobs.model import JobState
from imagefleet.jobs.shapes.jobs import JobView
from imagefleet.jobs.shapes.shape import AcceptedJob

MOST_READ: Final = 2**30  # bytes that are kept on this machine; of an image the API takes less
PIECE: Final = 2**18
_ONE_STDIN: Final = "- is the standard input: name it once, and without --keep-path"
_ONE_JOB: Final = "--dedup-key is for one image: the others would be answered with its job"


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


def terms(
    priority: int | None,
    run_at: str | None,
    dedup_key: str | None,
    correlation_id: str | None,
    parent: str | None,
    max_attempts: int | None,
    *,
    jobs: int = 1,
) -> dict[str, object]:
    """Of so many jobs, as the API takes them; those that are typed."""
    if dedup_key is not None and jobs > 1:
        raise Misconfigured(_ONE_JOB)
    return filled(
        priority=priority,
        runAt=None if run_at is None else _later(run_at),
        dedupKey=dedup_key,
        correlationId=correlation_id,
        parentJobId=parent and whole(parent, JOBS),
        maxAttempts=max_attempts,
    )


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
    priority: Priority = None,
    run_at: RunAt = None,
    dedup_key: DedupKey = None,
    correlation_id: Correlation = None,
    parent: Parent = None,
    max_attempts: MaxAttempts = None,
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
        imagefleet submit --priority 20 --dedup-key front-page photo.jpg
        imagefleet submit --json photo.jpg | jq -r '.[].imageId'
    """
    if files.count(STDIN) > (not keep_path):
        raise Misconfigured(_ONE_STDIN)
    nothing = dict.fromkeys(("jobId", "imageId", "status", "error"))
    results = [Result(str(file), {"file": str(file), **nothing}) for file in files]
    told = terms(priority, run_at, dedup_key, correlation_id, parent, max_attempts, jobs=len(files))

    async def upload(client: ApiClient, result: Result) -> None:
        file = Path(result.name)
        # A name need not be UTF-8; a reference has to be.
        name = os.fsencode(file).decode(errors="replace")
        accepted = await client.submit(
            contents[file],
            name=file.name,
            recipe=recipe,
            reference=name if keep_path else None,
            terms=told,
        )
        result.accepted(accepted)
        result.document["imageId"] = str(accepted.image_id)

    with ExitStack() as stack, counting("submit", len(files)) as advance:
        contents = {file: stack.enter_context(readable(file)) for file in files}
        run_async(each(results, upload, within if wait else None, told_of_one=advance))
    columns = {"file": "file", "status": "status", "job": "jobId", "image": "imageId"}
    tell(results, columns, as_json=as_json)


MOST_BYTES: Final = 2**20  # of a payload; the API takes less, and says so


def submit_job(
    job_type: Annotated[str, typer.Argument(metavar="TYPE", help="Such as noop.")],
    payload: Annotated[
        str,
        typer.Option(
            metavar="JSON",
            help="What the type asks for; @FILE reads a file, - or @- the standard input.",
        ),
    ] = "{}",
    priority: Priority = None,
    run_at: RunAt = None,
    dedup_key: DedupKey = None,
    correlation_id: Correlation = None,
    parent: Parent = None,
    max_attempts: MaxAttempts = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key and request is the same job, another day too.")
    ] = None,
    wait: Wait = False,
    within: Within = WITHIN,
    as_json: Json = False,
) -> None:
    """Submit a job; images have verbs of their own.

    With --wait it exits with 1 when the job failed.

    For example:

        imagefleet jobs submit noop --payload '{"milliseconds": 10}' --wait
        imagefleet jobs submit noop --run-at 2030-01-01T06:00 --dedup-key nightly
        imagefleet jobs submit noop --payload - < payload.json
    """
    more = terms(priority, run_at, dedup_key, correlation_id, parent, max_attempts)
    content = _payload(payload)
    answer: Reply[AcceptedJob] | Reply[JobView]
    answer = call(lambda client: client.submit_job(job_type, content, more, idempotency_key))
    if wait:
        job_id, given = str(answer.shape.job_id), timedelta(seconds=within)
        answer = call(lambda client: client.finished_job(job_id, within=given))
    show(answer, lambda job: f"{job.job_id} is {job.status}", as_json=as_json)
    job = answer.shape
    if isinstance(job, JobView) and job.status is JobState.FAILED:
        complain(why(job))
        finish(ExitCode.FAILED)


def _payload(text: str) -> dict[str, object]:
    try:
        payload = orjson.loads(_read(text))
    except OSError as error:
        detail = f"{text[1:]} cannot be read: {error.strerror}"
        raise Misconfigured(detail) from None
    except ValueError:
        payload = None
    if not isinstance(payload, dict):
        detail = "--payload is a JSON object, @ and the name of a file with one, or -"
        raise Misconfigured(detail)
    return payload


def _read(text: str) -> str | bytes:
    if text in {"-", "@-"}:
        return sys.stdin.buffer.read(MOST_BYTES)
    if not text.startswith("@"):
        return text
    with Path(text[1:]).open("rb") as file:
        return file.read(MOST_BYTES)


def _later(text: str) -> str:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        detail = "--run-at is a time such as 2030-01-01T06:00 or 2030-01-01T06:00+02:00"
        raise Misconfigured(detail) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).isoformat()
