"""Asking Postgres about what anybody may ask for: many questions, few statements.

Whoever can make up names (keys, addresses of images) could have a statement for each. Here they ask
together: one statement at a time is under way, it asks about all who waited for the one before, and
begins so long after that one at the earliest. That bounds statements and connections, whatever is
sent; and nobody is refused because others ask for nonsense, from the same address too.

What was not there is believed not to be there for a moment more. What was there is never kept here:
each answer is read after its question was asked.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from typing import Final, Generic, TypeVar

from imagefleet.errors import Unavailable
from imagefleet.runtime import Batcher

APART: Final = timedelta(milliseconds=20)  # fifty statements a second
MOST_AT_ONCE: Final = 500  # questions of one statement: a few milliseconds of index probes
MOST_WAITING: Final = 2000  # that is 80 ms; beyond, the process has no time to answer anyhow
MOST_ABSENT: Final = 10_000

_TOO_MANY: Final = "Too many look-ups at the moment."

Name = TypeVar("Name")
Found = TypeVar("Found")


class Lookups(Generic[Name, Found]):
    """Finds what bears a name, for all who ask at the same time."""

    def __init__(
        self,
        ask: Callable[[Sequence[Name]], Awaitable[Mapping[Name, Found]]],
        *,
        absent_for: timedelta,
        apart: timedelta = APART,
    ) -> None:
        """Ask by this function, whose time is bounded by itself."""
        self._ask = ask
        self._absent_for = absent_for.total_seconds()
        self._apart = apart.total_seconds()
        self._questions: Batcher[Name, Found | None] = Batcher(
            self._ask_some, name="lookups", linger=0, most=MOST_AT_ONCE
        )
        self._waiting: dict[Name, asyncio.Future[Found | None]] = {}
        self._absent: OrderedDict[Name, float] = OrderedDict()
        self._asked_at = -math.inf

    async def find(self, name: Name) -> Found | None:
        """What bears this name; None: nothing does, or did a moment ago.

        Unavailable where Postgres is, or where too many ask.
        """
        absent_until = self._absent.pop(name, 0.0)
        if absent_until > monotonic():
            self._absent[name] = absent_until
            return None
        answer = self._waiting.get(name)
        if answer is None:
            if len(self._waiting) >= MOST_WAITING:
                raise Unavailable("busy", _TOO_MANY)
            answer = self._waiting[name] = self._questions.put(name)
            answer.add_done_callback(_heard)
        return await asyncio.shield(answer)  # whoever goes away may not be the only one

    async def _ask_some(self, names: Sequence[Name]) -> Sequence[Found | None]:
        early = self._asked_at + self._apart - monotonic()
        if early > 0:
            await asyncio.sleep(early)
        self._asked_at = monotonic()
        for name in names:  # who asks from now on asks anew
            del self._waiting[name]
        answers = await self._ask(names)
        for name in names:
            if name not in answers:
                self._remember_absent(name)
        return [answers.get(name) for name in names]

    def _remember_absent(self, name: Name) -> None:
        self._absent[name] = monotonic() + self._absent_for
        if len(self._absent) > MOST_ABSENT:
            self._absent.popitem(last=False)


def _heard(answer: asyncio.Future[Found | None]) -> None:
    """Nobody may be left to hear it, and whoever collects it must not tell it."""
    if not answer.cancelled():
        answer.exception()
