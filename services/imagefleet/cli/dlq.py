"""`imagefleet dlq`: dead letters, looked at, acknowledged and replayed."""

import math
from typing import Annotated, Final

import typer

from imagefleet.cli.listing import Since, Until, instant, route, show_pages
from imagefleet.cli.naming import LetterId, LetterIds
from imagefleet.cli.output import (
    Columns,
    ExitCode,
    at,
    complain,
    confirm,
    filled,
    finish,
    show,
    show_fields,
    show_list,
)
from imagefleet.cli.replaying import LETTERS, Replaying
from imagefleet.cli.verbs import (
    WITHIN,
    All,
    Cursor,
    DryRun,
    History,
    Json,
    Limit,
    Many,
    OfCode,
    OfTenant,
    OfType,
    Rate,
    Reason,
    Within,
    Yes,
    ask,
    below,
    call,
    group,
    order_many,
)
from imagefleet.client.api import Document
from imagefleet.errors import Misconfigured

MOST_IDS: Final = 100  # of one replay
BARS: Final = "·▁▂▃▄▅▆▇█"

app = group("Look at dead letters, acknowledge and replay them.")

Fingerprint = Annotated[str | None, typer.Option(help="Only of this fault; 8 digits will do.")]
Canary = Annotated[
    int, typer.Option(metavar="N", min=0, max=100, help="First so many, and see how they fare.")
]
StopRatio = Annotated[
    float,
    typer.Option(
        metavar="SHARE", min=0, max=1, help="Stop when a larger share of those that ended failed."
    ),
]


@app.command("list")
def list_letters(
    tenant: OfTenant = None,
    job_type: OfType = None,
    code: OfCode = None,
    fingerprint: Fingerprint = None,
    since: Since = None,
    until: Until = None,
    everything: History = False,
    limit: Limit = 20,
    cursor: Cursor = None,
    every_page: All = False,
    as_json: Json = False,
) -> None:
    """List open dead letters, the oldest first.

    For example:

        imagefleet dlq list --code corrupt --since 2h
        imagefleet dlq list --history --tenant shop --json
    """
    parameters = _parameters(tenant, job_type, code, fingerprint, since, until)
    parameters |= {"limit": str(limit), "cursor": cursor, "all": str(everything).lower()}
    show_pages(route(LETTERS), parameters, "letters", {
        "letter": "id", "tenant": "tenant", "type": "jobType", "code": "reason",
        "message": "message", "died (UTC)": at("diedAt"), "fault": "fingerprint",
        "dealt with": _dealt_with,
    }, every_page=every_page, as_json=as_json, wraps=("message", "dealt with"),
        drops=("fault", "type", "died (UTC)", "tenant"),
        none="no dead letters" if everything else "no open dead letters; --history shows all",
    )  # fmt: skip


def _dealt_with(letter: Document) -> object:
    replayed_as = letter.get("replayedAs")
    return f"replayed as {replayed_as}" if replayed_as else letter.get("acknowledgedBy")


@app.command("show")
def show_letter(
    letter: LetterId,
    as_json: Json = False,
) -> None:
    """Show one dead letter with the job as it was when it failed.

    For example:

        imagefleet dlq show 0199a5c2-7d41
    """
    show_fields(ask("GET", below(LETTERS, letter)), as_json=as_json)


