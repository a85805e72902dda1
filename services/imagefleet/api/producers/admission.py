"""Whether new work is taken at present: pauses that refuse it, and the tenant's quota.

Both are for what would be new. A repeat of an accepted request gets its answer in any case, and so
does what a job stands for by its dedup key; but while new work is refused that writes nothing, so
that request's own key is not remembered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic
from typing import Final, Self

from imagefleet.errors import LimitReached, NotFound, RequestRejected, Unavailable
from imagefleet.jobs.kinds import Draft
from imagefleet.jobs.model import JobId, Submission, TenantId
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import find_refusal
from imagefleet.store.jobs.admissions import (
    is_cancellable,
    is_standing,
    list_parents,
    list_standing,
    room_for_jobs,
)
from imagefleet.store.jobs.reports import get_job

ROOM_IS_GOOD_FOR: Final = 5.0  # seconds; the others that accept for this tenant are not seen
FULL_IS_GOOD_FOR: Final = 1.0  # the same where there is none: counting to the quota takes a while
_FULL: Final = "Your tenant has as many open jobs as it may have."
_PAUSED: Final = "New work of this kind is not taken at present."


class Admitted(StrEnum):
    """How a request may go on."""

    NEW = "new"
    """It may be submitted."""
    STANDS = "stands"
    """Nothing new is taken, but a job stands for it already: that is the answer."""


@dataclass(slots=True)
class _Room:
    left: int
    look_again_at: int
    good_until: float
    is_full: bool = False

    @classmethod
    def counted(cls, left: int) -> Self:
        """What was counted just now; good until half of it is used up, whatever others did."""
        if left <= 0:
            return cls(0, 0, monotonic() + FULL_IS_GOOD_FOR, is_full=True)
        return cls(left, left // 2, monotonic() + ROOM_IS_GOOD_FOR)


class Admission:
    """The gate before the store. The quota is kept roughly: it protects, it does not bill.

    By how much it can be passed: a process that counted room uses up half of it, or what comes in
    five seconds, before it counts again, and other processes do the same meanwhile.
    """

    def __init__(self) -> None:
        """Know nobody yet."""
        self._rooms: dict[TenantId, _Room] = {}

    async def admit(self, connection: Connection, asked: Submission | Draft) -> Admitted:
        """Return if this may be submitted, or was before; RequestRejected or Unavailable if not."""
        refusal = await self._refusal(connection, asked)
        if refusal is None:
            return Admitted.NEW
        if not await self._stands(connection, asked):
            raise refusal
        return Admitted.STANDS

    async def admit_deletion(self, connection: Connection, submission: Submission) -> Admitted:
        """Deletions are always taken; those that repeat one leave nothing at a full quota."""
        if await self._has_room(connection, submission.tenant_id) or not await self._stands(
            connection, submission
        ):
            return Admitted.NEW
        return Admitted.STANDS

    async def admit_batch(
        self, connection: Connection, submissions: Sequence[Submission]
    ) -> list[RequestRejected | Unavailable | Admitted]:
        """The same of one tenant's jobs, each by itself, for as many statements as kinds of them.

        What is there after a count is for the first of them; the quota is counted once.
        """
        if not submissions:
            return []
        tenant_id = submissions[0].tenant_id
        wanted = {one.parent_job_id for one in submissions if one.parent_job_id is not None}
        parents = await list_parents(connection, tenant_id, wanted) if wanted else set()
        paused = {
            (job_type, lane): await find_refusal(connection, job_type, lane, tenant_id)
            for job_type, lane in {(one.type, one.lane) for one in submissions}
        }
        room = await self._room(connection, tenant_id, len(submissions))
        verdicts: list[RequestRejected | Unavailable | Admitted] = []
        for one in submissions:
            verdict: RequestRejected | Unavailable | Admitted = Admitted.NEW
            why = paused[one.type, one.lane]
            if one.parent_job_id is not None and one.parent_job_id not in parents:
                verdict = NotFound("parent job")
            elif why is not None:
                verdict = Unavailable("submits_paused", _PAUSED, why)
            elif room.left == 0:
                verdict = _full()
            else:
                room.left -= 1
            verdicts.append(verdict)
        refused = [place for place, one in enumerate(verdicts) if not isinstance(one, Admitted)]
        if refused:
            asked = [submissions[place] for place in refused]
            for standing in await list_standing(connection, tenant_id, asked):
                verdicts[refused[standing]] = Admitted.STANDS
        return verdicts

    async def admit_upload(self, connection: Connection, draft: Draft) -> bool:
        """The same before a body is read; whether its key stands for something already.

        Then it is a repeat, or another body, and neither is to be stored.
        """
        if draft.idempotency_key is not None and await self._stands(connection, draft):
            return True
        refusal = await self._refusal(connection, draft)
        if refusal is not None:
            raise refusal
        return False

    async def admit_form(self, connection: Connection, tenant_id: TenantId) -> None:
        """Return if what is posted by a new form could become an image at present."""
        if not await self._has_room(connection, tenant_id):
            raise _full()

    async def admit_cancel(
        self, connection: Connection, submission: Submission, job_id: JobId
    ) -> Admitted:
        """Return if a job may be cancelled: beyond the quota, too, but each open job once."""
        if await self._has_room(connection, submission.tenant_id):
            return Admitted.NEW
        if await self._stands(connection, submission):
            return Admitted.STANDS
        if not await is_cancellable(connection, job_id):
            raise _full()
        return Admitted.NEW

    async def _stands(self, connection: Connection, asked: Submission | Draft) -> bool:
        return await is_standing(
            connection,
            asked.tenant_id,
            job_type=asked.type,
            idempotency_key=asked.idempotency_key,
            dedup_key=asked.dedup_key,
        )

    async def _refusal(
        self, connection: Connection, asked: Submission | Draft
    ) -> RequestRejected | Unavailable | None:
        if asked.parent_job_id is not None:
            try:
                await get_job(connection, asked.parent_job_id, asked.tenant_id)
            except NotFound:
                return NotFound("parent job")
        paused = await find_refusal(connection, asked.type, asked.lane, asked.tenant_id)
        if paused is not None:
            return Unavailable("submits_paused", _PAUSED, paused)
        if not await self._has_room(connection, asked.tenant_id):
            return _full()
        return None

    async def _has_room(self, connection: Connection, tenant_id: TenantId) -> bool:
        room = await self._room(connection, tenant_id, 1)
        if room.left == 0:
            return False
        room.left -= 1
        return True

    async def _room(self, connection: Connection, tenant_id: TenantId, wanted: int) -> _Room:
        """What was counted lately, or, where so many may no longer fit into it, is counted now."""
        room = self._rooms.get(tenant_id)
        if (
            room is None
            or room.good_until < monotonic()
            or (room.left < room.look_again_at + wanted and not room.is_full)
        ):
            room = _Room.counted(await room_for_jobs(connection, tenant_id))
            self._rooms[tenant_id] = room
        return room


def _full() -> LimitReached:
    return LimitReached("open_jobs", _FULL, code="too_many_open_jobs")
