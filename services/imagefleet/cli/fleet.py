"""The fleet, for operators: its workers, what it keeps and forgets, and who did what.

`imagefleet workers`, `ledger`, `prune`, `sweep` and `audit`.
"""

from collections.abc import Iterator
from typing import Annotated, Final

import typer

from imagefleet.cli.listing import Since, Until, instant, route, show_pages
from imagefleet.cli.output import (
    ExitCode,
    Fields,
    Part,
    Table,
    at,
    complain,
    finish,
    moment,
    show,
)
from imagefleet.cli.verbs import (
    All,
    Cursor,
    History,
    Json,
    Limit,
    OfTenant,
    Reason,
    ask,
    below,
    group,
)
from imagefleet.client.api import Document

AUDIT: Final = "/v1/operator/audit"
WORKERS: Final = "/v1/operator/workers"
AUDIT_PAGE: Final = 500

workers = group("Look at workers, and let one drain.")


@workers.command("list")
def list_workers(
    everybody: History = False,
    jobs: Annotated[bool, typer.Option("--jobs", help="Each job that they hold.")] = False,
    as_json: Json = False,
) -> None:
    """List worker processes: when they last beat, what they hold, whether they drain.

    For example:

        imagefleet workers list --jobs
    """

    def seen(fleet: Document) -> Iterator[Part]:
        yield Table(fleet["workers"], {
            "worker": "workerId", "host": "host", "pid": "pid", "version": "version",
            "lanes": lambda worker: " ".join(worker["lanes"]),
            "busy": lambda worker: f"{len(worker['held'])}/{worker['slots']}",
            "beat": lambda worker: f"{worker['silentFor']:.0f} s ago", "state": _state,
        }, {
            "wraps": ("lanes",), "drops": ("version", "pid", "lanes", "host"),
            "none": "no worker is up; `imagefleet worker` is one",
        })  # fmt: skip
        if jobs:
            held = [
                job | {"worker": worker["workerId"]}
                for worker in fleet["workers"]
                for job in worker["held"]
            ]
            yield ""
            yield Table(held, {
                "job": "jobId", "tenant": "tenant", "type": "jobType", "lane": "lane",
                "claimed (UTC)": at("claimedAt"), "worker": "worker",
            }, {
                "drops": ("lane", "type", "claimed (UTC)", "tenant"), "none": "they hold no jobs",
            })  # fmt: skip

    fleet = ask("GET", WORKERS, {"all": str(everybody).lower()})
    show(fleet, seen, as_json=as_json)


@workers.command()
def drain(
    worker: Annotated[str, typer.Argument(help="Its id; `workers list` has it.")],
    reason: Reason,
    as_json: Json = False,
) -> None:
    """Let a worker end what it has, and itself, as SIGTERM does.

    Its next beat tells it so. It takes nothing new, what runs may finish for its grace, and it ends
    with exit code 0: whoever keeps it up starts a new one.

    For example:

        imagefleet workers drain 5f0c2a91-0b5e-4d7f-9a3e-1c2d3e4f5a6b --reason slow
    """
    asked = ask("POST", below(WORKERS, worker, "drain"), document={"reason": reason})
    show(asked, lambda worker: f"{worker['workerId']} is {_state(worker)}", as_json=as_json)


def _state(worker: Document) -> str:
    if worker.get("deadAt"):
        return str(worker["deadWhy"])
    if worker.get("drainingSince"):
        return "draining"
    return "asked to drain" if worker.get("drainRequestedAt") else "working"


def ledger(as_json: Json = False) -> None:
    """Show where every accepted job is, and how far SQS and Postgres differ.

    Exits with 1 when jobs are missing.

    For example:

        imagefleet ledger
    """
    balance = ask("GET", "/v1/operator/ledger")
    show(balance, _balance, as_json=as_json)
    finish(ExitCode.FAILED if balance["missing"] else ExitCode.DONE)


def _balance(balance: Document) -> Iterator[Part]:
    names = ("accepted", "open", "completed", "failed", "pruned", "missing")
    yield Fields({name: balance[name] for name in names}, ("jobs", ""))
    yield ""
    yield Table(balance["drift"], {
        "lane": "lane", "jobs waiting": "waiting", "messages expected": "expected",
        "messages missing": lambda lane: lane.get("drift", "?"),
    })  # fmt: skip


def prune(as_json: Json = False) -> None:
    """Show what is past retention, and what pruning did lately.

    Maintenance prunes every minute by itself; nobody has to ask for it.

    For example:

        imagefleet prune
    """
    show(ask("GET", "/v1/operator/prune"), _pruned, as_json=as_json)


