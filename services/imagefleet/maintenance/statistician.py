"""Rolls up what ended: a minute at a time, once it is over, and once more when all have committed.

One elected process does it; two who do for a moment take one minute after the other
(`store/fleet/rollups.py`). What it is behind with only waits, and is shown later.
"""

from datetime import timedelta
from typing import Final
from uuid import UUID

from imagefleet.maintenance.duties import Office, Rest, keep_at
from imagefleet.store.database import Pool
from imagefleet.store.fleet.rollups import add_entries, prune_rollups, roll_up
from imagefleet.telemetry.maintenance import MaintenanceMetrics

OFFICE: Final = "statistician"
ROLL_UP_EVERY: Final = timedelta(seconds=5)  # also renews the office, which is free after ten
WITHIN: Final = timedelta(seconds=20)  # of one step
ENTRIES: Final = 5000  # of one statement


class Statistician:
    """Holds the office if it can, and keeps the rollups while it does."""

    def __init__(
        self, pool: Pool, holder: UUID, metrics: MaintenanceMetrics, *, rest: Rest
    ) -> None:
        self.office = Office(OFFICE, pool, holder)
        self._pool = pool
        self._metrics = metrics
        self._rest = rest

    async def run_once(self) -> int:
        """Look at what minutes there are to look at, if the office is ours; how many."""
        if not await self.office.held():
            return 0
        looks = 0

        async def look() -> bool:
            nonlocal looks
            async with self._pool.use("roll_up") as connection:
                found = await roll_up(connection)
            if found is None:
                return False
            looks += 1
            self._metrics.upkept("roll_up", found.added)
            return True

        async def add() -> bool:
            async with self._pool.use("add_entries") as connection:
                return await add_entries(connection, limit=ENTRIES) >= ENTRIES

        await keep_at(look, within=WITHIN, rest=self._rest)
        if looks:  # so once a minute: each time the row of a day is written anew
            await keep_at(add, within=WITHIN, rest=self._rest)
            async with self._pool.use("prune_rollups") as connection:
                await prune_rollups(connection)
        return looks