@app.command()
def groups(
    tenant: OfTenant = None,
    job_type: OfType = None,
    code: OfCode = None,
    since: Since = None,
    until: Until = None,
    by_tenant: Annotated[
        bool, typer.Option("--by-tenant", help="Each tenant's by themselves.")
    ] = False,
    hourly: Annotated[
        bool, typer.Option("--hourly", help="Also how often in each hour of the last day.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Group the open dead letters by fault, the most frequent first.

    For example:

        imagefleet dlq groups --type process_image
        imagefleet dlq groups --by-tenant
        imagefleet dlq groups --hourly
    """
    parameters = _parameters(tenant, job_type, code, None, since, until)
    parameters |= {"byTenant": str(by_tenant).lower(), "hourly": str(hourly).lower()}
    lately: Columns = {"last day": _hours} if hourly else {}
    show_list(ask("GET", below(LETTERS, "groups"), parameters), "groups", {
        "letters": "letters", **lately,
        "tenant" if by_tenant else "tenants": _tenants,
        "replayable": "replayable", "type": "jobType", "code": "reason", "message": "message",
        "first (UTC)": at("firstDiedAt"), "last (UTC)": at("lastDiedAt"), "fault": "fingerprint",
        "e.g.": "example",
    }, as_json=as_json, wraps=("message", "tenant", "tenants"),
        drops=("e.g.", "first (UTC)", "replayable", "type", "last (UTC)"),
        none="no open dead letters",
    )  # fmt: skip


def _hours(fault: Document) -> str:
    most = max(fault["hourly"])
    return "".join(
        BARS[math.ceil(count / most * (len(BARS) - 1)) if most else 0] for count in fault["hourly"]
    )


def _tenants(fault: Document) -> str:
    names: list[str] = fault.get("tenantNames", [])
    more = fault["tenants"] - len(names)
    return ", ".join([*names, f"{more} more"] if more else names)


@app.command()
def ack(
    note: Annotated[str, typer.Option("--note", help="Why nothing is to be done.")],
    letters: LetterIds = None,
    tenant: OfTenant = None,
    job_type: OfType = None,
    code: OfCode = None,
    fingerprint: Fingerprint = None,
    since: Since = None,
    until: Until = None,
    everything: All = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Acknowledge: somebody knows, and nothing is to be done. It is final.

    For example:

        imagefleet dlq ack --note "the producer knows" 0199a5c2-7d41
        imagefleet dlq ack --note "test images" --code corrupt --tenant demo --yes
    """
    chosen = _parameters(tenant, job_type, code, fingerprint, since, until)
    body = _which(letters, chosen, everything=everything)
    if "filter" in body:
        _confirm("Acknowledge", chosen, yes=yes)
    count, more = 0, True
    while more:
        answer = ask("POST", f"{LETTERS}:acknowledge", document=body | {"note": note})
        count, more = count + answer["acknowledged"], answer["more"]
    show({"acknowledged": count}, lambda _: f"{count} acknowledged", as_json=as_json)


@app.command("replay-all")
def replay_all(
    reason: Reason,
    tenant: OfTenant = None,
    job_type: OfType = None,
    code: OfCode = None,
    fingerprint: Fingerprint = None,
    since: Since = None,
    until: Until = None,
    everything: All = False,
    dry_run: DryRun = False,
    rate: Rate = 20,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Replay whatever filters name, by one job that goes on without you; each failure once.

    What fails again is not watched: replay a canary first, by `dlq replay --canary`. How far the
    job is, and what became of how many, `jobs show --full` tells.

    For example:

        imagefleet dlq replay-all --reason "S3 is back" --code unavailable --dry-run
        imagefleet dlq replay-all --reason "S3 is back" --all --rate 100 --yes
    """
    chosen = _parameters(tenant, job_type, code, fingerprint, since, until)
    so_many = int(rate) if float(rate).is_integer() else rate  # the API asks for a whole number
    body = _which(None, chosen, everything=everything) | {"reason": reason, "rate": so_many}
    many = Many("letters", "dead letters", "replayed", "Replay {} dead letters?")
    order_many(f"{LETTERS}:replay-all", body, many, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
def replay(
    reason: Reason,
    letters: LetterIds = None,
    tenant: OfTenant = None,
    job_type: OfType = None,
    code: OfCode = None,
    fingerprint: Fingerprint = None,
    since: Since = None,
    until: Until = None,
    everything: All = False,
    dry: DryRun = False,
    canary: Canary = 0,
    rate: Rate = 20,
    stop_on_failure_ratio: StopRatio = 0.5,
    within: Within = WITHIN,
    force: Annotated[bool, typer.Option("--force", help="Also what was acknowledged.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Run failed jobs again as new ones; each failure once.

    Many are replayed page by page at the given rate, while their outcomes are watched. Exits with
    1 when some failed again, or when it stopped.

    For example:

        imagefleet dlq replay --reason "S3 is back" 0199a5c2-7d41
        imagefleet dlq replay --reason "fixed" --fingerprint 5f0c2a91 --dry-run
        imagefleet dlq replay --reason "fixed" --code corrupt --canary 5 --yes
    """
    chosen = _parameters(tenant, job_type, code, fingerprint, since, until)
    what = _which(letters, chosen, everything=everything, most=MOST_IDS)
    done = Replaying(
        what=what | {"reason": reason, "force": force},
        canary=canary,
        rate=rate,
        stop_ratio=stop_on_failure_ratio,
        within=within,
    )
    if "filter" in what and not dry:
        _confirm("Replay", chosen, yes=yes)
    call(done.dry_run if dry else done.run)
    told = done.foretold if dry else done.counts
    show(done.document(), lambda _: told(), as_json=as_json)
    if done.stopped and not as_json:
        complain(done.stopped)
    finish(ExitCode.FAILED if done.stopped or done.fates.get("failed") else ExitCode.DONE)


def _parameters(
    tenant: str | None,
    job_type: str | None,
    code: str | None,
    fingerprint: str | None,
    since: str | None,
    until: str | None,
) -> dict[str, str | None]:
    return {
        "tenant": tenant, "jobType": job_type, "reason": code, "fingerprint": fingerprint,
        "diedAfter": instant(since), "diedBefore": instant(until),
    }  # fmt: skip


def _which(
    letters: list[str] | None,
    chosen: dict[str, str | None],
    *,
    everything: bool,
    most: float = math.inf,
) -> dict[str, object]:
    """Return the part of a request that says which letters: `ids`, or a `filter`."""
    given = letters or []
    if bool(given) + any(chosen.values()) + everything != 1:
        detail = "name letters, or filters, or --all"
        raise Misconfigured(detail)
    if len(given) > most:
        detail = f"at most {most} letters at once; use a filter for more"
        raise Misconfigured(detail)
    if not given:
        return {"filter": filled(**chosen)}
    return {"ids": [ask("GET", below(LETTERS, letter))["id"] for letter in given]}


def _confirm(verb: str, chosen: dict[str, str | None], *, yes: bool) -> None:
    if yes:
        return
    faults = ask("GET", below(LETTERS, "groups"), chosen | {"limit": "100"})["groups"]
    count = sum(fault["letters"] for fault in faults)
    confirm(f"{verb} {count} dead letters of {len(faults)} faults?", yes=yes)
