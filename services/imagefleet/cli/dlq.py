"""`imagefleet dlq`: dead letters, looked at, acknowledged and replayed."""

import math
from typing import Annotated, Final
from urllib.parse import quote

import typer

from imagefleet.cli.operating import Reason, Yes, ask, confirm, filled, moment, tell_of_more
from imagefleet.cli.output import (
    ExitCode,
    Json,
    complain,
    finish,
    print_json,
    print_table,
    run_async,
    say,
    show_document,
)
from imagefleet.cli.replaying import Pace, Replay, dry_run, replay_all
from imagefleet.errors import Misconfigured

PATH: Final = "/v1/operator/dead-letters"
MOST_IDS: Final = 100  # of one replay

app = typer.Typer(
    rich_markup_mode="markdown",
    no_args_is_help=True,
    help="Look at dead letters, acknowledge and replay them.",
)

Tenant = Annotated[str | None, typer.Option(help="Only this tenant's.")]
JobType = Annotated[str | None, typer.Option("--type", help="Only of this type.")]
Code = Annotated[str | None, typer.Option("--code", help="Only with this failure code.")]
Fingerprint = Annotated[str | None, typer.Option(help="Only of this fault.")]
Letters = Annotated[
    list[str] | None, typer.Argument(metavar="[LETTER]...", help="Ids of letters or of their jobs.")
]
Everything = Annotated[bool, typer.Option("--all", help="Every open letter.")]
Rate = Annotated[float, typer.Option(min=0.01, help="So many a second.")]
Canary = Annotated[int, typer.Option(min=0, max=100, help="First so many, and see how they fare.")]
StopRatio = Annotated[
    float, typer.Option(min=0, max=1, help="Stop when a larger share of those that ended failed.")
]


@app.command("list")
def list_letters(
    tenant: Tenant = None,
    job_type: JobType = None,
    code: Code = None,
    fingerprint: Fingerprint = None,
    everything: Annotated[
        bool, typer.Option("--history", help="Also what was dealt with.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Go on behind the last list.")] = None,
    as_json: Json = False,
) -> None:
    """List open dead letters, the oldest first.

    For example:

        imagefleet dlq list --code corrupt
        imagefleet dlq list --history --tenant shop --json
    """
    parameters = _parameters(tenant, job_type, code, fingerprint)
    parameters |= {"limit": str(limit), "cursor": cursor, "all": str(everything).lower()}
    page = ask("GET", PATH, parameters)
    if as_json:
        print_json(page)
        return
    rows = [
        (one["id"], one.get("tenant"), one.get("jobType"), one["reason"], moment(one["diedAt"]),
         one["fingerprint"][:12], _dealt_with(one.get("replayedAs"), one.get("acknowledgedBy")))
        for one in page["letters"]
    ]  # fmt: skip
    columns = ("letter", "tenant", "type", "code", "died (UTC)", "fault", "dealt with")
    print_table(columns, rows)
    tell_of_more(page)


def _dealt_with(replayed_as: str | None, by: str | None) -> str | None:
    return f"replayed as {replayed_as}" if replayed_as else by


@app.command()
def show(
    letter: Annotated[str, typer.Argument(metavar="LETTER", help="Its id, or that of its job.")],
    as_json: Json = False,
) -> None:
    """Show one dead letter with the job as it was when it failed.

    For example:

        imagefleet dlq show 0199a5c2-...
    """
    show_document(ask("GET", f"{PATH}/{quote(letter, safe='')}"), as_json=as_json)


