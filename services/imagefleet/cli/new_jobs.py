"""`imagefleet jobs submit`: a job of any type that may be submitted, with all that can be said."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import orjson
import typer

from imagefleet.cli.connection import open_api
from imagefleet.cli.operating import filled
from imagefleet.cli.output import ExitCode, Json, complain, finish, print_json, run_async, say
from imagefleet.client.api import Reply
from imagefleet.errors import Misconfigured
from imagefleet.jobs.model import JobState
from imagefleet.jobs.shapes.jobs import AcceptedJob, JobView

WAIT_WITHIN: Final = 300  # seconds
MOST_BYTES: Final = 2**20  # of a payload; the API takes less, and says so


def submit(
    job_type: Annotated[str, typer.Argument(metavar="TYPE", help="Such as noop.")],
    payload: Annotated[
        str, typer.Option(metavar="JSON", help="What the type asks for; @FILE reads a file.")
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
    within: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long --wait waits.")
    ] = WAIT_WITHIN,
    as_json: Json = False,
) -> None:
    """Submit a job; images have verbs of their own.

    With --wait it exits with 1 when the job failed.

    For example:

        imagefleet jobs submit noop --payload '{"milliseconds": 10}' --wait
        imagefleet jobs submit noop --priority 10 --run-at 2030-01-01T06:00 --dedup-key nightly
    """
    more = filled(
        priority=priority,
        runAt=None if run_at is None else _moment(run_at),
        dedupKey=dedup_key,
        correlationId=correlation_id,
        parentJobId=parent,
        maxAttempts=max_attempts,
    )
    given = timedelta(seconds=within) if wait else None
    answer = run_async(_submit(job_type, _payload(payload), more, idempotency_key, given))
    job = answer.shape
    if as_json:
        print_json(answer.document)
    else:
        say(f"{job.job_id} is {job.status}")
    if isinstance(job, JobView) and job.status is JobState.FAILED:
        complain(job.failure.message if job.failure else "failed")
        finish(ExitCode.FAILED)


async def _submit(
    job_type: str,
    payload: dict[str, object],
    more: dict[str, object],
    idempotency_key: str | None,
    within: timedelta | None,
) -> Reply[AcceptedJob] | Reply[JobView]:
    async with open_api() as client:
        accepted = await client.submit_job(job_type, payload, more, idempotency_key)
        if within is None:
            return accepted
        return await client.finished_job(str(accepted.shape.job_id), within=within)


def _payload(text: str) -> dict[str, object]:
    try:
        content = _file(Path(text[1:])) if text.startswith("@") else text.encode()
        found = orjson.loads(content)
    except OSError as error:
        detail = f"{text[1:]} cannot be read: {error.strerror}"
        raise Misconfigured(detail) from None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        detail = "--payload is a JSON object, or @ and the name of a file with one"
        raise Misconfigured(detail)
    return found


def _file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_BYTES)


def _moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        detail = "--run-at is a time such as 2030-01-01T06:00 or 2030-01-01T06:00+02:00"
        raise Misconfigured(detail) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
