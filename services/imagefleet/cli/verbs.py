"""What verbs have in common: options, one question or several at once, and waiting.

They speak to the API of IMAGEFLEET_URL, with the key of IMAGEFLEET_KEY.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Final, TypeAlias, TypeVar
from urllib.parse import quote

import typer

from imagefleet.cli.output import (
    Columns,
    ExitCode,
    Table,
    complain,
    exit_code_of,
    finish,
    run_async,
    show,
    told,
)
from imagefleet.client.api import ApiClient, Document, open_client
from imagefleet.errors import FleetError
from imagefleet.jobs.model import JobState
from imagefleet.jobs.shapes.jobs import JobView
from imagefleet.jobs.shapes.shape import AcceptedImage, AcceptedJob
from imagefleet.settings import Client, load

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")]
Limit = Annotated[int, typer.Option(min=1, max=100, help="At most so many.")]
Cursor = Annotated[str | None, typer.Option(help="Go on behind the last list.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; `imagefleet audit` tells it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
ImageId = Annotated[str, typer.Argument(metavar="IMAGE", help="The image's id.")]
OfType = Annotated[str | None, typer.Option("--type", help="Only of this type.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")]

WITHIN: Final = 300  # seconds
WithinEach = Annotated[
    float, typer.Option(metavar="SECONDS", help="How long --wait waits for each.")
]
DRAINED_WITHIN: Final = 3600  # seconds
WaitDrained = Annotated[
    bool, typer.Option("--wait", help="Wait until nothing of it is processing.")
]
WithinSeconds = Annotated[float, typer.Option(help="How many seconds --wait waits.")]

POLL: Final = 1.0  # seconds
AT_ONCE: Final = 4

Answer = TypeVar("Answer")


def group(does: str) -> typer.Typer:
    """Verbs of one noun."""
    return typer.Typer(rich_markup_mode="markdown", no_args_is_help=True, help=does)


@asynccontextmanager
async def open_api() -> AsyncIterator[ApiClient]:
    """Speak to it for as long as a verb takes."""
    settings = load(Client)
    async with open_client(settings.url, settings.key.get_secret_value()) as client:
        yield client


def call(work: Callable[[ApiClient], Awaitable[Answer]]) -> Answer:
    """What a verb wants of it."""

    async def calling() -> Answer:
        async with open_api() as client:
            return await work(client)

    return run_async(calling())


def ask(
    method: str,
    path: str,
    parameters: Mapping[str, str | None] = {},
    document: object = None,
) -> Document:
    """One request to a route of operators, and its answer."""
    return call(lambda client: client.ask(method, path, parameters, document))


def below(path: str, *parts: str) -> str:
    """The path of something, whatever its name."""
    return "/".join([path, *(quote(part, safe="") for part in parts)])


def ends_in(seconds: float) -> float:
    """A moment of the running loop."""
    return asyncio.get_running_loop().time() + seconds


async def looks(ends_at: float) -> AsyncIterator[None]:
    """Look at once, and again every second until then."""
    clock = asyncio.get_running_loop().time
    yield
    while clock() < ends_at:
        await asyncio.sleep(POLL)
        yield


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
    show(documents[0] if alone else documents, lambda _: Table(rows, columns), as_json=as_json)
    for result in results:
        if error := result.document.get("error"):
            complain(f"{result.name}: {error}")
    finish(max(result.code for result in results))
