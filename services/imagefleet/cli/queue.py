"""`imagefleet queue`: how the queues are, and what is paused."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from imagefleet.cli.connection import open_api
from imagefleet.cli.operating import Reason, Yes, ask, confirm, filled, moment
from imagefleet.cli.output import (
    Json,
    complain,
    print_json,
    print_table,
    run_async,
    say,
    waiting,
)
from imagefleet.client.api import Document
from imagefleet.errors import Misconfigured, Unavailable

PAUSES: Final = "/v1/operator/pauses"
POLL: Final = 1.0  # seconds
LOOKS: Final = 2
"""A claim that began before the pause may commit after the first look."""

app = typer.Typer(
    rich_markup_mode="markdown", no_args_is_help=True, help="Look at queues, pause and resume them."
)

JobType = Annotated[str | None, typer.Option("--type", help="Jobs of this type.")]
Lane = Annotated[str | None, typer.Option(help="The lane: fast, general or quarantine.")]
Target = Annotated[str | None, typer.Option(help="Jobs of one target, with --tenant.")]
Tenant = Annotated[
    str | None, typer.Option(help="This tenant's: its target, its jobs of a type, or all it has.")
]
Everything = Annotated[bool, typer.Option("--all", help="Everything.")]


@app.command()
def stats(as_json: Json = False) -> None:
    """Show what waits, what ran within the last hour, and what is stuck.

    For example:

        imagefleet queue stats
        imagefleet queue stats --json | jq '.lanes[] | {lane, waiting}'
    """
    found = ask("GET", "/v1/operator/queues")
    if as_json:
        print_json(found)
        return
    _print_load(found)
    _print_trouble(found)
    say("", f"{found['unacknowledged']} dead letters wait for somebody")


def _print_load(found: Document) -> None:
    lanes = [
        (one["lane"], one["workers"], f"{one['busy']}/{one['slots']}", one["processing"],
         one["waiting"], f"{one['announced']} of {one['window']}",
         (one.get("messages") or {}).get("visible", "?"))
        for one in found["lanes"]
    ]  # fmt: skip
    columns = ("lane", "workers", "busy", "processing", "waiting", "announced", "messages")
    print_table(columns, lanes)
    depths = [
        (one["jobType"], one["lane"], one["status"], one["jobs"], moment(one["oldestDue"]),
         "unroutable" if one["unroutable"] else None)
        for one in found["depths"]
    ]  # fmt: skip
    _section(("type", "lane", "status", "jobs", "oldest due (UTC)", ""), depths)
    tenants = [
        (one["tenant"], moment(one.get("oldestDue")), one["waiting"], one["announced"],
         one["processing"], "paused" if one["paused"] else None)
        for one in found["tenants"]
    ]  # fmt: skip
    _section(("tenant", "waits since (UTC)", "waiting", "announced", "processing", ""), tenants)
    flows = [
        (one["jobType"], one["lane"], one["outcome"], one["attempts"],
         f"{one['meanDuration']:.2f} s", f"{one['meanQueueTime']:.2f} s")
        for one in found["throughput"]
    ]  # fmt: skip
    _section(("last hour", "lane", "outcome", "attempts", "mean", "waited"), flows)


def _print_trouble(found: Document) -> None:
    failures = [
        (one["jobType"], one["code"], one["failures"], moment(one["latest"]))
        for one in found["failures"]
    ]
    _section(("failed, last hour", "code", "jobs", "latest (UTC)"), failures)
    stuck = [
        (one["jobId"], one["tenant"], one["jobType"], moment(one["claimedAt"]), one.get("host"))
        for one in found["stuck"]
    ]
    _section(("stuck", "tenant", "type", "claimed (UTC)", "host"), stuck)


def _section(columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> None:
    if rows:
        say()
        print_table(columns, rows)


@app.command()
def pauses(as_json: Json = False) -> None:
    """List what is paused, by whom and why.

    For example:

        imagefleet queue pauses
    """
    found = ask("GET", PAUSES)
    if as_json:
        print_json(found)
        return
    rows = [
        (_named(one), one["running"], "yes" if one["refuseNew"] else "no",
         moment(one["pausedAt"]), one["pausedBy"], one["reason"])
        for one in found["pauses"]
    ]  # fmt: skip
    print_table(("paused", "still running", "refuses new", "since (UTC)", "by", "reason"), rows)


@app.command()
def pause(
    reason: Reason,
    job_type: JobType = None,
    lane: Lane = None,
    target: Target = None,
    tenant: Tenant = None,
    everything: Everything = False,
    refuse_new: Annotated[
        bool, typer.Option("--refuse-new", help="Refuse new jobs of this kind as well.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until nothing of it is processing.")
    ] = False,
    within: Annotated[float, typer.Option(help="How many seconds --wait waits.")] = 3600,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Hold jobs back; those that run, finish. Deletions and cancellations go on.

    For example:

        imagefleet queue pause --type process_image --reason "bad encoder"
        imagefleet queue pause --all --refuse-new --wait --yes --reason "new database"
    """
    scope = _scope(job_type, lane, target, tenant, everything=everything)
    if everything:
        confirm("Hold back every job of every tenant?", yes=yes)
    body = scope | {"reason": reason, "refuseNew": refuse_new}
    found = ask("PUT", PAUSES, document=body)
    if found.get("known") is False:
        complain(f"the API knows no type {found['name']}: see `imagefleet queue stats` for names")
    if wait:
        found = run_async(_drained(scope, found, within))
    if as_json:
        print_json(found)
    else:
        say(f"{_named(found)} is paused, {found['running']} still running")


