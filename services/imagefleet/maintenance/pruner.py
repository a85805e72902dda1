"""Forgets what is past retention: jobs and letters, what images leave behind, dead workers.

Every minute is a period, and the first process to take it prunes; a period that nobody took is not
made up for. Pages are small, so that no statement holds many rows for long, and a backlog is worked
off until the period is over. What is kept though it is old (a failure that nobody has acknowledged)
is passed, and looked at again an hour later.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Final, Protocol
from uuid import UUID

import structlog

from imagefleet.maintenance.duties import Period, Rest, keep_at
from imagefleet.store.database import Connection, Pool
from imagefleet.store.fleet.bookkeeping import forget_empty_counts
from imagefleet.store.fleet.elections import forget_periods
from imagefleet.store.fleet.workers import prune_workers
from imagefleet.store.images.pruning import (
    prune_batches,
    prune_images,
    prune_revisions,
    prune_uploads,
)
from imagefleet.store.jobs.pruning import Page, Place, prune_jobs
from imagefleet.store.letters.letters import prune_strays
from imagefleet.telemetry.maintenance import MaintenanceMetrics

PERIOD: Final = timedelta(minutes=1)
BATCH: Final = 500  # rows looked at by one statement
BATCHES: Final = 50  # of invalidations, each with up to 3,000 debts
JOBS_WITHIN: Final = timedelta(seconds=30)  # of one period
OTHERS_WITHIN: Final = timedelta(seconds=4)  # each of them
LOOK_AGAIN: Final = timedelta(hours=1)

log = structlog.get_logger()


class Prune(Protocol):
    """Looks at a page of what is past retention, and forgets what may go."""

    async def __call__(
        self, connection: Connection, *, limit: int, after: Place | None = None
    ) -> Page:
        """Go on behind a place, or begin with the oldest."""
        ...


PRUNES: Final[Mapping[str, Prune]] = MappingProxyType(
    {
        "jobs": prune_jobs,
        "uploads": prune_uploads,
        "revisions": prune_revisions,
        "images": prune_images,
        "letters": prune_strays,
        "batches": prune_batches,
    }
)


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one look did; `taken` is false when another process has the period."""

    taken: bool
    jobs: int = 0
    uploads: int = 0
    revisions: int = 0
    images: int = 0
    """That were deleted, with all that was said of them."""
    letters: int = 0
    """Of no job."""
    batches: int = 0
    """Of invalidations that are complete."""
    behind_seconds: float = 0.0
    """For how long the oldest that was not looked at yet has been past retention."""


class Pruner:
    """Prunes once a period, whoever of the fleet comes first."""

    def __init__(
        self, pool: Pool, holder: UUID, metrics: MaintenanceMetrics, *, rest: Rest
    ) -> None:
        self._pool = pool
        self._period = Period("prune", PERIOD, pool, holder)
        self._metrics = metrics
        self._rest = rest
        self._places: dict[str, Place | None] = {}
        self._again_at = 0.0

    async def run_once(self) -> Pruned:
        """Prune if nobody has taken the current period yet."""
        return await self._period.once(self._prune_all) or Pruned(taken=False)

    async def _prune_all(self) -> Pruned:
        self._look_again()
        gone: dict[str, int] = {}
        behind = timedelta(0)
        for name, prune in PRUNES.items():
            gone[name], late = await self._prune(name, prune)
            behind = max(behind, late)
        pruned = Pruned(taken=True, **gone, behind_seconds=behind.total_seconds())
        async with self._pool.use("forget") as connection:
            await prune_workers(connection)
            await forget_empty_counts(connection)
            await forget_periods(connection)
        if any(gone.values()):
            log.info("job.pruned", **gone)
        return pruned

    def _look_again(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._again_at:
            self._places = {}
            self._again_at = now + LOOK_AGAIN.total_seconds()

    async def _prune(self, name: str, prune: Prune) -> tuple[int, timedelta]:
        """How many went, and how far this is behind."""
        pruned, behind = 0, timedelta(0)
        limit = BATCHES if name == "batches" else BATCH

        async def batch() -> bool:
            nonlocal pruned, behind
            async with self._pool.use(f"prune_{name}") as connection:
                page = await prune(connection, limit=limit, after=self._places.get(name))
            self._metrics.upkept(f"prune_{name}", page.pruned)
            self._places[name] = page.last or self._places.get(name)
            pruned += page.pruned
            behind = page.behind
            return page.seen >= limit

        within = JOBS_WITHIN if name == "jobs" else OTHERS_WITHIN
        is_through = await keep_at(batch, within=within, rest=self._rest)
        return pruned, timedelta(0) if is_through else behind
