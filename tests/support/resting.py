"""A rest that nobody waits for."""

from collections.abc import Callable
from datetime import timedelta


class Resting:
    """Rests without waiting, remembers for how long, and tells when the end is wished for."""

    def __init__(self, ends: Callable[[int], bool] = lambda _rests: False) -> None:
        self.rests: list[timedelta] = []
        self._ends = ends

    async def __call__(self, span: timedelta) -> bool:
        self.rests.append(span)
        return self._ends(len(self.rests))
