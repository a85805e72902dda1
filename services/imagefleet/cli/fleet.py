"""The fleet, for operators: its workers and breakers, and what it keeps, forgets and removes.

`imagefleet workers`, `breaker`, `ledger`, `prune` and `sweep`.
"""

from collections.abc import Iterator
from typing import Annotated, Final

import typer

from imagefleet.cli.connection import ask, below
from imagefleet.cli.options import Json, Reason, group
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
    show_list,
)
from imagefleet.client.api import Document

BREAKERS: Final = "/v1/operator/breakers"

workers = group("Look at workers.")
breaker = group("Look at circuit breakers, open and reset them.")

Service = Annotated[str, typer.Argument(metavar="SERVICE", help="Such as s3.")]


@workers.callback()
def about_workers() -> None:
    """Look at workers."""


@workers.command("list")
def list_workers(
    everybody: Annotated[
        bool, typer.Option("--all", help="Also those that ended within the last day.")
    ] = False,
    jobs: Annotated[bool, typer.Option("--jobs", help="Each job that they hold.")] = False,
    as_json: Json = False,
) -> None:
    """List worker processes: when they last beat, what they hold, whether they drain.

    For example:

        imagefleet workers list --jobs
    """

    def seen(found: Document) -> Iterator[Part]:
        yield Table(found["workers"], {
            "worker": "workerId", "host": "host", "pid": "pid", "version": "version",
            "lanes": lambda one: " ".join(one["lanes"]),
            "busy": lambda one: f"{len(one['held'])}/{one['slots']}",
            "beat": lambda one: f"{one['silentFor']:.0f} s ago", "state": _state,
        })  # fmt: skip
        if jobs:
            held = [
                job | {"worker": worker["workerId"]}
                for worker in found["workers"]
                for job in worker["held"]
            ]
            yield ""
            yield Table(held, {
                "job": "jobId", "tenant": "tenant", "type": "jobType", "lane": "lane",
                "claimed (UTC)": at("claimedAt"), "worker": "worker",
            })  # fmt: skip

    found = ask("GET", "/v1/operator/workers", {"all": str(everybody).lower()})
    show(found, seen, as_json=as_json)


def _state(worker: Document) -> str:
    if worker.get("deadAt"):
        return str(worker["deadWhy"])
    return "draining" if worker.get("drainingSince") else "working"


@breaker.command("list")
def list_breakers(as_json: Json = False) -> None:
    """List circuit breakers.

    For example:

        imagefleet breaker list
    """
    show_list(ask("GET", BREAKERS), "breakers", {
        "service": "service", "state": "state", "failed": _failed, "trips": "trips",
        "retry (UTC)": at("retryAt"), "last failure (UTC)": at("lastFailureAt"),
        "with": "lastErrorCode", "by": "updatedBy",
    }, as_json=as_json)  # fmt: skip


def _failed(breaker: Document) -> str:
    failures = breaker["failures"]
    return f"{failures} of {failures + breaker.get('successes', 0)}"


@breaker.command("open")
def force_open(service: Service, reason: Reason, as_json: Json = False) -> None:
    """Hold back every job that needs a service, until it is reset.

    For example:

        imagefleet breaker open --reason "the bucket is being moved" s3
    """
    _change(service, "open", reason, as_json=as_json)


@breaker.command()
def reset(service: Service, reason: Reason, as_json: Json = False) -> None:
    """Close a breaker and forget its failures; what it held back is due at once.

    For example:

        imagefleet breaker reset --reason "S3 is back" s3
    """
    _change(service, "reset", reason, as_json=as_json)


def _change(service: str, verb: str, reason: str, *, as_json: bool) -> None:
    changed = ask("POST", below(BREAKERS, service, verb), {"reason": reason})
    show(changed, lambda found: f"{found['service']} is {found['state']}", as_json=as_json)


def ledger(as_json: Json = False) -> None:
    """Show where every accepted job is, and how far SQS and Postgres differ.

    Exits with 1 when jobs are missing.

    For example:

        imagefleet ledger
    """
    found = ask("GET", "/v1/operator/ledger")
    show(found, _balance, as_json=as_json)
    finish(ExitCode.FAILED if found["missing"] else ExitCode.DONE)


def _balance(found: Document) -> Iterator[Part]:
    names = ("accepted", "open", "completed", "failed", "pruned", "missing")
    yield Fields({name: found[name] for name in names}, ("jobs", ""))
    yield ""
    yield Table(found["drift"], {
        "lane": "lane", "jobs waiting": "waiting", "messages expected": "expected",
        "messages missing": lambda one: one.get("drift", "?"),
    })  # fmt: skip


def prune(as_json: Json = False) -> None:
    """Show what is past retention, and what pruning did lately.

    Maintenance prunes every minute by itself; nobody has to ask for it.

    For example:

        imagefleet prune
    """
    show(ask("GET", "/v1/operator/prune"), _pruned, as_json=as_json)


def _pruned(found: Document) -> Iterator[Part]:
    least = "at least " if found["prunableIsAtLeast"] else ""
    yield f"{least}{found['prunable']} jobs are past {found['retentionDays']:g} days and will go"
    yield Table(found["runs"], {
        "period (UTC)": at("periodStart"), "finished (UTC)": at("finishedAt"),
        "jobs pruned": "jobs",
    })  # fmt: skip


def sweep(as_json: Json = False) -> None:
    """Show what sweeping removed from S3 lately, and which objects are missing there.

    Maintenance sweeps every minute by itself; nobody has to ask for it.
    Exits with 1 when objects are missing.

    For example:

        imagefleet sweep
        imagefleet sweep --json | jq -r '.missing[].imageId'
    """
    found = ask("GET", "/v1/operator/sweep")
    show(found, _swept, as_json=as_json)
    if not as_json and any(one["reprocess"] for one in found["missing"]):
        complain(
            "`imagefleet images reprocess IMAGE…` with a key of the tenant makes variants anew"
        )
    finish(ExitCode.FAILED if found["missingInAll"] else ExitCode.DONE)


def _swept(found: Document) -> Iterator[Part]:
    least = "at least " if found["supersededIsAtLeast"] else ""
    yield f"{least}{found['superseded']} superseded versions wait for their time"
    walk = found.get("walk")
    yield from _walk(walk) if walk else ["no walk through the buckets yet"]
    yield Table(found["runs"], {
        "period (UTC)": at("periodStart"), "finished (UTC)": at("finishedAt"),
        "versions": "revisions", "uploads": "uploads", "listed": "listed", "objects": "objects",
        "bytes": "bytes",
    })  # fmt: skip
    if found["missing"]:
        yield ""
        yield f"{found['missingInAll']} objects are missing in S3:"
        yield Table(found["missing"], {
            "bucket": "bucket", "key": "key", "tenant": "tenant", "found (UTC)": at("foundAt"),
            "what helps": lambda one: "reprocess" if one["reprocess"] else "restore or replace",
        })  # fmt: skip


def _walk(walk: Document) -> list[str]:
    ended = moment(walk.get("finishedAt"))
    where = f"through at {ended}" if ended else f"now in {walk['bucket']} behind {walk['after']!r}"
    counted = f"{walk['litter']} litter, {walk['swept']} swept, {walk['unknown']} unknown"
    begun = moment(walk["startedAt"])
    lines = [f"walk of {begun}: {where}; {walk['listed']} objects, of which {counted}"]
    if walk["heldBack"]:
        lines.append(f"{walk['heldBack']} originals are held back: is this their database?")
    return lines
