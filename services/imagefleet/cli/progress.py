"""What goes on while a verb works, and a page that is kept up to date."""

import asyncio
import io
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from datetime import UTC, datetime
from typing import TypeAlias

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from imagefleet.cli.output import View, complain, print_json, say, show, told
from imagefleet.cli.verbs import call
from imagefleet.client.api import ApiClient, Document
from imagefleet.errors import Unavailable
from imagefleet.telemetry.plain import plain

Tell: TypeAlias = Callable[[str], None]


@contextmanager
def waiting(what: str) -> Iterator[Tell]:
    """Show at the terminal that something goes on; what is yielded says what by now."""
    with _messages().status(Text(plain(what))) as status:
        yield lambda now: status.update(Text(plain(now)))


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar at the terminal; what is yielded moves it on by one."""
    # No markup: a column reads it by default.
    columns = (TextColumn(plain(what), markup=False), BarColumn(), MofNCompleteColumn())
    console = _messages()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("", total=total)
        yield lambda: progress.advance(bar)


def _messages() -> Console:
    return Console(file=sys.stderr, highlight=False)


class _Page(io.StringIO):
    """What a terminal would show."""

    def isatty(self) -> bool:
        return True


def keep_showing(
    asking: Callable[[ApiClient], Awaitable[Document]], view: View, *, every: float, as_json: bool
) -> None:
    """Ask again and again until Ctrl-C: a page on a terminal, in a pipe one block after the other.

    Who does not answer for a while is asked again, and what was seen last stays, with a remark.
    """
    console = Console(highlight=False) if sys.stdout.isatty() and not as_json else None

    async def showing(client: ApiClient) -> None:
        seen: Document | None = None
        with Live(console=console, auto_refresh=False) if console else nullcontext() as live:
            while True:
                remark = ""
                try:
                    seen = await asking(client)
                except Unavailable as error:
                    if seen is None:
                        raise
                    remark = f"not up to date: {told(error)}"
                if live:
                    live.update(_page(seen, view, remark), refresh=True)
                elif remark:
                    complain(remark)
                elif as_json:
                    print_json(seen, on_a_line=True)
                else:
                    say(f"{_now()}", "")
                    show(seen, view, as_json=False)
                    say()
                await asyncio.sleep(every)

    with suppress(KeyboardInterrupt):
        call(showing)


def _page(seen: Document, view: View, remark: str) -> Text:
    """As the terminal would show it; what it has no room for is not remarked each time."""
    with redirect_stdout(_Page()) as page, redirect_stderr(io.StringIO()):
        say(f"{_now()}, Ctrl-C ends", *filter(None, (remark,)), "")
        show(seen, view, as_json=False)
    return Text.from_ansi(page.getvalue())


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