@app.command()
def groups(
    tenant: Tenant = None,
    job_type: JobType = None,
    code: Code = None,
    by_tenant: Annotated[
        bool, typer.Option("--by-tenant", help="Each tenant's by themselves.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Group the open dead letters by fault, the most frequent first.

    For example:

        imagefleet dlq groups --type process_image
        imagefleet dlq groups --by-tenant
    """
    parameters = _parameters(tenant, job_type, code, None) | {"byTenant": str(by_tenant).lower()}
    found = ask("GET", f"{PATH}/groups", parameters)
    if as_json:
        print_json(found)
        return
    rows = [
        (one["letters"], one.get("tenant") or one["tenants"], one["replayable"],
         one.get("jobType"), one["reason"], moment(one["firstDiedAt"]), moment(one["lastDiedAt"]),
         one["fingerprint"], one["example"])
        for one in found["groups"]
    ]  # fmt: skip
    columns = (
        "letters",
        "tenant" if by_tenant else "tenants",
        "replayable",
        "type",
        "code",
        "first (UTC)",
        "last (UTC)",
        "fault",
        "e.g.",
    )
    print_table(columns, rows)


@app.command()
def ack(
    note: Annotated[str, typer.Option("--note", help="Why nothing is to be done.")],
    letters: Letters = None,
    tenant: Tenant = None,
    job_type: JobType = None,
    code: Code = None,
    fingerprint: Fingerprint = None,
    everything: Everything = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Acknowledge: somebody knows, and nothing is to be done. It is final.

    For example:

        imagefleet dlq ack --note "the producer knows" 0199a5c2-...
        imagefleet dlq ack --note "test images" --code corrupt --tenant demo --yes
    """
    chosen = _parameters(tenant, job_type, code, fingerprint)
    body = _which(letters, chosen, everything=everything)
    if "filter" in body:
        _confirm("Acknowledge", chosen, yes=yes)
    count, more = 0, True
    while more:
        found = ask("POST", f"{PATH}:acknowledge", document=body | {"note": note})
        count, more = count + found["acknowledged"], found["more"]
    if as_json:
        print_json({"acknowledged": count})
    else:
        say(f"{count} acknowledged")


@app.command()
def replay(
    reason: Reason,
    letters: Letters = None,
    tenant: Tenant = None,
    job_type: JobType = None,
    code: Code = None,
    fingerprint: Fingerprint = None,
    everything: Everything = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False,
    canary: Canary = 0,
    rate: Rate = 20,
    stop_on_failure_ratio: StopRatio = 0.5,
    within: Annotated[float, typer.Option(help="Seconds to wait for how they fare.")] = 300,
    force: Annotated[bool, typer.Option("--force", help="Also what was acknowledged.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Run failed jobs again as new ones; each failure once.

    Many are replayed page by page at the given rate, while their outcomes are watched. Exits with
    1 when some failed again, or when it stopped.

    For example:

        imagefleet dlq replay --reason "S3 is back" 0199a5c2-...
        imagefleet dlq replay --reason "fixed" --fingerprint 5f0c... --dry-run
        imagefleet dlq replay --reason "fixed" --code internal_error --canary 5 --rate 50 --yes
    """
    chosen = _parameters(tenant, job_type, code, fingerprint)
    what = _which(letters, chosen, everything=everything, most=MOST_IDS)
    what |= {"reason": reason, "force": force}
    if dry:
        _print(run_async(dry_run(what)), as_json=as_json)
        return
    if "filter" in what:
        _confirm("Replay", chosen, yes=yes)
    pace = Pace(canary=canary, rate=rate, stop_ratio=stop_on_failure_ratio, within=within)
    done = run_async(replay_all(what, pace))
    _print(done, as_json=as_json)
    finish(ExitCode.FAILED if done.stopped or done.failed else ExitCode.DONE)


def _print(done: Replay, *, as_json: bool) -> None:
    if as_json:
        print_json(done.document())
        return
    rows = [("letters " + name.replace("_", " "), count) for name, count in done.outcomes.items()]
    if done.jobs:
        rows += [("jobs " + name, count) for name, count in done.fates.items()]
    print_table(("", ""), rows or [("letters", 0)])
    if done.stopped:
        complain(done.stopped)


def _parameters(
    tenant: str | None, job_type: str | None, code: str | None, fingerprint: str | None
) -> dict[str, str | None]:
    return {"tenant": tenant, "jobType": job_type, "reason": code, "fingerprint": fingerprint}


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
    return {"ids": [ask("GET", f"{PATH}/{quote(one, safe='')}")["id"] for one in given]}


def _confirm(verb: str, chosen: dict[str, str | None], *, yes: bool) -> None:
    if yes:
        return
    found = ask("GET", f"{PATH}/groups", chosen | {"limit": "100"})["groups"]
    count = sum(one["letters"] for one in found)
    confirm(f"{verb} {count} dead letters of {len(found)} faults?", yes=yes)
