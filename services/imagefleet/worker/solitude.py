"""A suspect has its worker to itself: while one runs there, that worker begins nothing else.

Whoever died with a killer is a suspect as well, so a crash may only be blamed on a job that had its
worker to itself. Before a suspect is claimed this worker stops beginning jobs and lets those that
run come to their end. It does not wait for long ones at first, and longer each time. Nor do
suspects, however many wait, take more than half of a worker's time from all the others.
"""

import asyncio
from datetime import timedelta
from typing import Final

FIRST_PATIENCE: Final = timedelta(minutes=1)  # most jobs take seconds
LONGEST_PATIENCE: Final = timedelta(hours=2)  # longer than any job may take by itself
TURN: Final = timedelta(seconds=1)  # after a suspect, for others to begin something


class Solitude:
    """Whether this worker runs whatever comes, or one job alone; of one event loop."""

    def __init__(self, *, shared: bool = True) -> None:
        """Not `shared` is a worker that has no other lane."""
        self.patience = FIRST_PATIENCE
        """How long the next suspect waits for what runs."""
        self._shared = shared
        self.others = 0
        """How many jobs run that are no suspects, and claims on their way."""
        self._begun_since = 0
        self._shut_at: float | None = None
        self._shut_for = 0.0
        self._changed = asyncio.Event()
        self._now = asyncio.get_running_loop().time

    @property
    def is_shut(self) -> bool:
        """Whether nothing else may be begun."""
        return self._shut_at is not None

    async def opened(self) -> None:
        """Return when anything may be begun."""
        while self.is_shut:
            await self._until_changed()

    def enter(self) -> None:
        """Count a job that is no suspect, or the claim of some, until it leaves."""
        self.others += 1
        self._begun_since += 1

    def leave(self) -> None:
        """End what entered."""
        self.others -= 1
        self._changed.set()

    async def begin(self) -> bool:
        """Shut out all others and wait until none is left; False: they take too long, try again.

        Whoever got True ends it.
        """
        self._shut_at = self._now()
        try:
            async with asyncio.timeout(self.patience.total_seconds()):
                while self.others:
                    await self._until_changed()
        except BaseException as error:
            self.end()
            if not isinstance(error, TimeoutError):
                raise
            self.patience = min(self.patience * 2, LONGEST_PATIENCE)
            return False
        self.patience = FIRST_PATIENCE
        return True

    def end(self) -> None:
        """Let others begin again."""
        assert self._shut_at is not None  # noqa: S101 - ended once, by who began
        self._shut_for, self._shut_at = self._now() - self._shut_at, None
        self._begun_since = 0
        self._changed.set()

    async def others_had_their_turn(self) -> None:
        """Return when the next suspect may come: if others have work, after as long as the last."""
        if not self._shared or not self._shut_for:
            return
        turn = min(self._shut_for, TURN.total_seconds())
        await asyncio.sleep(turn)
        if self._begun_since:
            await asyncio.sleep(self._shut_for - turn)
        self._shut_for = 0.0

    async def _until_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()
