"""Keeps the ledger's book: folds entries into sums, and proves the sums against the rows.

One elected process does both; of two that fold at once one finds nothing, and of two proofs of an
hour one is refused. What is not folded yet is read with every sample, so entries must not pile up;
what is not proven only waits.
"""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import structlog

from imagefleet.maintenance.duties import Office, Rest, keep_at
from imagefleet.store.database import Pool
from imagefleet.store.fleet.bookkeeping import Proof, fold_entries, fold_ledger, prove_hour
from imagefleet.telemetry.maintenance import MaintenanceMetrics

OFFICE: Final = "bookkeeper"
FOLD_EVERY: Final = timedelta(seconds=2)  # also renews the office, which is free after ten
PROVE_EVERY: Final = timedelta(seconds=10)
WITHIN: Final = timedelta(seconds=20)  # of one step
ENTRIES: Final = 5000  # of one statement
PAGE: Final = 20_000  # rows of one statement
PROVE_AGAIN: Final = timedelta(days=7)
AT_ONCE: Final = timedelta(0)

log = structlog.get_logger()


class Bookkeeper:
    """Holds the office if it can, and keeps the book while it does."""

    def __init__(
        self, pool: Pool, holder: UUID, metrics: MaintenanceMetrics, *, rest: Rest
    ) -> None:
        """Every hour is proven once it is over, and once more in each span of PROVE_AGAIN."""
        self.office = Office(OFFICE, pool, holder)
        self._pool = pool
        self._metrics = metrics
        self._rest = rest
        self._opened_jobs: int | None = None

    async def fold(self) -> int:
        """Fold what there is, if the office is ours; how many entries."""
        folded = 0

        async def batch() -> bool:
            nonlocal folded
            async with self._pool.use("fold") as connection:
                entries = await fold_entries(connection, limit=ENTRIES)
                submits = await fold_ledger(connection, limit=ENTRIES)
            folded += entries + submits
            self._metrics.upkept("fold", entries + submits)
            return max(entries, submits) >= ENTRIES

        if await self.office.held():
            await keep_at(batch, within=WITHIN, rest=self._rest)
        return folded

    async def prove(self) -> int:
        """Prove what is due, if the office is ours; how many hours."""
        hours = 0

        async def batch() -> bool:
            nonlocal hours
            if not await self.office.held():
                return False
            async with self._pool.use("prove") as connection:
                proof = await prove_hour(
                    connection, every=PROVE_AGAIN, page=PAGE, between=self._between_pages
                )
            self._tell(proof)
            hours += proof is not None
            self._metrics.upkept("prove", 0 if proof is None else proof.jobs)
            return proof is not None

        try:
            await keep_at(batch, within=WITHIN, rest=self._rest)
        except _Leaving:
            log.info("ledger.proof_left")
        return hours

    async def _between_pages(self) -> None:
        if await self._rest(AT_ONCE):
            raise _Leaving

    def _tell(self, proof: Proof | None) -> None:
        if proof is None:
            if self._opened_jobs is not None:
                log.info("ledger.opened", jobs=self._opened_jobs)
            self._opened_jobs = None
        elif proof.opening:
            self._opened_jobs = (self._opened_jobs or 0) + proof.jobs
        else:
            hour = datetime.fromtimestamp(proof.hour * 3600, UTC).isoformat()
            for (job_type, lane, state), jobs in proof.differences.items():
                log.error(
                    "ledger.disproven", hour=hour, type=job_type, lane=lane, state=state, jobs=jobs
                )


class _Leaving(Exception):
    """The process ends; on its way out of a transaction that need not be finished."""
