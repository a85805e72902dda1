"""What came of each thing that a verb asked for, a few at a time, and how all of it is told."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeAlias

from imagefleet.cli.output import (
    Columns,
    ExitCode,
    Table,
    complain,
    exit_code_of,
    finish,
    show,
    told,
)
from imagefleet.cli.reaching import asked_of
from imagefleet.cli.verbs import open_api
from imagefleet.client.api import ApiClient
from imagefleet.errors import FleetError
from imagefleet.jobs.model import JobState
from imagefleet.jobs.shapes.jobs import JobView
from imagefleet.jobs.shapes.shape import AcceptedImage, AcceptedJob

AT_ONCE: Final = 4


@dataclass(slots=True)
class Result:
    """What came of one thing that was asked for, alone or with others."""

    name: str
    """As its error is told."""
    document: dict[str, object]
    """For scripts."""
    more: dict[str, object] = field(default_factory=dict)
    """For people alone."""
    code: ExitCode = ExitCode.DONE

    def accepted(self, accepted: AcceptedImage | AcceptedJob) -> None:
        """It is accepted, and has a job."""
        self.document |= {"jobId": str(accepted.job_id), "status": accepted.status.value}

    def ended(self, job: JobView) -> None:
        """Its job is over."""
        self.document["status"], self.more["progress"] = job.status.value, job.steps
        if job.status is JobState.FAILED:
            self.document["error"] = why(job)
            self.code = ExitCode.FAILED

    def refused(self, error: FleetError) -> None:
        """It was not done, or nobody knows yet."""
        self.document["error"], self.code = told(error), exit_code_of(error)


Asking: TypeAlias = Callable[[ApiClient, Result], Awaitable[None]]


def why(failed: JobView) -> str:
    """What is told of a job that failed."""
    return failed.failure.message if failed.failure else "failed"


async def wait_for(client: ApiClient, result: Result, within: float) -> None:
    """Wait for the end of its job."""
    job_id = str(result.document["jobId"])
    result.ended((await client.finished_job(job_id, within=timedelta(seconds=within))).shape)


async def each(
    results: Sequence[Result],
    asking: Asking | None,
    within: float | None = None,
    *,
    told_of_one: Callable[[], None] = lambda: None,
) -> None:
    """Ask for each, a few at a time, and wait for their jobs; an error stays with its own."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def ask_for(client: ApiClient, result: Result) -> None:
        try:
            if asking is not None:
                async with slots:
                    await asking(client, result)
            if within is not None:
                await wait_for(client, result, within)
        except FleetError as error:
            result.refused(error)
        told_of_one()

    async with open_api() as client, asyncio.TaskGroup() as group:
        for result in results:
            group.create_task(ask_for(client, result))


def tell(
    results: Sequence[Result], columns: Columns, *, as_json: bool, alone: bool = False
) -> None:
    """All of them and their errors; the verb ends with the worst. One `alone` is no list."""
    documents = [result.document for result in results]
    rows = [result.document | result.more for result in results]
    table = Table(rows, columns, {"wraps": ("file", "progress")})
    show(documents[0] if alone else documents, lambda _: table, as_json=as_json)
    for result in results:
        if error := result.document.get("error"):
            complain(f"{result.name}: {error}")
    if any(result.code in {ExitCode.REFUSED, ExitCode.UNAVAILABLE} for result in results):
        complain(str(asked_of()))
    finish(max(result.code for result in results))
