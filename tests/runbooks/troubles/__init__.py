"""How each trouble comes about, and what is to be seen of it.

queues      what waits, stops, sticks or fails
processes   who ends, hangs, or reaches nothing
images      what the edge and S3 are owed
levels      what producers were promised
deeper      the blocks of the pages that alerts lead on to
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tests.runbooks.fleet import Fleet
from tests.runbooks.pages import LONGEST_NAME


@dataclass(frozen=True, slots=True)
class Shows:
    """What a line is to print, as an expression that is looked for, and how it is to end."""

    text: str
    code: int = 0


Seen: TypeAlias = str | Shows


async def nothing() -> None:
    """What happens where nothing has to."""


@dataclass(slots=True, kw_only=True)
class Trouble:
    """A trouble that has come about; everything in it is about the lines of one page."""

    words: Mapping[str, str] = field(default_factory=dict)
    """For the placeholders."""
    console: tuple[int, ...] = (200,)
    """How its page may answer."""
    see: tuple[Seen, ...] = ()
    """One for each line of `See it`, or of a block of a deeper page."""
    do: Seen = ""
    worked: tuple[Seen, ...] = ()
    mended: Callable[[], Awaitable[object]] = nothing
    """What others do before somebody acts: the service is back."""
    then: Callable[[], Awaitable[object]] = nothing
    """What comes after that by which it is known: the next upload."""


Situation: TypeAlias = Callable[[Fleet], AbstractAsyncContextManager[Trouble]]

OF_ALERTS: Final[dict[str, Situation]] = {}
OF_BLOCKS: Final[dict[str, Situation]] = {}
"""By the page and the first line of the block."""


def when(name: str) -> Callable[[Callable[[Fleet], AsyncIterator[Trouble]]], Situation]:
    """The situation of an alert, or of a block of a deeper page, by its name there."""

    def keep(comes_about: Callable[[Fleet], AsyncIterator[Trouble]]) -> Situation:
        situation = asynccontextmanager(comes_about)
        if ": " in name:
            OF_BLOCKS[name[:LONGEST_NAME].rstrip()] = situation
        else:
            OF_ALERTS[name] = situation
        return situation

    return keep


from tests.runbooks.troubles import deeper, images, levels, processes, queues  # noqa: E402, F401
