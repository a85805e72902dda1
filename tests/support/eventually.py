"""The only wait in tests, for an event and never for a time; and a rest that nobody waits for."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar, overload

T = TypeVar("T")

FIRST_PAUSE = 0.001  # seconds
LONGEST_PAUSE = 0.05


@overload
async def eventually(check: Callable[[], Awaitable[T | None]], *, within: float = ...) -> T: ...
@overload
async def eventually(check: Callable[[], T | None], *, within: float = ...) -> T: ...
async def eventually(check: Callable[[], object], *, within: float = 2.0) -> object:
    """Call `check` until it returns something true without an assertion failing; give that back.

    Its last failure is what the test reports.
    """
    deadline = time.monotonic() + within
    pause = FIRST_PAUSE
    while True:
        failure: AssertionError | None = None
        try:
            answer = check()
            outcome = await answer if inspect.isawaitable(answer) else answer
            if outcome:
                return outcome
        except AssertionError as error:
            failure = error
            outcome = None
        if time.monotonic() > deadline:
            message = f"not within {within} s: {failure or f'the last answer was {outcome!r}'}"
            raise AssertionError(message) from failure
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE)


class Resting:
    """Rests without waiting, remembers for how long, and tells when the end is wished for."""

    def __init__(self, ends: Callable[[int], bool] = lambda _rests: False) -> None:
        self.rests: list[timedelta] = []
        self._ends = ends

    async def __call__(self, span: timedelta) -> bool:
        self.rests.append(span)
        return self._ends(len(self.rests))
