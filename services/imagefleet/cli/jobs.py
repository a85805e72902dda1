"""`imagefleet jobs`: submit one, look at jobs, list them, follow one."""

import asyncio
from datetime import timedelta
from typing import Annotated, Final

import httpx
import typer

from imagefleet.cli import job_orders, new_jobs
from imagefleet.cli.connection import open_api
from imagefleet.cli.operating import ask
from imagefleet.cli.output import (
    ExitCode,
    Json,
    complain,
    finish,
    print_json,
    print_json_line,
    print_table,
    run_async,
    say,
    show_document,
)
from imagefleet.client.api import ApiClient, Reply
from imagefleet.errors import Misconfigured, RequestRejected, Unavailable
from imagefleet.jobs.model import JobState
from imagefleet.jobs.shapes.jobs import JobPage, JobView

POLL: Final = 2.0  # seconds; where events do not get through, a look now and then will do

app = typer.Typer(
    rich_markup_mode="markdown", no_args_is_help=True, help="Submit jobs, and look at them."
)

JobId = job_orders.JobId
for _order in job_orders.ORDERS:
    app.command()(_order)
app.command()(new_jobs.submit)


@app.command()
def show(
    job_id: JobId,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="Answer when it is over, or after this long.")
    ] = 0,
    everything: Annotated[
        bool, typer.Option("--all", help="Everything there is, of any tenant: for operators.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show one job.

    Exits with 1 when the job failed.

    For example:

        imagefleet jobs show --wait 20 0199a5c2-...
        imagefleet jobs show --all --json 0199a5c2-... | jq .payload
    """
    if everything:
        whole = ask("GET", f"/v1/operator/jobs/{job_id}")
        show_document(whole, as_json=as_json)
        finish(ExitCode.FAILED if whole["status"] == JobState.FAILED else ExitCode.DONE)
        return
    job = run_async(_show(job_id, wait))
    if as_json:
        print_json(job.document)
    else:
        lines = _lines(job.shape)
        print_table(("", ""), [(name, value) for name, value in lines if value is not None])
    _finish_with(job.shape)


@app.command("list")
def list_jobs(
    status: Annotated[JobState | None, typer.Option(help="Only these.")] = None,
    job_type: Annotated[str | None, typer.Option("--type", help="Only of this type.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="That belong together.")] = None,
    parent: Annotated[str | None, typer.Option(metavar="JOB", help="Children of this one.")] = None,
    image: Annotated[str | None, typer.Option(metavar="IMAGE", help="Of this image.")] = None,
    target: Annotated[str | None, typer.Option(help="Of this target: for operators.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Of this tenant: for operators.")] = None,
    everybody: Annotated[
        bool, typer.Option("--every-tenant", help="Of all tenants: for operators.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Go on behind the last list.")] = None,
    as_json: Json = False,
) -> None:
    """List jobs, the newest first: by status and type, or by one of the other filters.

    For example:

        imagefleet jobs list --status failed
        imagefleet jobs list --json --limit 100 | jq -r '.jobs[].jobId'
        imagefleet jobs list --correlation-id order-7
        imagefleet jobs list --every-tenant --status failed_retryable
    """
    parameters = {
        "status": status.value if status else None,
        "jobType": job_type,
        "correlationId": correlation_id,
        "parentJobId": parent,
        "limit": str(limit),
        "cursor": cursor,
    }
    if everybody or tenant is not None:
        about = target if image is None else f"image:{image}"
        job_orders.oversee(parameters | {"tenant": tenant, "target": about}, as_json=as_json)
        return
    if target is not None:
        detail = "--target is for operators, with --tenant or --every-tenant"
        raise Misconfigured(detail)
    page = run_async(_list(parameters | {"imageId": image}))
    if as_json:
        print_json(page.document)
        return
    rows = [
        (job.job_id, job.job_type, job.status.value, f"{job.created_at:%Y-%m-%d %H:%M:%S}",
         job.steps, job.failure.code if job.failure else None)
        for job in page.shape.jobs
    ]  # fmt: skip
    print_table(("job", "type", "status", "created (UTC)", "progress", "failure"), rows)
    if page.shape.next_cursor:
        complain(f"there are more: --cursor {page.shape.next_cursor}")


@app.command()
def watch(job_id: JobId, as_json: Json = False) -> None:
    """Follow one job until it is over.

    Prints a line for every change; exits with 1 when the job failed. It listens to the API's
    events, and asks now and then where those do not get through.

    For example:

        imagefleet jobs watch 0199a5c2-...
    """
    _finish_with(run_async(_watch(job_id, as_json=as_json)))


async def _show(job_id: str, wait: float) -> Reply[JobView]:
    async with open_api() as client:
        return await client.job(job_id, wait=timedelta(seconds=wait) if wait else None)


async def _list(parameters: dict[str, str | None]) -> Reply[JobPage]:
    async with open_api() as client:
        return await client.jobs(parameters)


async def _watch(job_id: str, *, as_json: bool) -> JobView:
    async with open_api() as client:
        seen: JobView | None = None
        while seen is None or not seen.over:
            try:
                async for job in client.events(job_id):
                    seen = _told_if_new(job, seen, as_json=as_json)
                    if seen.over:
                        return seen
            except RequestRejected:
                raise
            except (httpx.HTTPError, Unavailable):
                pass  # a proxy that cuts streams off, or an API that restarts
            seen = _told_if_new(await _look(client, job_id, seen), seen, as_json=as_json)
    return seen


async def _look(client: ApiClient, job_id: str, seen: JobView | None) -> Reply[JobView]:
    if seen is not None:
        await asyncio.sleep(POLL)
    return await client.job(job_id)


def _told_if_new(answer: Reply[JobView], seen: JobView | None, *, as_json: bool) -> JobView:
    job = answer.shape
    if seen is None or job.updated_at != seen.updated_at or job.status != seen.status:
        if as_json:
            print_json_line(answer.document)
        else:
            why = f"  {job.failure.code}: {job.failure.message}" if job.failure else ""
            steps = f"  {job.steps}" if job.steps else ""
            say(f"{job.updated_at:%H:%M:%S}  {job.status.value}{steps}{why}")
    return job


def _lines(job: JobView) -> list[tuple[str, object]]:
    return [
        ("job", job.job_id),
        ("type", job.job_type),
        ("status", job.status.value),
        ("image", job.image_id),
        ("progress", job.steps),
        ("created", job.created_at),
        ("updated", job.updated_at),
        ("finished", job.finished_at),
        ("next attempt", job.next_attempt_at),
        ("failure", f"{job.failure.code}: {job.failure.message}" if job.failure else None),
    ]


def _finish_with(job: JobView) -> None:
    finish(ExitCode.FAILED if job.status is JobState.FAILED else ExitCode.DONE)
