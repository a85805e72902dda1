"""What the claims of this worker ended of others', each told once.

A claim that takes a job over, or finds it exhausted, writes the end of the claim before. Where its
answer is lost on the way that may stand all the same: then Postgres is asked, once it answers.
"""

from collections.abc import Collection, Iterable
from typing import Final

from imagefleet.jobs.model import Ended, Fence, JobId, WorkerId
from imagefleet.store.database import Pool
from imagefleet.store.jobs.unheard import find_claimed_ends
from imagefleet.telemetry.metrics import WorkerMetrics, tell_ends

# What could be told twice: asked for while the answer to another claim of the same job arrives.
MOST_REMEMBERED: Final = 10_000


class Takeovers:
    """Of one worker; all its consumers share it."""

    def __init__(self, pool: Pool, worker_id: WorkerId, metrics: WorkerMetrics) -> None:
        """Know of nothing yet."""
        self._pool = pool
        self._worker_id = worker_id
        self._metrics = metrics
        self._asking: set[JobId] = set()
        self._told: dict[Fence, None] = {}
        """The oldest first."""

    def tell(self, ended: Iterable[Ended]) -> None:
        """Count what a claim ended, and write its lines."""
        new = [one for one in ended if one.fence not in self._told]
        self._told |= dict.fromkeys(one.fence for one in new)
        while len(self._told) > MOST_REMEMBERED:
            del self._told[next(iter(self._told))]
        tell_ends(self._metrics, new)

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
                found = await find_claimed_ends(connection, self._worker_id, asked)
        except BaseException:
            self._asking |= asked
            raise
        self.tell(found)
