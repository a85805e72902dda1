"""How many jobs at once: slots are reserved before a receive is sent, never more than are free."""

import asyncio


class Slots:
    """The slots of one lane. Whoever reserves gives each of them back once."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._changed = asyncio.Event()

    @property
    def busy(self) -> int:
        """How many are reserved or in use."""
        return self.total - self._free

    async def reserve(self, most: int) -> int:
        """Wait until at least one is free and take up to `most`; how many were taken."""
        while self._free == 0:
            self._changed.clear()
            await self._changed.wait()
        taken = min(most, self._free)
        self._free -= taken
        return taken

    def release(self, count: int = 1) -> None:
        """Give slots back."""
        self._free += count
        self._changed.set()

    async def all_free(self) -> None:
        """Return when nothing is reserved or running."""
        while self._free < self.total:
            self._changed.clear()
            await self._changed.wait()