async def _drained(scope: dict[str, object], found: Document, within: float) -> Document:
    clock = asyncio.get_running_loop().time
    ends_at, quiet = clock() + within, 0
    async with open_api() as client:
        with waiting("waiting") as tell:
            while quiet < LOOKS:
                if clock() >= ends_at:
                    sentence = f"{found['running']} jobs still run; the pause stands."
                    raise Unavailable("still_running", sentence)
                await asyncio.sleep(POLL)
                listed = (await client.ask("GET", PAUSES))["pauses"]
                standing = [one for one in listed if _is(one, scope)]
                if not standing:
                    sentence = "Somebody has lifted the pause."
                    raise Unavailable("pause_lifted", sentence)
                found = standing[0]
                quiet = 0 if found["running"] else quiet + 1
                tell(f"{found['running']} still running")
    return found


@app.command()
def resume(
    reason: Reason,
    job_type: JobType = None,
    lane: Lane = None,
    target: Target = None,
    tenant: Tenant = None,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """Lift a pause; what it held back is announced within a second.

    For example:

        imagefleet queue resume --type process_image --reason "the encoder is mended"
    """
    scope = _scope(job_type, lane, target, tenant, everything=everything)
    asked = {name: str(value) for name, value in scope.items()}
    found = ask("DELETE", PAUSES, asked | {"reason": reason})
    if as_json:
        print_json(found)
    else:
        say(f"{_named(found)} is resumed; what waited is announced within a second")


def _scope(
    job_type: str | None,
    lane: str | None,
    target: str | None,
    tenant: str | None,
    *,
    everything: bool,
) -> dict[str, object]:
    given = filled(type=job_type, lane=lane, target=target, all=True if everything else None)
    if tenant is not None and given.keys() <= {"type"}:
        return filled(scope="tenant", tenant=tenant, name=job_type)
    if len(given) != 1 or (tenant is None) == ("target" in given):
        detail = (
            "name one of --type, --lane, --all, --tenant with or without --type, "
            "--target with --tenant"
        )
        raise Misconfigured(detail)
    ((scope, name),) = given.items()
    return filled(scope=scope, name=None if everything else name, tenant=tenant)


def _is(pause: Document, scope: dict[str, object]) -> bool:
    return all(pause.get(name) == scope.get(name) for name in ("scope", "name", "tenant"))


def _named(pause: Document) -> str:
    if pause["scope"] == "tenant":
        of_type = f", type {pause['name']}" if pause.get("name") else ""
        return f"tenant {pause['tenant']}{of_type}"
    whose = f" of {pause['tenant']}" if pause.get("tenant") else ""
    return f"{pause['scope']} {pause.get('name', '')}".strip() + whose
