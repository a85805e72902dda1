"""`imagefleet ledger` and `imagefleet prune`: whether all is there, and what is forgotten."""

from imagefleet.cli.operating import ask, moment
from imagefleet.cli.output import ExitCode, Json, finish, print_json, print_table, say


def ledger(as_json: Json = False) -> None:
    """Show where every accepted job is, and how far SQS and Postgres differ.

    Exits with 1 when jobs are missing.

    For example:

        imagefleet ledger
    """
    found = ask("GET", "/v1/operator/ledger")
    if as_json:
        print_json(found)
    else:
        names = ("accepted", "open", "completed", "failed", "pruned", "missing")
        print_table(("jobs", ""), [(name, found[name]) for name in names])
        say()
        rows = [
            (one["lane"], one["waiting"], one["expected"], one.get("drift", "?"))
            for one in found["drift"]
        ]
        columns = ("lane", "jobs waiting", "messages expected", "messages missing")
        print_table(columns, rows)
    finish(ExitCode.FAILED if found["missing"] else ExitCode.DONE)


def prune(as_json: Json = False) -> None:
    """Show what is past retention, and what pruning did lately.

    Maintenance prunes every minute by itself; nobody has to ask for it.

    For example:

        imagefleet prune
    """
    found = ask("GET", "/v1/operator/prune")
    if as_json:
        print_json(found)
        return
    least = "at least " if found["prunableIsAtLeast"] else ""
    say(f"{least}{found['prunable']} jobs are past {found['retentionDays']:g} days and will go")
    rows = [
        (moment(one["periodStart"]), moment(one.get("finishedAt")), one.get("jobs"))
        for one in found["runs"]
    ]
    print_table(("period (UTC)", "finished (UTC)", "jobs pruned"), rows)
