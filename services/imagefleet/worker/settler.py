"""Settling: the outcomes of many jobs in one transaction, a few milliseconds after they are known.

An attempt waits for its receipt, and keeps its slot and its lease until it has it. When Postgres is
away the same outcomes are settled again until it answers: settling is idempotent.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from typing import Final

import structlog

from imagefleet.doorbell import Doorbell
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import Ended, Fence, WorkerId
from imagefleet.runtime import FIRST_PAUSE, LONGEST_PAUSE, Batcher
from imagefleet.store.database import Pool
from imagefleet.store.settling import Receipt, Settled, Settlement, settle_jobs
from imagefleet.telemetry.metrics import WorkerMetrics, tell_ends

LINGER: Final = 0.005  # seconds
MOST_AT_ONCE: Final = 100
# What is settled twice is so within moments: cut off amid its settle, or a stray of one beat.
MOST_REMEMBERED: Final = 10_000

log = structlog.get_logger()


class Settler:
    """Collects settlements of one worker and writes them together."""

    def __init__(
        self, pool: Pool, worker_id: WorkerId, doorbell: Doorbell, metrics: WorkerMetrics
    ) -> None:
        self._pool = pool
        self._worker_id = worker_id
        self._doorbell = doorbell
        self._metrics = metrics
        self._settlements: Batcher[Settlement, Receipt] = Batcher(
            self._write, name="settler", linger=LINGER, most=MOST_AT_ONCE
        )
        self._unanswered: set[Fence] = set()
        """What was sent to be written, and no answer came: perhaps it was."""
        self._told: dict[Fence, None] = {}
        """Whose end was told, the oldest first."""
        self._given_up = False

    async def settle(self, settlement: Settlement) -> Receipt:
        """Write the outcome; return when the database has answered, however long that takes."""
        return await self._settlements.put(settlement)

    @property
    def unanswered(self) -> int:
        """How many ends were perhaps written, and nobody has told them."""
        return len(self._unanswered)

    def give_up(self) -> None:
        """Wait no longer for a database that is away: what cannot be settled now raises."""
        self._given_up = True

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Settler"]:
        """Settle until the end of the context; what waits then is written before it ends."""
        async with self._settlements.open():
            yield self

    async def _write(self, settlements: Sequence[Settlement]) -> Sequence[Receipt | Exception]:
        try:
            receipts, ended = await self._until_answered(settlements)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            if len(settlements) == 1:
                return [error]
            # What cannot be settled at all must not hold up its neighbours.
            return [answer for one in settlements for answer in await self._write([one])]
        tell_ends(self._metrics, ended)
        return receipts

    async def _until_answered(
        self, settlements: Sequence[Settlement]
    ) -> tuple[Sequence[Receipt], Collection[Ended]]:
        """The receipts, and the ends that are to be told: each once, whoever waits for which."""
        pause = FIRST_PAUSE
        fences = {settlement.fence for settlement in settlements}
        while True:
            again = self._unanswered & fences
            try:
                async with self._pool.use("settle") as connection:
                    self._unanswered |= fences  # nothing was sent before
                    report = await settle_jobs(connection, self._worker_id, settlements)
            except Unavailable as error:
                log.warning("settle.delayed", jobs=len(settlements), code=error.code)
                if self._given_up:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            except Exception:  # an answer: nothing of this was written
                self._unanswered -= fences - again
                raise
            else:
                self._unanswered -= fences
                self._doorbell.ring(report.rings)
                return report.receipts, self._to_tell(report.receipts, again)

    def _to_tell(self, receipts: Sequence[Receipt], again: AbstractSet[Fence]) -> Collection[Ended]:
        """What these wrote; also earlier, if the answer to that never came. All else is told."""
        ended = {
            receipt.ended.fence: receipt.ended
            for receipt in receipts
            if receipt.ended is not None
            and receipt.ended.fence not in self._told
            and (receipt.settled is Settled.WRITTEN or receipt.ended.fence in again)
        }
        self._told |= dict.fromkeys(ended)
        while len(self._told) > MOST_REMEMBERED:
            del self._told[next(iter(self._told))]
        return ended.values()
