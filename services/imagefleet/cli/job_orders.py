"""The verbs of `imagefleet jobs` that are for operators."""

from collections.abc import Callable, Mapping
from typing import Annotated, Final
from urllib.parse import quote

import typer

from imagefleet.cli.operating import Reason, ask, moment, tell_of_more
from imagefleet.cli.output import Json, print_json, print_table, say, show_document
from imagefleet.client.api import Document

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]


def explain(job_id: JobId, as_json: Json = False) -> None:
    """Say why a job does not run, by the rule that claims obey.

    For example:

        imagefleet jobs explain 0199a5c2-...
    """
    found = ask("GET", _path(job_id, "explain"))
    if as_json:
        print_json(found)
        return
    say(found["sentence"])
    facts = (
        "reason",
        "status",
        "attempts",
        "maxAttempts",
        "crashes",
        "until",
        "ringDueAt",
        "announcedAt",
    )
    show_document({name: found[name] for name in facts if name in found}, as_json=False)


def attempts(job_id: JobId, as_json: Json = False) -> None:
    """List how each claim of a job ended.

    For example:

        imagefleet jobs attempts 0199a5c2-...
    """
    found = ask("GET", _path(job_id, "attempts"))
    if as_json:
        print_json(found)
        return
    rows = [
        (one["claimNo"], moment(one["claimedAt"]), f"{one['duration']:.1f} s", one["outcome"],
         one["why"], one.get("detail"), one["workerId"])
        for one in found["attempts"]
    ]  # fmt: skip
    columns = ("claim", "claimed (UTC)", "took", "outcome", "why", "detail", "worker")
    print_table(columns, rows)


def cancel(job_id: JobId, reason: Reason, as_json: Json = False) -> None:
    """Cancel a job of any tenant; it leaves no dead letter.

    For example:

        imagefleet jobs cancel --reason "asked for by the producer" 0199a5c2-...
    """
    _ordered(ask("POST", _path(job_id, "cancel"), document={"reason": reason}), as_json=as_json)


def fail(job_id: JobId, reason: Reason, as_json: Json = False) -> None:
    """Fail a job as `failed_by_operator`; it leaves a dead letter.

    For example:

        imagefleet jobs fail --reason "blocks its target" 0199a5c2-...
    """
    _ordered(ask("POST", _path(job_id, "fail"), document={"reason": reason}), as_json=as_json)


def retry_now(job_id: JobId, reason: Reason, as_json: Json = False) -> None:
    """Make a waiting job due now, and ring it.

    For example:

        imagefleet jobs retry-now --reason "S3 is back" 0199a5c2-...
    """
    found = ask("POST", _path(job_id, "retry-now"), {"reason": reason})
    if as_json:
        print_json(found)
    else:
        say("rung" if found["rung"] else f"nothing to do: it is {found['status']}")


ORDERS: Final[tuple[Callable[..., None], ...]] = (explain, attempts, cancel, fail, retry_now)


def oversee(parameters: Mapping[str, str | None], *, as_json: bool) -> None:
    """The list of operators."""
    page = ask("GET", "/v1/operator/jobs", parameters)
    if as_json:
        print_json(page)
        return
    rows = [
        (job["jobId"], job["tenant"], job["jobType"], job["status"], job["lane"],
         job["priority"], f"{job['attempts']}/{job['maxAttempts']}", moment(job["createdAt"]),
         moment(job["runAt"]), job.get("failureCode"))
        for job in page["jobs"]
    ]  # fmt: skip
    columns = ("job", "tenant", "type", "status", "lane", "priority", "tried", "created (UTC)",
               "due (UTC)", "failure")  # fmt: skip
    print_table(columns, rows)
    tell_of_more(page)


def _path(job_id: str, what: str) -> str:
    return f"/v1/operator/jobs/{quote(job_id, safe='')}/{what}"


def _ordered(found: Document, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        say(f"ordered by job {found['jobId']}")
