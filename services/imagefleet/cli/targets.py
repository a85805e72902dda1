"""`imagefleet targets`: what waits at a target of yours, and what becomes of it."""

from collections.abc import Iterator
from typing import Final

from imagefleet.cli.naming import Target
from imagefleet.cli.output import Columns, Part, at, filled, section, show
from imagefleet.cli.verbs import Json, Limit, OfType, Reason, ask, below, group
from imagefleet.client.api import Document

PATH: Final = "/v1/targets"

app = group("Look at what waits at a target of yours, hold it back, cancel it.")


@app.command("show")
def show_target(target: Target, limit: Limit = 20, as_json: Json = False) -> None:
    """Show whether it is paused, and its open jobs in the order that they run in.

    For example:

        imagefleet targets show image:$IMAGE
    """
    show(ask("GET", below(PATH, target), {"limit": str(limit)}), _shown, as_json=as_json)


def _shown(target: Document) -> Iterator[Part]:
    yield _paused(target)
    columns: Columns = {
        "job": "jobId", "type": "jobType", "status": "status", "created (UTC)": at("createdAt"),
        "next (UTC)": at("nextAttemptAt"),
    }  # fmt: skip
    yield from section(target["jobs"], columns, drops=("next (UTC)", "created (UTC)"))


def _paused(target: Document) -> str:
    pause = target.get("pause")
    if pause is None:
        return f"{target['target']} is not paused"
    why = f": {pause['reason']}" if "reason" in pause else ""
    return f"{target['target']} is paused by {pause.get('pausedBy', pause['by'])}{why}"


@app.command()
def pause(target: Target, reason: Reason, as_json: Json = False) -> None:
    """Hold back what waits there, and what is submitted meanwhile. What runs finishes.

    For example:

        imagefleet targets pause --reason "wrong originals" image:$IMAGE
    """
    answer = ask("PUT", below(PATH, target, "pause"), document={"reason": reason})
    show(answer, _paused, as_json=as_json)


@app.command()
def resume(target: Target, as_json: Json = False) -> None:
    """Lift a pause of yours, or of a job of yours that failed.

    For example:

        imagefleet targets resume image:$IMAGE
    """
    show(ask("DELETE", below(PATH, target, "pause")), _paused, as_json=as_json)


@app.command()
def cancel(
    target: Target,
    reason: Reason,
    job_type: OfType = None,
    as_json: Json = False,
) -> None:
    """Cancel whatever is open there, by one job; what is submitted later is left alone.

    For example:

        imagefleet targets cancel --reason "wrong originals" image:$IMAGE
    """
    document = filled(reason=reason, jobType=job_type)
    answer = ask("POST", below(PATH, target, "cancel"), document=document)
    show(answer, lambda job: f"{job['jobId']} is {job['status']}", as_json=as_json)
