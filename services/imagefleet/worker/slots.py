"""How many jobs at once: slots are reserved before a receive is sent, never more than are free.

Operators may have fewer of them used, of a lane or of a job type, while the worker runs.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

GATHER: Final = 0.02  # seconds: jobs that end together are replaced by one receive, not by several


class Slots:
    """The slots of one lane, each free, reserved by a receive on its way, or busy with a job."""

    def __init__(
        self, total: int, *, changed: Callable[["Slots"], object] = lambda _: None
    ) -> None:
        self.total = total
        self.in_use = total
        """Of all of them; what runs or is on its way may be more for a while, after a change."""
        self.reserved = 0
        self.busy = 0
        self._changed = changed
        self._event = asyncio.Event()
        changed(self)

    @property
    def free(self) -> int:
        """How many somebody may use and nobody does."""
        return max(0, self.in_use - self.reserved - self.busy)

    @property
    def surplus(self) -> int:
        """How many are used, or reserved, that should not be any more."""
        return max(0, self.reserved + self.busy - self.in_use)

    def use(self, most: int) -> None:
        """Use no more than so many from now on; jobs that run finish."""
        self.in_use = min(most, self.total)
        self._tell()

    async def reserve(self, most: int) -> int:
        """Wait until at least one is free and take up to `most`; how many were taken."""
        taken = 0
        while not taken:  # fewer may be in use by the time that some are free
            await self._until_free(1)
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER):
                    await self._until_free(min(most, self.in_use))
            taken = min(most, self.free)
        self.reserved += taken
        self._tell()
        return taken

    def give_back(self, count: int) -> None:
        """Free reserved slots for which nothing came."""
        self.reserved -= count
        self._tell()

    def occupy(self) -> None:
        """Make a reserved slot a busy one."""
        self.reserved -= 1
        self.busy += 1
        self._tell()

    def leave(self) -> None:
        """Free a busy slot."""
        self.busy -= 1
        self._tell()

    async def all_free(self) -> None:
        """Return when nothing is reserved or busy."""
        while self.reserved or self.busy:
            await self._changes()

    async def _until_free(self, count: int) -> None:
        while self.free < max(count, 1):
            await self._changes()

    async def _changes(self) -> None:
        self._event.clear()
        await self._event.wait()

    def _tell(self) -> None:
        self._event.set()
        self._changed(self)


class TypeSlots:
    """How many jobs of a type run at once, of the types for which that was turned."""

    def __init__(self) -> None:
        self._most: Mapping[str, int] = {}
        self._busy: Counter[str] = Counter()

    def use(self, most: Mapping[str, int]) -> None:
        """Use no more than so many of these types from now on; all of any other."""
        self._most = most

    @property
    def bound(self) -> bool:
        """Whether any type is."""
        return bool(self._most)

    def has_room(self, job_type: str) -> bool:
        """Whether another job of this type may begin."""
        return job_type not in self._most or self._busy[job_type] < self._most[job_type]

    def occupy(self, job_type: str) -> None:
        """Count one that runs, or is about to."""
        self._busy[job_type] += 1

    def leave(self, job_type: str) -> None:
        """Count one less."""
        self._busy[job_type] -= 1
        if not self._busy[job_type]:
            del self._busy[job_type]
