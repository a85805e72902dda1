"""Whether new work is taken at present: pauses that refuse it, and how much may be open.

Both are for what would be new. A repeat of an accepted request gets its answer in any case, and so
does what a job stands for by its dedup key; but while new work is refused that writes nothing, so
that request's own key is not remembered.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, TypeAlias

from imagefleet.api.http.limiting import Limiting
from imagefleet.errors import LimitReached, NotFound, RequestRejected, Unavailable
from imagefleet.jobs.kinds import Draft
from imagefleet.jobs.model import JobId, Submission
from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.jobs.admissions import (
    find_refusal,
    is_standing,
    list_parents,
    list_standing,
)
from imagefleet.store.jobs.cancelling import is_cancellable

_PAUSED: Final = "New work of this kind is not taken at present."

Asked: TypeAlias = Submission | Draft
Refusal: TypeAlias = RequestRejected | Unavailable


class Admitted(StrEnum):
    """How a request may go on."""

    NEW = "new"
    """It may be submitted."""
    STANDS = "stands"
    """Nothing new is taken, but a job stands for it already: that is the answer."""


class Admission:
    """The gate before the store."""

    def __init__(self, limiting: Limiting) -> None:
        self._limiting = limiting

    async def admit(self, connection: Connection, key: ApiKey, asked: Asked) -> Admitted:
        """Return if this may be submitted, or was before; RequestRejected or Unavailable if not."""
        [verdict] = await self.admit_batch(connection, key, [asked])
        if isinstance(verdict, Admitted):
            return verdict
        raise verdict

    async def admit_batch(
        self, connection: Connection, key: ApiKey, asked: Sequence[Asked]
    ) -> list[Refusal | Admitted]:
        """The same of many jobs, each by itself, for as many statements as kinds of them.

        What is there after a count is for the first of them; open jobs are counted once.
        """
        refusals = await self._refusals(connection, key, asked)
        verdicts = [one or Admitted.NEW for one in refusals]
        refused = [place for place, one in enumerate(refusals) if one is not None]
        if refused:
            again = [asked[place] for place in refused]
            for standing in await list_standing(connection, key.tenant_id, again):
                verdicts[refused[standing]] = Admitted.STANDS
        return verdicts

    async def admit_upload(self, connection: Connection, key: ApiKey, draft: Draft) -> bool:
        """The same before a body is read; whether its key stands for something already.

        Then it is a repeat, or another body, and neither is to be stored.
        """
        if draft.idempotency_key is not None and await is_standing(connection, draft):
            return True
        [refusal] = await self._refusals(connection, key, [draft])
        if refusal is not None:
            raise refusal
        return False

    async def admit_form(self, connection: Connection, key: ApiKey) -> None:
        """Return if what is posted by a new form could become an image at present."""
        full = await self._full(connection, key)
        if full is not None:
            raise full

    async def admit_deletion(
        self, connection: Connection, key: ApiKey, submission: Submission
    ) -> Admitted:
        """Deletions are always taken; those that repeat one leave nothing at a full quota."""
        if await self._full(connection, key) and await is_standing(connection, submission):
            return Admitted.STANDS
        return Admitted.NEW

    async def admit_cancel(
        self, connection: Connection, key: ApiKey, submission: Submission, job_id: JobId
    ) -> Admitted:
        """Return if a job may be cancelled: beyond the quota, too, but each open job once."""
        full = await self._full(connection, key)
        if full is None:
            return Admitted.NEW
        if await is_standing(connection, submission):
            return Admitted.STANDS
        if not await is_cancellable(connection, job_id):
            raise full
        return Admitted.NEW

    async def _full(self, connection: Connection, key: ApiKey) -> LimitReached | None:
        return (await self._limiting.open_jobs(connection, key, 1)).take()

    async def _refusals(
        self, connection: Connection, key: ApiKey, asked: Sequence[Asked]
    ) -> list[Refusal | None]:
        if not asked:
            return []
        wanted = {one.parent_job_id for one in asked if one.parent_job_id is not None}
        parents = await list_parents(connection, key.tenant_id, wanted) if wanted else set()
        paused = {
            (job_type, lane): await find_refusal(connection, job_type, lane, key.tenant_id)
            for job_type, lane in {(one.type, one.lane) for one in asked}
        }
        room = await self._limiting.open_jobs(connection, key, len(asked))

        def refusal(one: Asked) -> Refusal | None:
            if one.parent_job_id is not None and one.parent_job_id not in parents:
                return NotFound("parent job")
            why = paused[one.type, one.lane]
            return room.take() if why is None else Unavailable("submits_paused", _PAUSED, why)

        return [refusal(one) for one in asked]
