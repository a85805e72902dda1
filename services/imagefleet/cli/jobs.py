"""`imagefleet jobs`: look at jobs, submit and follow one; operators explain and end them."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final

import httpx
import typer

from imagefleet.cli.explaining import JOBS as PATH
from imagefleet.cli.explaining import explain_job
from imagefleet.cli.job_types import list_job_types
from imagefleet.cli.listing import Since, Until, instant, route, show_pages, status_of
from imagefleet.cli.naming import A_JOB, EVERY_JOB, IMAGES, JOBS, AnyJobId, JobId, whole
from imagefleet.cli.output import (
    ExitCode,
    Fields,
    at,
    filled,
    finish,
    moment,
    print_json,
    run_async,
    say,
    show,
    show_fields,
    show_list,
)
from imagefleet.cli.submit import submit_job
from imagefleet.cli.verbs import (
    WITHIN,
    All,
    Correlation,
    Cursor,
    EveryTenant,
    Full,
    Json,
    Limit,
    OfCode,
    OfStatus,
    OfTarget,
    OfTenant,
    OfType,
    Parent,
    Reason,
    Wait,
    Within,
    ask,
    below,
    call,
    group,
    open_api,
)
from imagefleet.client.api import ApiClient, Document, Reply
from imagefleet.errors import Misconfigured, Unavailable
from imagefleet.jobs.model import JobState
from imagefleet.jobs.shapes.jobs import JobView

POLL: Final = 2.0  # seconds; where events do not get through, a look now and then will do

app = group("Submit jobs, and look at them.")


app.command("explain")(explain_job)


@app.command()
def attempts(job_id: AnyJobId, as_json: Json = False) -> None:
    """List how each claim of a job ended.

    For example:

        imagefleet jobs attempts 0199a5c2-7d41
    """
    page = ask("GET", below(PATH, job_id, "attempts"))
    show_list(page, "attempts", {
        "claim": "claimNo", "claimed (UTC)": at("claimedAt"),
        "took": lambda attempt: f"{attempt['duration']:.1f} s", "outcome": "outcome", "why": "why",
        "detail": "detail", "worker": "workerId",
    }, as_json=as_json, wraps=("detail",), drops=("worker", "claimed (UTC)"),
        none="no attempt has ended yet; `imagefleet jobs explain` says what it waits for",
    )  # fmt: skip


@app.command()
def cancel(job_id: AnyJobId, reason: Reason, as_json: Json = False) -> None:
    """Cancel a job of any tenant; it leaves no dead letter.

    For example:

        imagefleet jobs cancel --reason "asked for by the producer" 0199a5c2-7d41
    """
    _end(job_id, "cancel", reason, as_json=as_json)


@app.command()
def fail(job_id: AnyJobId, reason: Reason, as_json: Json = False) -> None:
    """Fail a job as `failed_by_operator`; it leaves a dead letter.

    For example:

        imagefleet jobs fail --reason "blocks its target" 0199a5c2-7d41
    """
    _end(job_id, "fail", reason, as_json=as_json)


def _end(job_id: str, verb: str, reason: str, *, as_json: bool) -> None:
    ordered = ask("POST", below(PATH, job_id, verb), document={"reason": reason})
    is_over = "jobType" in ordered  # it answers with the job itself
    told = "nothing to do: it is" if is_over else "ordered by job"
    show(ordered, lambda it: f"{told} {it['status' if is_over else 'jobId']}", as_json=as_json)


@app.command()
def retry_now(job_id: AnyJobId, reason: Reason, as_json: Json = False) -> None:
    """Make a waiting job due now, and ring it.

    For example:

        imagefleet jobs retry-now --reason "S3 is back" 0199a5c2-7d41
    """

    def told(job: Document) -> str:
        return "rung" if job["rung"] else f"nothing to do: it is {job['status']}"

    show(ask("POST", below(PATH, job_id, "retry-now"), {"reason": reason}), told, as_json=as_json)


app.command("submit")(submit_job)
app.command("types")(list_job_types)


@app.command("show")
def show_job(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help=A_JOB)],
    wait: Wait = False,
    within: Within = WITHIN,
    everything: Full = False,
    as_json: Json = False,
) -> None:
    """Show one job.

    Exits with 1 when the job failed.

    For example:

        imagefleet jobs show --wait 0199a5c2-7d41
        imagefleet jobs show --full --json 0199a5c2-7d41 | jq .payload
    """
    job_id = whole(job_id, EVERY_JOB if everything else JOBS)
    if everything:
        row = ask("GET", below(PATH, job_id))
        show_fields(row, as_json=as_json)
        _finish_with(row["status"])
        return
    given = timedelta(seconds=within)
    answer = call(
        lambda client: client.finished_job(job_id, within=given) if wait else client.job(job_id)
    )
    show(answer, _seen, as_json=as_json)
    _finish_with(answer.shape.status)


def _seen(job: JobView) -> Fields:
    lines = {
        "job": job.job_id,
        "type": job.job_type,
        "status": job.status.value,
        "image": job.image_id,
        "progress": job.steps,
        "created (UTC)": moment(job.created_at),
        "updated (UTC)": moment(job.updated_at),
        "finished (UTC)": moment(job.finished_at),
        "by": job.created_by,
        "result": job.result and job.result.model_dump(by_alias=True),
        "next attempt (UTC)": moment(job.next_attempt_at),
        "failure": f"{job.failure.code}: {job.failure.message}" if job.failure else None,
    }
    return Fields(filled(**lines))


@app.command("list")
def list_jobs(
    status: OfStatus = None,
    job_type: OfType = None,
    correlation_id: Correlation = None,
    parent: Parent = None,
    image: Annotated[str | None, typer.Option(metavar="IMAGE", help="Of this image.")] = None,
    target: OfTarget = None,
    tenant: OfTenant = None,
    everybody: EveryTenant = False,
    code: OfCode = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    every_page: All = False,
    as_json: Json = False,
) -> None:
    """List jobs, the newest first: by status and type, or by one of the other filters.

    They are queued, processing, failed_retryable, completed or failed. Operators may say several.

    For example:

        imagefleet jobs list --status failed --since 2h
        imagefleet jobs list --json --limit 100 | jq -r '.jobs[].jobId'
        imagefleet jobs list --correlation-id order-7 --all
        imagefleet jobs list --every-tenant --code unavailable --since 2h --until 1h
    """
    oversees = everybody or tenant is not None
    parameters = {
        "status": status_of(status, JobState),
        "jobType": job_type,
        "correlationId": correlation_id,
        "parentJobId": parent and whole(parent, EVERY_JOB if oversees else JOBS),
        "createdAfter": instant(since),
        "createdBefore": instant(until),
        "limit": str(limit),
        "cursor": cursor,
    }
    if oversees:
        about = target if image is None else f"image:{image}"
        asked = parameters | {"tenant": tenant, "target": about, "code": code}
        _oversee(asked, every_page=every_page, as_json=as_json)
        return
    if target is not None or code is not None:
        detail = "--target and --code are for operators, with --tenant or --every-tenant"
        raise Misconfigured(detail)
    show_pages(ApiClient.jobs, parameters | {"imageId": image and whole(image, IMAGES)}, "jobs", {
        "job": "job_id", "type": "job_type", "status": "status",
        "created (UTC)": at("created_at"), "progress": "steps",
        "failure": lambda job: job.failure.code if job.failure else None,
    }, every_page=every_page, as_json=as_json, drops=("progress", "created (UTC)", "type"),
        none="no such jobs; `imagefleet submit` and `jobs submit` make some",
    )  # fmt: skip


def _oversee(asked: Mapping[str, str | None], *, every_page: bool, as_json: bool) -> None:
    """The list of operators."""
    show_pages(route(PATH), asked, "jobs", {
        "job": "jobId", "tenant": "tenant", "type": "jobType", "status": "status", "lane": "lane",
        "priority": "priority", "tried": lambda job: f"{job['attempts']}/{job['maxAttempts']}",
        "created (UTC)": at("createdAt"), "due (UTC)": at("runAt"), "failure": "failureCode",
    }, every_page=every_page, as_json=as_json, none="no such jobs", drops=(
        "lane", "priority", "created (UTC)", "due (UTC)", "tried", "type", "tenant",
    ))  # fmt: skip


@app.command()
def watch(job_id: JobId, as_json: Json = False) -> None:
    """Follow one job until it is over.

    Prints a line for every change; exits with 1 when the job failed. It listens to the API's
    events, and asks now and then where those do not get through.

    For example:

        imagefleet jobs watch 0199a5c2-7d41
    """
    _finish_with(run_async(_watch(job_id, as_json=as_json)).status)


async def _watch(job_id: str, *, as_json: bool) -> JobView:
    async with open_api() as client:
        seen: JobView | None = None
        while seen is None or not seen.over:
            try:
                async for job in client.events(job_id):
                    seen = _told_if_new(job, seen, as_json=as_json)
                    if seen.over:
                        return seen
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
            print_json(answer.document, on_a_line=True)
        else:
            why = f"  {job.failure.code}: {job.failure.message}" if job.failure else ""
            steps = f"  {job.steps}" if job.steps else ""
            say(f"{job.updated_at:%H:%M:%S}  {job.status.value}{steps}{why}")
    return job


def _finish_with(status: str) -> None:
    finish(ExitCode.FAILED if status == JobState.FAILED else ExitCode.DONE)
