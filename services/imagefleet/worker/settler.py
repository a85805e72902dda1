"""Settling: the outcomes of many jobs in one transaction, a few milliseconds after they are known.

An attempt waits for its receipt, and keeps its slot and its lease until it has it. When Postgres is
away the same outcomes are settled again until it answers: settling is idempotent.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import structlog

from imagefleet.doorbell import Doorbell
from imagefleet.errors import Unavailable
from imagefleet.jobs.lifecycle import Failed, failure_sentence
from imagefleet.jobs.model import Ended, Fence, WorkerId
from imagefleet.store.database import Pool
from imagefleet.store.settling import Receipt, Settled, Settlement, settle_jobs
from imagefleet.telemetry.metrics import WorkerMetrics, tell_ends

LINGER: Final = 0.005  # seconds
MOST_AT_ONCE: Final = 100
FIRST_PAUSE: Final = 0.1  # seconds, doubled with every failure
LONGEST_PAUSE: Final = 2.0
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
        self._waiting: list[tuple[Settlement, asyncio.Future[Receipt]]] = []
        self._unanswered: set[Fence] = set()
        """What was sent to be written, and no answer came: perhaps it was."""
        self._told: dict[Fence, None] = {}
        """Whose end was told, the oldest first."""
        self._wake = asyncio.Event()
        self._closed = False
        self._given_up = False

    async def settle(self, settlement: Settlement) -> Receipt:
        """Write the outcome; return when the database has answered, however long that takes."""
        answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._waiting.append((settlement, answer))
        self._wake.set()
        return await answer

    def give_up(self) -> None:
        """Wait no longer for a database that is away: what cannot be settled now raises."""
        self._given_up = True

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Settler"]:
        """Settle until the end of the context; what waits then is written before it ends."""
        async with asyncio.TaskGroup() as group:
            settling = group.create_task(self._run(), name="settler")
            try:
                yield self
            except asyncio.CancelledError:  # now means now
                settling.cancel()
                raise
            finally:
                self._closed = True
                self._wake.set()

    async def _run(self) -> None:
        while self._waiting or not self._closed:
            await self._wake.wait()
            if not self._closed:
                await asyncio.sleep(LINGER)
                self._wake.clear()
            while self._waiting:
                batch, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
                await self._write([one for one in batch if not one[1].done()])

    async def _write(self, batch: Sequence[tuple[Settlement, asyncio.Future[Receipt]]]) -> None:
        try:
            receipts, ended = await self._until_answered([settlement for settlement, _ in batch])
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            await self._write_apart(batch, error)
            return
        for (_, answer), receipt in zip(batch, receipts, strict=True):
            if not answer.done():
                answer.set_result(receipt)
        tell_ends(self._metrics, ended)

    async def _write_apart(
        self, batch: Sequence[tuple[Settlement, asyncio.Future[Receipt]]], error: Exception
    ) -> None:
        """One outcome that is a bug must not hold up its neighbours, nor come back for ever."""
        if len(batch) > 1:
            for one in batch:
                await self._write([one])
            return
        for settlement, answer in batch:
            if isinstance(error, Unavailable) or _is_rejection(settlement):
                if not answer.done():
                    answer.set_exception(error)
            else:
                log.error("settle.broken", job_id=str(settlement.job_id), exc_info=error)
                await self._write([(_rejection(settlement), answer)])

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


REJECTED: Final = Failed(code="settle_rejected", message=failure_sentence("settle_rejected"))


def _rejection(settlement: Settlement) -> Settlement:
    return replace(settlement, outcome=REJECTED)


def _is_rejection(settlement: Settlement) -> bool:
    return settlement.outcome is REJECTED
