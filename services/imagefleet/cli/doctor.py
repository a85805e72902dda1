"""`imagefleet doctor`: is everything there that a process needs, and if not, what is to be done."""

from dataclasses import asdict
from typing import Annotated

import typer

from imagefleet.cli.output import Columns, ExitCode, GivesWay, Table, finish, run_async, show
from imagefleet.cli.verbs import Json
from imagefleet.doctor import Stands
from imagefleet.doctor.inside import examine


def doctor(
    process: Annotated[
        Stands | None, typer.Option("--for", "--as", help="The process whose environment this is.")
    ] = None,
    replicas: Annotated[
        list[str],
        typer.Option(
            metavar="PROCESS=N",
            help="How many there will be, of N connections a pool: worker=20, worker=20x4, or "
            "pgbouncer=2x25; what is not told is counted. Repeat for more.",
        ),
    ] = [],  # noqa: B006 - Typer reads it, nobody writes it
    as_json: Json = False,
) -> None:
    """Check everything that a process depends on, one line each, from where it stands.

    Run it in the container of the process, which is allowed what it is allowed: for each one what
    it does itself is tried, and no more. Exits with 1 when a check fails. Where the process writes
    to a bucket, one object is written, and deleted if that is allowed.

    All connections that the fleet may open are held against what Postgres lets in.

    For example:

        imagefleet doctor --for worker
        imagefleet doctor --for api --replicas api=6 --replicas worker=40
    """
    checks = run_async(examine(process or "", replicas))
    failed = [check for check in checks if not check.ok]
    columns: Columns = {
        "": lambda check: "ok" if check.ok else "failed",
        "check": "name",
        "found": "found",
        "what to do": "advice",
    }
    document = {"ok": not failed, "checks": [asdict(check) for check in checks]}
    gives_way: GivesWay = {"wraps": ("found", "what to do")}
    show(document, lambda _: Table(checks, columns, gives_way), as_json=as_json)
    finish(ExitCode.FAILED if failed else ExitCode.DONE)
