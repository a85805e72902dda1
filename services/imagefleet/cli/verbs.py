"""What verbs have in common: options, a question to the API, and waiting.

They speak to the API that `reaching` finds, and say which that was when it does not go well.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Final, TypeVar
from urllib.parse import quote

import typer

from imagefleet.cli.output import run_async
from imagefleet.cli.reaching import asked_of
from imagefleet.client.api import ApiClient, Document, open_client
from imagefleet.errors import FleetError, Misconfigured

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")]
Limit = Annotated[int, typer.Option(min=1, max=100, help="At most so many.")]
Cursor = Annotated[str | None, typer.Option(help="Go on behind the last list.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; `imagefleet audit` tells it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
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

STDIN: Final = Path("-")
MOST_READ: Final = 2**30  # bytes that are kept on this machine; of an image the API takes less
PIECE: Final = 2**18

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


def below(path: str, *parts: str) -> str:
    """The path of something, whatever its name."""
    return "/".join([path, *(quote(part, safe="") for part in parts)])


def a_file(named: str) -> Path:
    """A file that can be read; Typer's own check knows no `-`."""
    file = Path(named)
    if file != STDIN and not (file.is_file() and os.access(file, os.R_OK)):
        why = "cannot be read" if file.exists() else "does not exist"
        detail = f"file {named!r} {why}"
        raise typer.BadParameter(detail)
    return file


@contextmanager
def readable(file: Path) -> Iterator[Path]:
    """A file that can be sent again; of `-` what the standard input has."""
    if file != STDIN:
        yield file
        return
    with NamedTemporaryFile(prefix="imagefleet-") as kept:
        while piece := sys.stdin.buffer.read(PIECE):
            kept.write(piece)
            if kept.tell() > MOST_READ:
                detail = f"the standard input has more than {MOST_READ:,} bytes"
                raise Misconfigured(detail)
        kept.flush()
        yield Path(kept.name)


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
