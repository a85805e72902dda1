"""What verbs have in common: options, a question to the API, and waiting.

An option has one meaning, wherever it is taken: those that several verbs take are declared here.
Verbs speak to the API that `reaching` finds, and say which that was when it does not go well.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeVar
from urllib.parse import quote

import typer

from imagefleet.cli.output import confirm, run_async, show
from imagefleet.cli.reaching import asked_of
from imagefleet.client.api import ApiClient, Document, open_client
from imagefleet.errors import FleetError

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]

_REASON = typer.Option("--reason", help="Why; `imagefleet audit` tells it.")
Reason = Annotated[str, _REASON]
ReasonIfAny = Annotated[str | None, _REASON]

Limit = Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")]
Cursor = Annotated[str | None, typer.Option(help="Go on behind the last list.")]
All = Annotated[bool, typer.Option("--all", help="All there are, instead of some.")]
History = Annotated[bool, typer.Option("--history", help="Also what is over by now.")]

OfType = Annotated[str | None, typer.Option("--type", help="Of this type.")]
OfStatus = Annotated[str | None, typer.Option("--status", help="Of this status.")]
OfCode = Annotated[str | None, typer.Option("--code", help="Only with this failure code.")]
OfLane = Annotated[
    str | None, typer.Option("--lane", help="Of this lane: fast, general or quarantine.")
]
_TENANT = typer.Option("--tenant", help="The tenant, by its name.")
Tenant = Annotated[str, _TENANT]
OfTenant = Annotated[str | None, _TENANT]
EveryTenant = Annotated[bool, typer.Option("--every-tenant", help="Of all tenants: for operators.")]
Full = Annotated[
    bool, typer.Option("--full", help="All there is of it, of any tenant: for operators.")
]
OfTarget = Annotated[
    str | None, typer.Option("--target", help="Of this target of a tenant, such as image:ID.")
]
OfReference = Annotated[str | None, typer.Option("--reference", help="Of this reference.")]
Correlation = Annotated[
    str | None, typer.Option("--correlation-id", help="What belongs together has the same.")
]
Parent = Annotated[str | None, typer.Option("--parent", metavar="JOB", help="The parent's id.")]
Priority = Annotated[
    int | None, typer.Option(min=0, max=1000, help="Lower is earlier; below 50 is urgent.")
]
RunAt = Annotated[
    str | None, typer.Option(metavar="TIME", help="Not before; without a zone it is UTC.")
]
DedupKey = Annotated[str | None, typer.Option(help="One open job of the type may have it.")]
MaxAttempts = Annotated[
    int | None, typer.Option(min=1, max=100, help="How often it is tried at most.")
]
Recipe = Annotated[
    str | None, typer.Option("--recipe", help="The recipe, which says what variants are made.")
]
_SET = typer.Option("--set", metavar="NAME=VALUE", help="A name and its value. Repeat for more.")
Set = Annotated[list[str], _SET]
SetIfAny = Annotated[list[str] | None, _SET]
_RATE = typer.Option("--rate", metavar="R", min=0.01, help="So many a second.")
Rate = Annotated[float, _RATE]
RateIfAny = Annotated[float | None, _RATE]
_INTO = typer.Option("--into", metavar="PATH", help="Where to; - is the standard output.")
Into = Annotated[Path, _INTO]
IntoIfAny = Annotated[Path | None, _INTO]
RefuseNew = Annotated[bool, typer.Option("--refuse-new", help="Refuse new ones as well.")]

Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is done.")]
Within = Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait at most.")]

Watch = Annotated[
    bool, typer.Option("--watch", help="Keep it up to date until Ctrl-C; in a pipe, again.")
]
Every = Annotated[float, typer.Option(metavar="SECONDS", min=0.2, help="How often --watch looks.")]

_STATE_DIR = typer.Option("--state-dir", metavar="FOLDER", help="The folder of `imagefleet up`.")
StateDir = Annotated[Path, _STATE_DIR]
StateDirIfAny = Annotated[Path | None, _STATE_DIR]

WITHIN: Final = 300  # seconds
DRAINED_WITHIN: Final = 3600  # seconds

POLL: Final = 1.0  # seconds

STDIN: Final = Path("-")

Answer = TypeVar("Answer")


def group(does: str) -> typer.Typer:
    """Verbs of one noun."""
    return typer.Typer(rich_markup_mode="markdown", no_args_is_help=True, help=does)


@asynccontextmanager
async def open_api() -> AsyncIterator[ApiClient]:
    """Speak to it for as long as a verb takes."""
    api = asked_of()
    async with open_client(api.url, api.key) as client:
        try:
            yield client
        except FleetError as error:
            error.add_note(str(api))
            raise


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


class Many(NamedTuple):
    """What an order about many is told in."""

    counts: str
    """The name of how many they are, in the answer."""
    things: str
    done: str
    question: str


def order_many(
    path: str, body: Mapping[str, object], many: Many, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Leave many to one job: first how many they are, then the question, then the order."""
    answer = ask("POST", path, document={**body, "dryRun": True})
    count = at_least(answer[many.counts], answer[f"{many.counts}IsAtLeast"])
    if not dry_run:
        confirm(many.question.format(count), yes=yes)
        answer = ask("POST", path, document=body)

    def told(answer: Document) -> str:
        if dry_run:
            return f"{count} {many.things} would be {many.done}"
        return f"{count} {many.things} are {many.done} by job {answer['jobId']}"

    show(answer, told, as_json=as_json)


def at_least(count: int, more: bool) -> str:  # noqa: FBT001 - both are of one answer
    """So many, or more than were counted."""
    return f"{count} or more" if more else str(count)


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
