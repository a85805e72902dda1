"""`imagefleet workers`: who works, and on what."""

from typing import Annotated

import typer

from imagefleet.cli.operating import ask, moment
from imagefleet.cli.output import Json, print_json, print_table, say
from imagefleet.client.api import Document

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True, help="Look at workers.")


@app.callback()
def workers() -> None:
    """Look at workers."""


@app.command("list")
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
    found = ask("GET", "/v1/operator/workers", {"all": str(everybody).lower()})
    if as_json:
        print_json(found)
        return
    rows = [
        (one["workerId"], one["host"], one["pid"], one["version"], " ".join(one["lanes"]),
         f"{len(one['held'])}/{one['slots']}", f"{one['silentFor']:.0f} s ago", _state(one))
        for one in found["workers"]
    ]  # fmt: skip
    print_table(("worker", "host", "pid", "version", "lanes", "busy", "beat", "state"), rows)
    if jobs:
        held = [
            (job["jobId"], job["tenant"], job["jobType"], job["lane"], moment(job["claimedAt"]),
             worker["workerId"])
            for worker in found["workers"]
            for job in worker["held"]
        ]  # fmt: skip
        say()
        print_table(("job", "tenant", "type", "lane", "claimed (UTC)", "worker"), held)


def _state(worker: Document) -> str:
    if worker.get("deadAt"):
        return str(worker["deadWhy"])
    return "draining" if worker.get("drainingSince") else "working"
