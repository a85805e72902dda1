"""`imagefleet queue` and `breaker`: how the queues are, and what holds jobs back."""

import asyncio
from collections.abc import Iterator
from operator import methodcaller
from typing import Annotated, Final

import typer

from imagefleet.cli.explaining import explain_lane
from imagefleet.cli.output import (
    Part,
    Table,
    at,
    complain,
    confirm,
    filled,
    section,
    show,
    show_list,
)
from imagefleet.cli.progress import Tell, keep_showing, waiting
from imagefleet.cli.verbs import (
    DRAINED_WITHIN,
    POLL,
    All,
    Every,
    Json,
    OfLane,
    OfTarget,
    OfTenant,
    OfType,
    Reason,
    RefuseNew,
    Wait,
    Watch,
    Within,
    Yes,
    ask,
    below,
    call,
    group,
)
from imagefleet.client.api import ApiClient, Document
from imagefleet.errors import Misconfigured, Unavailable

QUEUES: Final = "/v1/operator/queues"
PAUSES: Final = "/v1/operator/pauses"
BREAKERS: Final = "/v1/operator/breakers"
LOOKS: Final = 2
"""A claim that began before the pause may commit after the first look."""

app = group("Look at queues, pause and resume them.")
breaker = group("Look at circuit breakers, open and reset them.")

Service = Annotated[str, typer.Argument(metavar="SERVICE", help="Such as s3.")]


@app.command()
def stats(
    watch: Watch = False,
    every: Every = 2,
    as_json: Json = False,
) -> None:
    """Show what waits, what ran within the last hour, and what is stuck.

    For example:

        imagefleet queue stats
        imagefleet queue stats --watch
        imagefleet queue stats --json | jq '.lanes[] | {lane, waiting}'
    """
    if watch:
        look = methodcaller("ask", "GET", QUEUES)
        keep_showing(look, _stand, every=every, as_json=as_json)
        return
    show(ask("GET", QUEUES), _stand, as_json=as_json)


def _stand(fleet: Document) -> Iterator[Part]:
    yield Table(fleet["lanes"], {
        "lane": "lane", "workers": "workers",
        "busy": lambda lane: f"{lane['busy']}/{lane['slots']}",
        "processing": "processing", "waiting": "waiting",
        "announced": lambda lane: f"{lane['announced']} of {lane['window']}",
        "messages": lambda lane: (lane.get("messages") or {}).get("visible", "?"),
    })  # fmt: skip
    yield from section(fleet["depths"], {
        "type": "jobType", "lane": "lane", "status": "status", "jobs": "jobs",
        "oldest due (UTC)": at("oldestDue"),
        "": lambda depth: "unroutable" if depth["unroutable"] else None,
    }, drops=("lane", "oldest due (UTC)"))  # fmt: skip
    yield from section(fleet["tenants"], {
        "tenant": "tenant", "waits since (UTC)": at("oldestDue"), "waiting": "waiting",
        "announced": "announced", "processing": "processing",
        "": lambda tenant: "paused" if tenant["paused"] else None,
    }, drops=("announced", "processing"))  # fmt: skip
    yield from section(fleet["throughput"], {
        "last hour": "jobType", "lane": "lane", "outcome": "outcome", "attempts": "attempts",
        "mean": lambda kind: f"{kind['meanDuration']:.2f} s",
        "waited": lambda kind: f"{kind['meanQueueTime']:.2f} s",
    }, drops=("lane", "waited"))  # fmt: skip
    yield from section(fleet["failures"], {
        "failed, last hour": "jobType", "code": "code", "jobs": "failures",
        "latest (UTC)": at("latest"),
    }, drops=("latest (UTC)",))  # fmt: skip
    yield from section(fleet["stuck"], {
        "stuck": "jobId", "tenant": "tenant", "type": "jobType", "claimed (UTC)": at("claimedAt"),
        "host": "host",
    }, drops=("host", "type", "claimed (UTC)"))  # fmt: skip
    yield ""
    yield f"{fleet['unacknowledged']} dead letters wait for somebody"


app.command("explain")(explain_lane)


@app.command()
def pauses(as_json: Json = False) -> None:
    """List what is paused, by whom and why.

    For example:

        imagefleet queue pauses
    """
    show_list(ask("GET", PAUSES), "pauses", {
        "paused": _named, "still running": "running",
        "refuses new": lambda pause: "yes" if pause["refuseNew"] else "no",
        "since (UTC)": at("pausedAt"), "by": "pausedBy", "reason": "reason",
    }, as_json=as_json, none="nothing is paused", wraps=("paused", "by", "reason"),
        drops=("since (UTC)", "refuses new"),
    )  # fmt: skip


@app.command()
def pause(
    reason: Reason,
    job_type: OfType = None,
    lane: OfLane = None,
    target: OfTarget = None,
    tenant: OfTenant = None,
    everything: All = False,
    refuse_new: RefuseNew = False,
    wait: Wait = False,
    within: Within = DRAINED_WITHIN,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Hold jobs back; those that run, finish. Deletions and cancellations go on.

    For example:

        imagefleet queue pause --type process_image --reason "bad encoder"
        imagefleet queue pause --all --refuse-new --wait --yes --reason moving
    """
    scope = _scope(job_type, lane, target, tenant, everything=everything)
    if everything:
        confirm("Hold back every job of every tenant?", yes=yes)
    body = scope | {"reason": reason, "refuseNew": refuse_new}
    held = ask("PUT", PAUSES, document=body)
    if held.get("known") is False:
        complain(f"the API knows no type {held['name']}: see `imagefleet queue stats` for names")
    if wait:
        with waiting("waiting") as tell:
            held = call(lambda client: _drained(client, scope, held, within, tell))

    def told(pause: Document) -> str:
        return f"{_named(pause)} is paused, {pause['running']} still running"

    show(held, told, as_json=as_json)


async def _drained(
    client: ApiClient, scope: dict[str, object], held: Document, within: float, tell: Tell
) -> Document:
    clock = asyncio.get_running_loop().time
    ends_at, quiet = clock() + within, 0
    while quiet < LOOKS:
        if clock() >= ends_at:
            sentence = f"{held['running']} jobs still run; the pause stands."
            raise Unavailable("still_running", sentence)
        await asyncio.sleep(POLL)
        listed = (await client.ask("GET", PAUSES))["pauses"]
        same = [pause for pause in listed if _is(pause, scope)]
        if not same:
            raise Unavailable("pause_lifted", "Somebody has lifted the pause.")
        held = same[0]
        quiet = 0 if held["running"] else quiet + 1
        tell(f"{held['running']} still running")
    return held


@app.command()
def resume(
    reason: Reason,
    job_type: OfType = None,
    lane: OfLane = None,
    target: OfTarget = None,
    tenant: OfTenant = None,
    everything: All = False,
    as_json: Json = False,
) -> None:
    """Lift a pause; what it held back is announced within a second.

    For example:

        imagefleet queue resume --type process_image --reason "it is mended"
    """
    scope = _scope(job_type, lane, target, tenant, everything=everything)
    asked = {name: str(value) for name, value in scope.items()}

    def told(pause: Document) -> str:
        return f"{_named(pause)} is resumed; what waited is announced within a second"

    show(ask("DELETE", PAUSES, asked | {"reason": reason}), told, as_json=as_json)


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
    }, as_json=as_json, none="no breakers: no service has failed yet", wraps=("by",),
        drops=("last failure (UTC)", "trips", "with", "by"),
    )  # fmt: skip


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
    show(changed, lambda breaker: f"{breaker['service']} is {breaker['state']}", as_json=as_json)
