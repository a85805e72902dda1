"""`imagefleet jobs submit`: a job of any type that has no verb of its own."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import orjson
import typer

from imagefleet.cli.naming import JOBS, whole
from imagefleet.cli.output import ExitCode, complain, filled, finish, show
from imagefleet.cli.results import why
from imagefleet.cli.verbs import WITHIN, Json, call
from imagefleet.client.api import Reply
from imagefleet.errors import Misconfigured
from imagefleet.jobs.model import JobState
from imagefleet.jobs.shapes.jobs import JobView
from imagefleet.jobs.shapes.shape import AcceptedJob

Within = Annotated[float, typer.Option(metavar="SECONDS", help="How long --wait waits.")]

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
    priority: Annotated[
        int | None, typer.Option(min=0, max=1000, help="Lower is earlier; below 50 is urgent.")
    ] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Not before; without a zone it is UTC.")
    ] = None,
    dedup_key: Annotated[
        str | None, typer.Option(help="One open job of the type may have it.")
    ] = None,
    correlation_id: Annotated[str | None, typer.Option(help="What belongs together.")] = None,
    parent: Annotated[str | None, typer.Option(metavar="JOB", help="A job of yours.")] = None,
    max_attempts: Annotated[int | None, typer.Option(min=1, max=100)] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key and request is the same job, another day too.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end.")] = False,
    within: Within = WITHIN,
    as_json: Json = False,
) -> None:
    """Submit a job; images have verbs of their own.

    With --wait it exits with 1 when the job failed.

    For example:

        imagefleet jobs submit noop --payload '{"milliseconds": 10}' --wait
        imagefleet jobs submit noop --priority 10 --run-at 2030-01-01T06:00 --dedup-key nightly
        imagefleet jobs submit noop --payload - < payload.json
    """
    more = filled(
        priority=priority,
        runAt=None if run_at is None else _later(run_at),
        dedupKey=dedup_key,
        correlationId=correlation_id,
        parentJobId=parent and whole(parent, JOBS),
        maxAttempts=max_attempts,
    )
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
