"""Settling: the outcomes of many jobs in one transaction, a few milliseconds after they are known.

Or at once, when every attempt that runs waits already: nobody else can come.

An attempt waits for its receipt, and keeps its slot and its lease until it has it. When Postgres is
away the same outcomes are settled again until it answers: settling is idempotent.

Whatever this worker ends is told here, each end once: its own attempts', and those of others whose
jobs its claims have taken over.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from imagefleet.doorbell import Doorbell
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import Ended, Fence, JobId, WorkerId
from imagefleet.runtime import FIRST_PAUSE, LONGEST_PAUSE, Batcher, tell_missed
from imagefleet.store.database import Pool
from imagefleet.store.jobs.unheard import find_claimed_ends
from imagefleet.store.settling import Receipt, Settled, Settlement, settle_jobs
from imagefleet.telemetry.metrics import WorkerMetrics, tell_ends

LINGER: Final = 0.005  # seconds
MOST_AT_ONCE: Final = 100
# What could be told twice is so within moments: cut off amid its settle, a stray of one beat, asked
# for while the answer to another claim of the same job arrives.
MOST_REMEMBERED: Final = 10_000


class Told:
    """Whose end was told of late: none is told twice."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics
        self.fences: dict[Fence, None] = {}
        """The oldest first."""

    def tell(self, ended: Iterable[Ended]) -> None:
        """Count them, and write their lines."""
        new = {end.fence: end for end in ended if end.fence not in self.fences}
        self.fences |= dict.fromkeys(new)
        while len(self.fences) > MOST_REMEMBERED:
            del self.fences[next(iter(self.fences))]
        tell_ends(self._metrics, new.values())


class Settler:
    """Collects settlements of one worker and writes them together."""

    def __init__(
        self, pool: Pool, worker_id: WorkerId, doorbell: Doorbell, metrics: WorkerMetrics
    ) -> None:
        self._pool = pool
        self._worker_id = worker_id
        self._doorbell = doorbell
        self._told = Told(metrics)
        self.expected: set[Fence] = set()
        """Claims that are worked on. While there are any, what is settled waits for company."""
        self._settlements: Batcher[Settlement, Receipt] = Batcher(
            self._write, name="settler", linger=LINGER, most=MOST_AT_ONCE, expected=self.expected
        )
        self._unanswered: set[Fence] = set()
        """What was sent to be written, and no answer came: perhaps it was."""
        self._given_up = False

    async def settle(self, settlement: Settlement) -> Receipt:
        """Write the outcome; return when the database has answered, however long that takes."""
        self.expected.discard(settlement.fence)
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
            return [
                answer for settlement in settlements for answer in await self._write([settlement])
            ]
        self._told.tell(ended)
        return receipts

    async def _until_answered(
        self, settlements: Sequence[Settlement]
    ) -> tuple[Sequence[Receipt], Sequence[Ended]]:
        """The receipts, and what these wrote; also earlier, if the answer to that never came."""
        pause = FIRST_PAUSE
        fences = {settlement.fence for settlement in settlements}
        while True:
            again = self._unanswered & fences
            try:
                async with self._pool.use("settle") as connection:
                    self._unanswered |= fences  # nothing was sent before
                    report = await settle_jobs(connection, self._worker_id, settlements)
            except Unavailable as error:
                tell_missed(error, "settle.delayed", jobs=len(settlements))
                if self._given_up:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            except Exception:
                if len(settlements) == 1:  # an answer: nothing of it stands; of several some may
                    self._unanswered -= fences
                raise
            else:
                self._unanswered -= fences
                self._doorbell.ring(report.rings)
                return report.receipts, [
                    receipt.ended
                    for receipt in report.receipts
                    if receipt.ended is not None
                    and (receipt.settled is Settled.WRITTEN or receipt.ended.fence in again)
                ]


class Takeovers:
    """What the claims of one worker have ended of others', told once; all its consumers share it.

    A claim that takes a job over, or finds it exhausted, writes the end of the claim before. Where
    its answer is lost on the way that may stand all the same: then Postgres is asked, once it
    answers.
    """

    def __init__(self, pool: Pool, worker_id: WorkerId, metrics: WorkerMetrics) -> None:
        self._pool = pool
        self._worker_id = worker_id
        self._told = Told(metrics)
        self._asking: set[JobId] = set()

    def tell(self, ended: Iterable[Ended]) -> None:
        """Count what a claim ended, and write its lines."""
        self._told.tell(ended)

    @property
    def unanswered(self) -> int:
        """How many ends were perhaps written, and nobody has told them."""
        return len(self._asking)

    def not_answered(self, job_ids: Collection[JobId]) -> None:
        """Remember a claim of these that was sent, and whose answer never came."""
        self._asking |= set(job_ids)

    async def catch_up(self) -> None:
        """Tell what such claims have ended; Unavailable while nobody can say, and then again."""
        if not self._asking:
            return
        asked, self._asking = self._asking, set()
        try:
            async with self._pool.use("find_claimed_ends") as connection:
                ended = await find_claimed_ends(connection, self._worker_id, asked)
        except BaseException:
            self._asking |= asked
            raise
        self.tell(ended)
