"""Takes back the jobs of workers that went silent, and of nobody else.

Silence is what this rescuer itself has watched: one unbroken database session that saw the same
number of beats for `rescue_after`, look by look. Whoever was away cannot say who was silent: after
a broken session, a look that failed, or a pause between two looks (an outage, a frozen host), every
watch begins anew. All times are the database's, so a clock of ours that jumps condemns nobody.
"""

from datetime import datetime, timedelta
from typing import Final
from uuid import uuid4

import structlog

from imagefleet.errors import Unavailable
from imagefleet.jobs.model import Fence, WorkerId
from imagefleet.store.database import OwnConnection
from imagefleet.store.jobs.rescue import (
    Rescue,
    Rescuing,
    WorkerSeen,
    look_at_workers,
    rescue_worker,
)
from imagefleet.store.jobs.unheard import find_rescued_ends
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from imagefleet.telemetry.metrics import tell_ends

RESCUE_AFTER: Final = timedelta(seconds=30)
LONGEST_GAP: Final = timedelta(seconds=5)  # between two looks: two missed beats, and a little

log = structlog.get_logger()


class Rescuer:
    """Looks at the beats of all workers; any number may run, each on its own session."""

    def __init__(
        self,
        metrics: MaintenanceMetrics,
        *,
        rescue_after: timedelta = RESCUE_AFTER,
        longest_gap: timedelta = LONGEST_GAP,
    ) -> None:
        """A `rescue_after` of zero turns rescue off."""
        self._metrics = metrics
        self._rescue_after = rescue_after
        self._longest_gap = longest_gap
        self._session: OwnConnection | None = None
        self._looked_at: datetime | None = None
        self._silent_since: dict[WorkerId, WorkerSeen] = {}
        self._me = uuid4()
        self._unanswered: set[Fence] = set()
        """What a rescue may have ended whose answer never came."""

    async def run_once(self, session: OwnConnection) -> list[Rescue]:
        """Look once, and rescue from whom was silent long enough; call it every second or two."""
        rescues: list[Rescue] = []
        if self._rescue_after > timedelta(0):
            try:
                await self._catch_up_unless_locked(session)
                looked = await look_at_workers(session)
            except BaseException:
                self._forget()
                raise
            for seen in self._watch(session, looked):
                rescue = await self._rescue(session, seen)
                if rescue is not None:
                    self._tell(seen, rescue)  # at once: the next one may fail
                    rescues.append(rescue)
        return rescues

    async def _rescue(self, session: OwnConnection, seen: WorkerSeen) -> Rescue | None:
        """One worker. What is wrong with it alone is tried again at the next look."""
        rescuing = Rescuing(by=self._me)
        try:
            return await rescue_worker(session, seen, rescuing)
        except BaseException as error:
            self._unanswered |= rescuing.claims
            if not isinstance(error, Exception) or session.is_closed() or _is_outage(error):
                self._forget()
                raise
            log.exception("worker.not_rescued", worker_id=str(seen.worker_id))
            return None

    @property
    def unanswered(self) -> int:
        """How many ends were perhaps written, and nobody has told them."""
        return len(self._unanswered)

    async def _catch_up_unless_locked(self, session: OwnConnection) -> None:
        try:
            await self.catch_up(session)
        except Unavailable as error:
            if session.is_closed() or _is_outage(error):
                raise

    async def catch_up(self, session: OwnConnection) -> None:
        """Tell what was rescued though the answer was lost; Unavailable while nobody can say."""
        if not self._unanswered:
            return
        mine = await find_rescued_ends(session, self._me, self._unanswered)
        self._unanswered.clear()
        self._metrics.rescued(len(mine))
        tell_ends(self._metrics, mine)

    def _watch(self, session: OwnConnection, seen: list[WorkerSeen]) -> list[WorkerSeen]:
        """Remember this look; return those whose silence is old enough."""
        if not seen:
            self._forget()
            return []
        if not self._has_watched_until(session, seen[0].seen_at):
            self._forget()
        self._session, self._looked_at = session, seen[-1].seen_at
        self._silent_since = {worker.worker_id: self._first_sight(worker) for worker in seen}
        return [
            worker
            for worker in seen
            if worker.seen_at - self._silent_since[worker.worker_id].seen_at >= self._rescue_after
        ]

    def _has_watched_until(self, session: OwnConnection, now: datetime) -> bool:
        if self._session is not session or self._looked_at is None:
            return False
        # A clock that was set back would hide a silence for as long.
        return timedelta(0) <= now - self._looked_at <= self._longest_gap

    def _first_sight(self, worker: WorkerSeen) -> WorkerSeen:
        before = self._silent_since.get(worker.worker_id)
        return before if before is not None and before.beats == worker.beats else worker

    def _tell(self, seen: WorkerSeen, rescue: Rescue) -> None:
        log.warning(
            "worker.rescued",
            worker_id=str(seen.worker_id),
            retried=len(rescue.retried),
            failed=len(rescue.failed),
        )
        self._unanswered -= {ended.fence for ended in rescue.ended}
        self._metrics.rescued(len(rescue.ended))
        tell_ends(self._metrics, rescue.ended)

    def _forget(self) -> None:
        self._session = self._looked_at = None
        self._silent_since = {}


def _is_outage(error: Exception) -> bool:
    # Somebody sits on a row of this worker, or was in a deadlock with us: the session is well.
    return isinstance(error, Unavailable) and error.code != "database_conflict"
