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
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Final, Generic, TypeVar

from imagefleet.errors import FleetError, Unavailable

APART: Final = timedelta(milliseconds=20)  # fifty statements a second
MOST_AT_ONCE: Final = 500  # questions of one statement: a few milliseconds of index probes
MOST_WAITING: Final = 2000  # that is 80 ms; beyond, the process has no time to answer anyhow
MOST_ABSENT: Final = 10_000

_TOO_MANY: Final = "Too many look-ups at the moment."

Name = TypeVar("Name")
Found = TypeVar("Found")


class _Question(Generic[Found]):
    """Whoever asks about one name."""

    def __init__(self) -> None:
        # None: it is your turn to ask for all.
        self.askers: list[asyncio.Future[_Answer[Found] | None]] = []

    def answer(self, answer: "_Answer[Found] | FleetError") -> None:
        for asker in self.askers:
            if asker.done():
                continue
            if isinstance(answer, FleetError):
                asker.set_exception(answer)
            else:
                asker.set_result(answer)


@dataclass(frozen=True, slots=True)
class _Answer(Generic[Found]):
    found: Found | None


class Lookups(Generic[Name, Found]):
    """Finds what bears a name, for all who ask at the same time.

    One of them asks for all, and hands that over when it has its own answer, or goes away.
    """

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
        self._waiting: OrderedDict[Name, _Question[Found]] = OrderedDict()
        self._absent: OrderedDict[Name, float] = OrderedDict()
        self._is_asking = False
        self._asked_at = -math.inf

    async def find(self, name: Name) -> Found | None:
        """What bears this name; None: nothing does, or did a moment ago.

        Unavailable where Postgres is, or where too many ask.
        """
        absent_until = self._absent.pop(name, 0.0)
        if absent_until > monotonic():
            self._absent[name] = absent_until
            return None
        question = self._waiting.get(name)
        if question is None:
            if len(self._waiting) >= MOST_WAITING:
                raise Unavailable("busy", _TOO_MANY)
            question = self._waiting[name] = _Question()
        told = await self._hear(question) if self._is_asking else None
        answer = told or await self._ask_for_all(question)
        return answer.found

    async def _hear(self, question: _Question[Found]) -> _Answer[Found] | None:
        """The answer, from whoever asks; None: it is our turn."""
        me: asyncio.Future[_Answer[Found] | None] = asyncio.get_running_loop().create_future()
        question.askers.append(me)
        try:
            return await me
        except asyncio.CancelledError:
            if me.done() and not me.cancelled() and me.exception() is None and me.result() is None:
                self._hand_over()
            raise
        finally:
            question.askers.remove(me)

    async def _ask_for_all(self, mine: _Question[Found]) -> _Answer[Found]:
        self._is_asking = True
        me: asyncio.Future[_Answer[Found] | None] = asyncio.get_running_loop().create_future()
        mine.askers.append(me)
        try:
            while not me.done():
                await self._ask_some()
            answer = me.result()
        finally:
            mine.askers.remove(me)
            self._hand_over()
        return answer or _Answer(None)

    async def _ask_some(self) -> None:
        early = self._asked_at + self._apart - monotonic()
        if early > 0:
            await asyncio.sleep(early)
        taken: dict[Name, _Question[Found]] = {}
        while self._waiting and len(taken) < MOST_AT_ONCE:
            name, question = self._waiting.popitem(last=False)
            if question.askers:
                taken[name] = question
        self._asked_at = monotonic()
        try:
            answers = await self._ask(list(taken))
        except FleetError as error:
            for question in taken.values():
                question.answer(error)
            return
        except BaseException:
            # We are stopped, or broken; the others are not.
            self._put_back(taken)
            raise
        for name, question in taken.items():
            if name not in answers:
                self._remember_absent(name)
            question.answer(_Answer(answers.get(name)))

    def _put_back(self, taken: dict[Name, _Question[Found]]) -> None:
        for name, question in taken.items():
            asked_since = self._waiting.get(name)
            if asked_since is not None:
                # Each asker leaves by the question it came with, so both have one list.
                question.askers.extend(asked_since.askers)
                asked_since.askers = question.askers
        self._waiting = OrderedDict(taken | self._waiting)

    def _hand_over(self) -> None:
        """Let one of those who still wait ask for the rest."""
        self._is_asking = False
        for question in self._waiting.values():
            for asker in question.askers:
                if not asker.done():
                    self._is_asking = True
                    asker.set_result(None)
                    return
        self._waiting.clear()

    def _remember_absent(self, name: Name) -> None:
        self._absent[name] = monotonic() + self._absent_for
        if len(self._absent) > MOST_ABSENT:
            self._absent.popitem(last=False)
