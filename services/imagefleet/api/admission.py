"""Whether new work is taken at present: pauses that refuse it, and the tenant's quota.

Both are for what would be new. A repeat of an accepted request gets its answer in any case.
"""

from dataclasses import dataclass
from time import monotonic
from typing import Final, Self

from imagefleet.errors import NotFound, RequestRejected, Unavailable
from imagefleet.jobs.model import Submission, TenantId
from imagefleet.store.admissions import is_standing, room_for_jobs
from imagefleet.store.control import find_refusal
from imagefleet.store.database import Connection
from imagefleet.store.reports import get_job

ROOM_IS_GOOD_FOR: Final = 5.0  # seconds; the others that accept for this tenant are not seen
FULL_IS_GOOD_FOR: Final = 1.0  # the same where there is none: counting to the quota takes a while
_FULL: Final = "Your tenant has as many open jobs as it may have."
_PAUSED: Final = "New work of this kind is not taken at present."


@dataclass(slots=True)
class _Room:
    left: int
    look_again_at: int
    good_until: float

    @classmethod
    def counted(cls, left: int) -> Self:
        """What was counted just now; good until half of it is used up, whatever others did."""
        if left <= 0:
            return cls(0, -1, monotonic() + FULL_IS_GOOD_FOR)
        return cls(left, left // 2, monotonic() + ROOM_IS_GOOD_FOR)


class Admission:
    """The gate before the store. The quota is kept roughly: it protects, it does not bill."""

    def __init__(self) -> None:
        """Know nobody yet."""
        self._rooms: dict[TenantId, _Room] = {}

    async def admit(self, connection: Connection, submission: Submission) -> None:
        """Return if this may be submitted, or was before; RequestRejected or Unavailable if not."""
        refusal = await self._refusal(connection, submission)
        if refusal is not None and not await is_standing(
            connection,
            submission.tenant_id,
            job_type=submission.type,
            idempotency_key=submission.idempotency_key,
            dedup_key=submission.dedup_key,
        ):
            raise refusal

    async def _refusal(
        self, connection: Connection, submission: Submission
    ) -> RequestRejected | Unavailable | None:
        if submission.parent_job_id is not None:
            try:
                await get_job(connection, submission.parent_job_id, submission.tenant_id)
            except NotFound:
                return NotFound("parent job")
        paused = await find_refusal(connection, submission.type, submission.lane)
        if paused is not None:
            return Unavailable("submits_paused", _PAUSED, paused)
        if not await self._has_room(connection, submission.tenant_id):
            return RequestRejected("too_many_open_jobs", _FULL)
        return None

    async def _has_room(self, connection: Connection, tenant_id: TenantId) -> bool:
        room = self._rooms.get(tenant_id)
        if room is None or room.left <= room.look_again_at or room.good_until < monotonic():
            room = _Room.counted(await room_for_jobs(connection, tenant_id))
            self._rooms[tenant_id] = room
        if room.left == 0:
            return False
        room.left -= 1
        return True
