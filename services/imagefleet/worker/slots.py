"""How many jobs at once: slots are reserved before a receive is sent, never more than are free."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

GATHER: Final = 0.02  # seconds: jobs that end together are replaced by one receive, not by several


class Slots:
    """The slots of one lane, each free, reserved by a receive on its way, or busy with a job."""

    def __init__(
        self, total: int, *, changed: Callable[["Slots"], object] = lambda _: None
    ) -> None:
        self.total = total
        self.reserved = 0
        self.busy = 0
        self._changed = changed
        self._event = asyncio.Event()
        changed(self)

    @property
    def free(self) -> int:
        """How many nobody uses."""
        return self.total - self.reserved - self.busy

    async def reserve(self, most: int) -> int:
        """Wait until at least one is free and take up to `most`; how many were taken."""
        await self._until_free(1)
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER):
                await self._until_free(min(most, self.total))
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
        await self._until_free(self.total)

    async def _until_free(self, count: int) -> None:
        while self.free < count:
            self._event.clear()
            await self._event.wait()

    def _tell(self) -> None:
        self._event.set()
        self._changed(self)