def _pruned(pruned: Document) -> Iterator[Part]:
    least = "at least " if pruned["prunableIsAtLeast"] else ""
    yield f"{least}{pruned['prunable']} jobs are past {pruned['retentionDays']:g} days and will go"
    yield Table(pruned["runs"], {
        "period (UTC)": at("periodStart"), "finished (UTC)": at("finishedAt"),
        "jobs pruned": "jobs",
    }, {"none": "nothing was pruned yet"})  # fmt: skip


def sweep(as_json: Json = False) -> None:
    """Show what sweeping removed from S3 lately, and which objects are missing there.

    Maintenance sweeps every minute by itself; nobody has to ask for it.
    Exits with 1 when objects are missing.

    For example:

        imagefleet sweep
        imagefleet sweep --json | jq -r '.missing[].imageId'
    """
    sweeping = ask("GET", "/v1/operator/sweep")
    show(sweeping, _swept, as_json=as_json)
    if not as_json and any(gone["reprocess"] for gone in sweeping["missing"]):
        complain("`imagefleet images reprocess IMAGE` with a key of the tenant makes variants anew")
    finish(ExitCode.FAILED if sweeping["missingInAll"] else ExitCode.DONE)


def _swept(sweeping: Document) -> Iterator[Part]:
    least = "at least " if sweeping["supersededIsAtLeast"] else ""
    yield f"{least}{sweeping['superseded']} superseded versions wait for their time"
    walk = sweeping.get("walk")
    yield from _walked(walk) if walk else ["no walk through the buckets yet"]
    yield Table(sweeping["runs"], {
        "period (UTC)": at("periodStart"), "finished (UTC)": at("finishedAt"),
        "versions": "revisions", "uploads": "uploads", "listed": "listed", "objects": "objects",
        "bytes": "bytes",
    }, {"drops": ("finished (UTC)", "uploads"), "none": "nothing was swept yet"})  # fmt: skip
    if sweeping["missing"]:
        yield ""
        yield f"{sweeping['missingInAll']} objects are missing in S3:"
        yield Table(sweeping["missing"], {
            "bucket": "bucket", "key": "key", "tenant": "tenant", "found (UTC)": at("foundAt"),
            "what helps": lambda gone: "reprocess" if gone["reprocess"] else "restore or replace",
        }, {"drops": ("found (UTC)", "tenant")})  # fmt: skip


def _walked(walk: Document) -> list[str]:
    ended = moment(walk.get("finishedAt"))
    where = f"through at {ended}" if ended else f"now in {walk['bucket']} behind {walk['after']!r}"
    counted = f"{walk['litter']} litter, {walk['swept']} swept, {walk['unknown']} unknown"
    begun = moment(walk["startedAt"])
    lines = [f"walk of {begun}: {where}; {walk['listed']} objects, of which {counted}"]
    if walk["heldBack"]:
        lines.append(f"{walk['heldBack']} originals are held back: is this their database?")
    return lines


def audit(
    since: Since = "1d",
    until: Until = None,
    by: Annotated[
        str | None, typer.Option(help="Only by this one: a key's name or id, user@host, a process.")
    ] = None,
    on: Annotated[
        str | None, typer.Option(help="Only on this: a kind, or kind/name.", metavar="KIND[/NAME]")
    ] = None,
    what: Annotated[str | None, typer.Option(help="Only this: pause, reset, revoke...")] = None,
    tenant: OfTenant = None,
    limit: Limit = 1000,
    cursor: Cursor = None,
    every_page: All = False,
    as_json: Json = False,
) -> None:
    """Tell who did what, to what and why; the newest first.

    Everything that an operator or the holder of the database changes is there, with what was before
    and after it (--json shows both), and what the fleet did by itself: workers that start, stop or
    are lost, offices that change hands, breakers that open and close. Nobody can change a line, or
    take one away.

    Kinds are pause, circuit_breaker, job, dead_letter, image, key, tenant, setting, worker and
    election.

    For example:

        imagefleet audit --since 1h
        imagefleet audit --since 2d --on circuit_breaker/s3
        imagefleet audit --since 2026-03-01T00:00:00Z --what resume --json
    """
    parameters = {
        "since": instant(since),
        "until": instant(until),
        "by": by,
        "on": on,
        "what": what,
        "tenant": tenant,
        "limit": str(limit),
        "cursor": cursor,
    }

    show_pages(route(AUDIT), parameters, "lines", {
        "at (UTC)": at("at"), "by": _who, "did": _what, "why": "reason",
    }, every_page=every_page, as_json=as_json, most=AUDIT_PAGE, wraps=("by", "did", "why"),
        none="nothing of that was done in this time; --since 1w looks further back",
    )  # fmt: skip


def _who(line: Document) -> str:
    return f"{line['actor']} from {line['address']}" if line.get("address") else str(line["actor"])


def _what(line: Document) -> str:
    whose = f" of {line['tenant']}" if line.get("tenant") else ""
    return f"{line['action']} {line['kind']} {line['name']}{whose}"
