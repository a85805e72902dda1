"""Forgets what is past retention: finished jobs, complete invalidations, dead workers, empty sums.

Every minute is a period, and the first process to take it prunes; a period that nobody took is not
made up for. Batches are small, so that no statement holds many rows for long.
"""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

import structlog

from imagefleet.store.database import Pool, acquire
from imagefleet.store.edge import prune_batches
from imagefleet.store.elections import begin_period, finish_period, forget_periods
from imagefleet.store.ledger import forget_empty_counts
from imagefleet.store.pruning import prune_jobs, prune_workers
from imagefleet.telemetry.upkeep import MaintenanceMetrics

PERIOD: Final = timedelta(minutes=1)
BATCH: Final = 500  # jobs of one statement
BATCHES: Final = 50  # of invalidations
MOST_BATCHES: Final = 20  # of one period: 10,000 jobs a minute leave faster than they come

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one look did; `taken` is false when another process has the period."""

    taken: bool
    jobs: int = 0
    batches: int = 0
    """Of invalidations that are complete."""


class Pruner:
    """Prunes once a period, whoever of the fleet comes first."""

    def __init__(self, pool: Pool, holder: UUID, metrics: MaintenanceMetrics) -> None:
        self._pool = pool
        self._holder = holder
        self._metrics = metrics

    async def run_once(self) -> Pruned:
        """Prune if nobody has taken the current period yet."""
        with self._metrics.query("begin_period"):
            async with acquire(self._pool) as connection:
                start = await begin_period(connection, "prune", PERIOD, self._holder)
        if start is None:
            return Pruned(taken=False)
        jobs, batches = await self._prune_jobs(), await self._prune_batches()
        pruned = Pruned(taken=True, jobs=jobs, batches=batches)
        with self._metrics.query("prune"):
            async with acquire(self._pool) as connection:
                await prune_workers(connection)
                await forget_empty_counts(connection)
                await forget_periods(connection)
                await finish_period(connection, "prune", start, asdict(pruned))
        if pruned.jobs:
            log.info("job.pruned", jobs=pruned.jobs)
        return pruned

    async def _prune_batches(self) -> int:
        """One of them has up to 3,000 debts; no more than a few dozen come in a minute."""
        with self._metrics.query("prune_batches"):
            async with acquire(self._pool) as connection:
                return await prune_batches(connection, limit=BATCHES)

    async def _prune_jobs(self) -> int:
        jobs = 0
        for _ in range(MOST_BATCHES):
            with self._metrics.query("prune_jobs"):
                async with acquire(self._pool) as connection:
                    batch = await prune_jobs(connection, limit=BATCH)
            jobs += batch
            if batch < BATCH:
                break
        return jobs
