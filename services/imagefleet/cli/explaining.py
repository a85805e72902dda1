"""`imagefleet jobs explain` and `queue explain`: why a job does not run, why nothing moves."""

from collections.abc import Iterator
from typing import Annotated, Final

import typer

from imagefleet.cli.naming import AnyJobId
from imagefleet.cli.output import Columns, Fields, Part, section, show
from imagefleet.cli.verbs import Json, ask, below
from imagefleet.client.api import Document

JOBS: Final = "/v1/operator/jobs"
LANES: Final = "/v1/operator/lanes"


def explain_job(job_id: AnyJobId, as_json: Json = False) -> None:
    """Say why a job does not run, by the rule that claims obey.

    For example:

        imagefleet jobs explain 0199a5c2-7d41
    """
    show(ask("GET", below(JOBS, job_id, "explain")), _job, as_json=as_json)


def _job(verdict: Document) -> Iterator[Part]:
    names = (
        "reason", "status", "attempts", "maxAttempts", "crashes", "until", "ringDueAt",
        "announcedAt",
    )  # fmt: skip
    yield verdict["sentence"]
    yield verdict["laneSentence"]
    yield Fields({name: verdict[name] for name in names if name in verdict})
    if verdict["neighbours"][1:]:
        columns: Columns = {"on its target": "jobId", "type": "jobType", "status": "status"}
        yield from section(verdict["neighbours"], columns)


def explain_lane(
    lane: Annotated[str, typer.Argument(metavar="LANE", help="fast, general or quarantine.")],
    as_json: Json = False,
) -> None:
    """Say why what waits in a lane does not run.

    For example:

        imagefleet queue explain general
    """
    show(ask("GET", below(LANES, lane, "explain")), _lane, as_json=as_json)


def _lane(lane: Document) -> Iterator[Part]:
    yield lane["sentence"]
    yield from lane["more"]
    waiting = f"{lane['waiting']} or more" if lane["waitingIsAtLeast"] else lane["waiting"]
    busy = f"{lane['busy']}/{lane['slots']}"
    announced = f"{lane['announced']} of {lane['window']}"
    yield Fields(
        {"reason": lane["reason"], "workers": lane["workers"], "busy": busy}
        | {"waiting": waiting, "announced": announced}
    )
