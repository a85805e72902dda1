"""`imagefleet tenants`: whose jobs there are, what limits them, and an end to all of them."""

from collections.abc import Iterator
from typing import Annotated, Final

import typer

from imagefleet.cli import queue
from imagefleet.cli.listing import Since, instant, route, show_pages
from imagefleet.cli.naming import EVERY_JOB, whole
from imagefleet.cli.output import Fields, Part, Table, at, filled, show
from imagefleet.cli.verbs import (
    DRAINED_WITHIN,
    All,
    Correlation,
    Cursor,
    DryRun,
    EveryTenant,
    Json,
    Limit,
    Many,
    OfCode,
    OfLane,
    OfStatus,
    OfTarget,
    OfType,
    Parent,
    Reason,
    RefuseNew,
    SetIfAny,
    Wait,
    Within,
    Yes,
    ask,
    at_least,
    below,
    group,
    order_many,
)
from imagefleet.client.api import Document
from imagefleet.errors import Misconfigured

PATH: Final = "/v1/operator/tenants"
OF_ANY: Final = "/v1/operator/jobs:cancel"

app = group("Look at tenants, limit and pause them, cancel what they have.")

_TENANT: Final = typer.Argument(metavar="TENANT", help="Its name, as its keys have it.")
Tenant = Annotated[str, _TENANT]


@app.command("list")
def list_tenants(
    limit: Limit = 50,
    cursor: Cursor = None,
    every_page: All = False,
    as_json: Json = False,
) -> None:
    """List tenants with what they have open. `keys create` makes new ones.

    For example:

        imagefleet tenants list
    """
    show_pages(route(PATH), {"limit": str(limit), "cursor": cursor}, "tenants", {
        "tenant": "tenant",
        "open": lambda tenant: at_least(tenant["openJobs"], tenant["openJobsIsAtLeast"]),
        "at most": "maxOpenJobs", "weight": "weight", "paused": _paused,
        "created (UTC)": at("createdAt"),
    }, every_page=every_page, as_json=as_json, wraps=("paused",), drops=("created (UTC)", "weight"),
        none="no tenants; `imagefleet keys create` makes one",
    )  # fmt: skip


@app.command("show")
def show_tenant(tenant: Tenant, as_json: Json = False) -> None:
    """Show what a tenant has open, and its limits beside their defaults.

    For example:

        imagefleet tenants show shop
    """
    show(ask("GET", below(PATH, tenant)), _seen, as_json=as_json)


@app.command("limit")
def set_limits(
    tenant: Tenant,
    reason: Reason,
    settings: SetIfAny = None,
    reset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Back to the default. Repeat for more."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Set limits of a tenant, or undo them; `show` lists their names.

    For example:

        imagefleet tenants limit shop --set weight=2 --reason "a pilot"
        imagefleet tenants limit shop --reset open_jobs --reason "the pilot is over"
    """
    wanted: dict[str, int | None] = {}
    for setting in settings or ():
        name, _, value = setting.partition("=")
        if not value.isascii() or not value.isdigit():
            detail = f"--set is a name and a whole number, as in open_jobs=5000, not {setting}"
            raise Misconfigured(detail)
        wanted[name] = int(value)
    wanted |= dict.fromkeys(reset or ())
    if not wanted:
        detail = "name what to --set or to --reset"
        raise Misconfigured(detail)
    body = {"limits": wanted, "reason": reason}
    show(ask("PUT", below(PATH, tenant, "limits"), document=body), _seen, as_json=as_json)


@app.command()
def pause(
    tenant: Tenant,
    reason: Reason,
    job_type: OfType = None,
    refuse_new: RefuseNew = False,
    wait: Wait = False,
    within: Within = DRAINED_WITHIN,
    as_json: Json = False,
) -> None:
    """Hold back a tenant's jobs; those that run, finish. Deletions and cancellations go on.

    For example:

        imagefleet tenants pause shop --refuse-new --reason "floods us"
        imagefleet tenants pause shop --type process_image --reason "bad originals"
    """
    queue.pause(
        reason,
        job_type=job_type,
        tenant=tenant,
        refuse_new=refuse_new,
        wait=wait,
        within=within,
        as_json=as_json,
    )


@app.command()
def resume(
    tenant: Tenant,
    reason: Reason,
    job_type: OfType = None,
    as_json: Json = False,
) -> None:
    """Lift a tenant's pause; what it held back is announced within a second, in turn.

    For example:

        imagefleet tenants resume shop --reason "its import is over"
    """
    queue.resume(reason, job_type=job_type, tenant=tenant, as_json=as_json)


@app.command()
def cancel(
    reason: Reason,
    tenant: Annotated[str | None, _TENANT] = None,
    every_tenant: EveryTenant = False,
    job_type: OfType = None,
    lane: OfLane = None,
    status: OfStatus = None,
    code: OfCode = None,
    correlation_id: Correlation = None,
    parent: Parent = None,
    target: OfTarget = None,
    since: Since = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only those submitted before, as 2026-01-31T12:00:00Z."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel a tenant's open jobs, by one job that walks through them. This cannot be undone.

    Deletions and cancellations go on. What is submitted after the walk began is not in it:
    cancel again, that is another walk. With --every-tenant it goes from tenant to tenant.

    For example:

        imagefleet tenants cancel shop --dry-run --reason "a runaway import"
        imagefleet tenants cancel shop --type process_image --reason runaway --yes
        imagefleet tenants cancel shop --since 2h --reason runaway --yes
        imagefleet tenants cancel --every-tenant --type webhook --reason gone --yes
    """
    if (tenant is None) != every_tenant:
        detail = "name a tenant, or --every-tenant"
        raise Misconfigured(detail)
    body = filled(
        jobType=job_type, lane=lane, status=status, code=code, correlationId=correlation_id,
        parentJobId=parent and whole(parent, EVERY_JOB), target=target,
        submittedAfter=instant(since), submittedBefore=before, reason=reason,
    )  # fmt: skip
    path = OF_ANY if tenant is None else below(PATH, tenant, "cancel")
    whose = f"of {tenant or 'all tenants'} for good?"
    many = Many("jobs", "open jobs", "cancelled", f"Cancel {{}} open jobs {whose}")
    order_many(path, body, many, dry_run=dry_run, yes=yes, as_json=as_json)


def _seen(tenant: Document) -> Iterator[Part]:
    facts = {name: tenant[name] for name in ("tenant", "queued", "processing", "failedRetryable")}
    yield Fields(facts | {"paused": _paused(tenant) or "no"})
    yield ""
    yield Table(tenant["limits"], {
        "limit": "name", "value": "value", "default": "default", "used": "used",
        "set by": "setBy", "reason": "reason",
    }, {"wraps": ("set by", "reason"), "drops": ("set by", "default")})  # fmt: skip


def _paused(tenant: Document) -> str | None:
    return "all" if tenant["paused"] else ", ".join(tenant["pausedTypes"]) or None
