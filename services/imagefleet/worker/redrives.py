"""SQS's own redrive as a replay: a message that came back from the dead-letter queue to a lane.

Its job is over and stays so. What whoever moved it wants is another try, which is a new job; the
letter sees to it that there is one, however many messages come back.
"""

from collections.abc import Mapping

import structlog

from imagefleet.doorbell import Doorbell
from imagefleet.errors import Unavailable
from imagefleet.jobs.kinds import JobKind
from imagefleet.jobs.model import JobMessage
from imagefleet.store.database import Pool
from imagefleet.store.letters.replays import replay_redriven

log = structlog.get_logger()


class Redrives:
    """Replays what is moved back."""

    def __init__(self, pool: Pool, kinds: Mapping[str, JobKind], doorbell: Doorbell) -> None:
        self._pool = pool
        self._kinds = kinds
        self._doorbell = doorbell

    async def replay(self, message: JobMessage) -> bool:
        """See to the replay of a finished job; False: the message must come again for that."""
        if message.dead_letter is None:
            return True
        try:
            async with self._pool.connection() as connection:
                replayed = await replay_redriven(connection, message.job_id, self._kinds)
        except Unavailable as error:
            log.warning("redrive.failed", job_id=str(message.job_id), code=error.code)
            return False
        if replayed is not None:
            log.info(
                "job.redriven",
                job_id=str(message.job_id),
                outcome=replayed.outcome.value,
                replayed_as=replayed.replayed_as and str(replayed.replayed_as),
            )
            if replayed.ring is not None:
                self._doorbell.ring([replayed.ring])
        return True
